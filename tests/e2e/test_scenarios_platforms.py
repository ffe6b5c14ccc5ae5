"""Numbered scenarios of problems reported for other agents: on a fake platform and on the emulated Bot API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.platform_scenarios import Where, ended, later, platform_fixture, running, seen, session_of, turns_of
from tests.runtime import AsyncDiary, until

from everthread.domain.boundary import New
from everthread.domain.model import Inbound, SessionKind, TurnStatus
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

pytestmark = [pytest.mark.timeout(60), pytest.mark.parametrize("where", ["fake", "telegram"])]

HOUR_S = 3600.0
IDLE = ResetPolicies(ResetPolicy(idle_s=HOUR_S))
DAILY = ResetPolicies(ResetPolicy(daily_hour=4))
SLOW = Say("slowly " * 100, chunks=100, delay_s=0.05)


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the locks that all homes share in the directory of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def model(slow: str = "") -> ModelServer:
    """Model server that quotes the newest message, and is slow if it starts with `slow`."""

    def script(request: Any) -> Say:
        last = [str(message.content) for message in request.messages if message.role == "user"][-1]
        return SLOW if slow and last.startswith(slow) else Say(f"You said: {last.splitlines()[0]}")

    return ModelServer(script)


async def test_s15_the_expiry_of_a_scheduled_session_reaches_no_provider(tmp_path: Path, where: Where) -> None:
    diary = AsyncDiary()
    async with model() as server, platform_fixture(where, tmp_path, server, providers=(diary,), policies=IDLE) as there:
        # A bot can only write to users who have written to it.
        await there.hear("/help")
        await there.runtime.lifecycle.cross(there.ann, New(kind=SessionKind.CRON), owner="me")
        await there.runtime.lifecycle.accept(Inbound(there.ann, "me", "do your work"))
        there.gateway.worker.wake(there.ann)
        await seen(there, lambda texts: texts[1:] == ["You said: do your work"], "the work's answer")
        session = await session_of(there)
        await later(there, 2 * HOUR_S)
        await ended(there, session.id)
        assert await there.runtime.drain(8.0)
        assert diary.book.effects == []


@pytest.mark.parametrize("how", ["idle", "daily", "new"])
async def test_s16_the_next_message_runs_in_the_new_session_and_not_in_the_old(
    tmp_path: Path, where: Where, how: str
) -> None:
    policies = DAILY if how == "daily" else IDLE
    async with model() as server, platform_fixture(where, tmp_path, server, policies=policies) as there:
        await there.hear("apple")
        old = (await session_of(there)).id
        if how == "new":
            await there.hear("/new")
        else:
            there.clock.ahead_s += 25 * HOUR_S
        await there.hear("two")
        await there.hear("three")
        new = (await session_of(there)).id
        assert new != old
        assert [turn.user_text for turn in await turns_of(there, old)] == ["apple"]
        assert [turn.user_text for turn in await turns_of(there, new)] == ["two", "three"]
        asked = server.requests[-1]
        assert b"three" in asked
        assert b"two" in asked
        assert b"apple" not in asked


async def test_s17_after_resume_the_next_message_has_the_resumed_history(tmp_path: Path, where: Where) -> None:
    diary = AsyncDiary()
    async with model(slow="long") as server, platform_fixture(where, tmp_path, server, providers=(diary,)) as there:
        await there.hear("the lamp is green")
        first = (await session_of(there)).id
        await there.hear("/new")
        await running(there, "long story")
        await there.hear(f"/resume {first}")
        await there.hear("which colour?")
        assert (await session_of(there)).id == first
        assert b"the lamp is green" in server.requests[-1]
        assert await there.runtime.drain(8.0)
        assert diary.book.of("sync_turn", first)[-1].text == "which colour?"
        assert [turn.user_text for turn in await turns_of(there, first)] == ["the lamp is green", "which colour?"]


@pytest.mark.parametrize("stream", [False, True])
async def test_s18_a_late_turn_stays_in_the_old_session_and_its_reply_is_not_posted(
    tmp_path: Path, where: Where, stream: bool
) -> None:
    async with model(slow="long") as server, platform_fixture(where, tmp_path, server, stream=stream) as there:
        old = await running(there, "long story")
        if stream:
            await seen(there, lambda texts: texts, "a beginning")
        await there.hear("/new")
        assert (await there.hear("hello"))[-1] == "You said: hello"
        begun = [text for text in await there.texts() if "slowly" in text]
        assert all(text.endswith("(stopped)") for text in begun)
        assert len(begun) == stream
        (late,) = await turns_of(there, old)
        assert late.status is TurnStatus.LATE
        assert await there.runtime.store.read(lambda uow: uow.slots.of_session(old)) == ()


async def test_s22_resume_finds_the_newest_session_of_a_title_and_lists_without_one(
    tmp_path: Path, where: Where
) -> None:
    async with model() as server, platform_fixture(where, tmp_path, server) as there:
        await there.hear("hello")
        await there.hear("/title My Project")
        mine = (await session_of(there)).id
        await there.hear("/new")
        await there.hear("something else")
        (listed,) = await there.hear("/resume")
        assert "My Project" in listed
        assert f"/resume {mine}" in await there.offered()
        (back,) = await there.hear("/resume My Project")
        assert "Resumed" in back
        assert (await session_of(there)).id == mine
        assert "already" in (await there.hear("/resume My Project"))[0]
        assert "Did you mean" in (await there.hear("/resume My Projekt"))[0]
        assert "no session" in (await there.hear("/resume zzzz"))[0]


async def test_s22_the_session_of_another_user_cannot_be_resumed(tmp_path: Path, where: Where) -> None:
    async with model() as server, platform_fixture(where, tmp_path, server) as there:
        await there.hear("secret plan")
        await there.hear("/title My Project")
        mine = (await session_of(there)).id
        await there.hear("hi", "bob")
        for name in ("My Project", mine, mine[:12], "1"):
            (answer,) = await there.hear(f"/resume {name}", "bob")
            assert "no session" in answer.lower() or "no other" in answer, answer
            assert "secret" not in answer


@pytest.mark.parametrize("command", ["/sessions", "/resume", "/resume My Project", "/memory", "/search plan"])
async def test_s22_private_data_is_not_shown_in_a_group(tmp_path: Path, where: Where, command: str) -> None:
    """In a group each user has a session of their own, and all members read the replies."""
    async with model() as server, platform_fixture(where, tmp_path, server) as there:
        await there.hear("secret plan")
        await there.hear("/title My Project")
        await there.say_in_a_group(command)
        await until(lambda: there.gateway.outbox.waiting == 0 and not there.gateway.worker.busy, "rest")
        for _ in range(1000):
            if await there.group_texts():
                break
            await there.clock.sleep(0.01)
        assert await there.group_texts() == ["Ask me that in a private chat: here others would read it."]
