"""`everthread sessions prune`."""

from __future__ import annotations

import asyncio
import sqlite3
import time

import pytest
from tests.e2e.cli.commands.sessions.sessions_home import (
    CHAT,
    DAY_S,
    TERMINAL,
    Listens,
    PastClock,
    SampleHome,
    open_session,
    say,
)
from tests.e2e.commands import everthread, printed, problems, refused

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import Branch, New, Resume
from everthread.lifecycle import ForgetSession


@pytest.mark.parametrize("age", ["90", "d", "-1d", "0d", "1x", "99999999d", ""])
def test_an_invalid_age_is_refused(age: str, sample: SampleHome) -> None:
    refused(everthread(sample.home, "sessions", "prune", "--older-than", age), 2, "older-than")


def test_prune_removes_only_sessions_that_ended_long_ago(sample: SampleHome) -> None:
    before = {session["id"] for session in printed(sample.home, "sessions", "list")}
    dry = printed(sample.home, "sessions", "prune", "--older-than", "90d", "--dry-run")
    assert (set(dry["found"]), dry["removed"]) == ({sample.taxes, sample.chat}, 0)
    assert everthread(sample.home, "sessions", "prune", "--older-than", "90d", answer="n\n").returncode == 1
    assert {session["id"] for session in printed(sample.home, "sessions", "list")} == before
    assert printed(sample.home, "sessions", "prune", "--older-than", "1y", "--yes")["found"] == []
    done = printed(sample.home, "sessions", "prune", "--older-than", "90d", "--yes")
    assert (done["removed"], done["turns"]) == (2, 2)
    assert {session["id"] for session in printed(sample.home, "sessions", "list")} == before - {
        sample.taxes,
        sample.chat,
    }
    assert problems(sample.home) == []
    assert b"konnichiwa" not in (sample.home / "everthread.db").read_bytes()


def test_prune_keeps_sessions_that_others_inherit_from(sample: SampleHome) -> None:
    async def grow() -> str:
        async with Runtime(Settings(sample.home), providers=[Listens()], clock=PastClock(150 * DAY_S)) as runtime:
            await runtime.start()
            await open_session(runtime, TERMINAL, Resume(sample.taxes), "me")
            child = await open_session(runtime, TERMINAL, Branch(), "me")
            await say(runtime, TERMINAL, "me", "and in Spain")
            await open_session(runtime, CHAT, Resume(sample.chat), "telegram:42")
            await open_session(runtime, CHAT, New(), "telegram:42")
            assert await runtime.drain()
            return child

    async def end_the_parent(child: str) -> None:
        async with Runtime(Settings(sample.home), providers=[Listens()], clock=PastClock(140 * DAY_S)) as runtime:
            await runtime.start()
            await open_session(runtime, TERMINAL, Resume(sample.taxes), "me")
            await open_session(runtime, TERMINAL, New(), "me")
            assert await runtime.drain()

    child = asyncio.run(grow())
    asyncio.run(end_the_parent(child))
    done = printed(sample.home, "sessions", "prune", "--older-than", "90d", "--yes")
    assert sample.taxes not in done["found"]
    assert sample.chat in done["found"]
    assert done["kept"]["needed"] == 1
    shown = printed(sample.home, "sessions", "show", child)
    assert [turn["messages"][0]["content"] for turn in shown["transcript"]] == ["how much tax", "and in Spain"]
    assert problems(sample.home) == []


def test_prune_keeps_sessions_inherited_through_a_forgotten_one(sample: SampleHome) -> None:
    async def grow() -> tuple[str, str]:
        async with Runtime(Settings(sample.home), providers=[Listens()]) as runtime:
            await runtime.start()
            await open_session(runtime, TERMINAL, Resume(sample.taxes), "me")
            middle = await open_session(runtime, TERMINAL, Branch(), "me")
            await say(runtime, TERMINAL, "me", "in Spain")
            last = await open_session(runtime, TERMINAL, Branch(), "me")
            await say(runtime, TERMINAL, "me", "in Peru")
            await runtime.lifecycle.forget(ForgetSession(middle), owner="me")
            assert await runtime.drain()
        return middle, last

    middle, last = asyncio.run(grow())
    with sqlite3.connect(sample.home / "everthread.db") as database:
        long_ago = time.time() - 200 * DAY_S
        database.execute(
            "UPDATE sessions SET ended_at = ?, active_at = ? WHERE id = ?", (long_ago, long_ago, sample.taxes)
        )
    before = printed(sample.home, "sessions", "show", last)["transcript"]
    assert before[0]["messages"][0]["content"] == "how much tax"
    done = printed(sample.home, "sessions", "prune", "--older-than", "90d", "--yes")
    assert (sample.taxes in done["found"], done["kept"]["needed"]) == (False, 1)

    async def try_all_the_same() -> tuple[int, int]:
        async with Runtime(Settings(sample.home)) as runtime:
            return await runtime.lifecycle.prune([sample.taxes], before=time.time() - DAY_S)

    assert asyncio.run(try_all_the_same()) == (0, 0)
    assert printed(sample.home, "sessions", "show", last)["transcript"] == before
    assert problems(sample.home) == []
