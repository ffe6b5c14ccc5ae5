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
    async with (
        model() as server,
        platform_fixture(where, tmp_path, server, providers=(diary,), policies=IDLE) as fixture,
    ):
        # A bot can only write to users who have written to it.
        await fixture.hear("/help")
        await fixture.runtime.lifecycle.cross(fixture.ann, New(kind=SessionKind.CRON), owner="me")
        await fixture.runtime.lifecycle.accept(Inbound(fixture.ann, "me", "do your work"))
        fixture.gateway.worker.wake(fixture.ann)
        await seen(fixture, lambda texts: texts[1:] == ["You said: do your work"], "the work's answer")
        session = await session_of(fixture)
        await later(fixture, 2 * HOUR_S)
        await ended(fixture, session.id)
        assert await fixture.runtime.drain(8.0)
        assert diary.book.effects == []


@pytest.mark.parametrize("how", ["idle", "daily", "new"])
async def test_s16_the_next_message_runs_in_the_new_session_and_not_in_the_old(
    tmp_path: Path, where: Where, how: str
) -> None:
    policies = DAILY if how == "daily" else IDLE
    async with model() as server, platform_fixture(where, tmp_path, server, policies=policies) as fixture:
        await fixture.hear("apple")
        old = (await session_of(fixture)).id
        if how == "new":
            await fixture.hear("/new")
        else:
            fixture.clock.advance(25 * HOUR_S)
        await fixture.hear("two")
        await fixture.hear("three")
        new = (await session_of(fixture)).id
        assert new != old
        assert [turn.user_text for turn in await turns_of(fixture, old)] == ["apple"]
        assert [turn.user_text for turn in await turns_of(fixture, new)] == ["two", "three"]
        asked = server.requests[-1]
        assert b"three" in asked
        assert b"two" in asked
        assert b"apple" not in asked


async def test_s17_after_resume_the_next_message_has_the_resumed_history(tmp_path: Path, where: Where) -> None:
    diary = AsyncDiary()
    async with model(slow="long") as server, platform_fixture(where, tmp_path, server, providers=(diary,)) as fixture:
        await fixture.hear("the lamp is green")
        first = (await session_of(fixture)).id
        await fixture.hear("/new")
        await running(fixture, "long story")
        await fixture.hear(f"/resume {first}")
        await fixture.hear("which colour?")
        assert (await session_of(fixture)).id == first
        assert b"the lamp is green" in server.requests[-1]
        assert await fixture.runtime.drain(8.0)
        assert diary.book.of("sync_turn", first)[-1].text == "which colour?"
        assert [turn.user_text for turn in await turns_of(fixture, first)] == ["the lamp is green", "which colour?"]


@pytest.mark.parametrize("stream", [False, True])
async def test_s18_a_late_turn_stays_in_the_old_session_and_its_reply_is_not_posted(
    tmp_path: Path, where: Where, stream: bool
) -> None:
    async with model(slow="long") as server, platform_fixture(where, tmp_path, server, stream=stream) as fixture:
        old = await running(fixture, "long story")
        if stream:
            await seen(fixture, lambda texts: texts, "a beginning")
        await fixture.hear("/new")
        assert (await fixture.hear("hello"))[-1] == "You said: hello"
        begun = [text for text in await fixture.texts() if "slowly" in text]
        assert all(text.endswith("(stopped)") for text in begun)
        assert len(begun) == stream
        (late,) = await turns_of(fixture, old)
        assert late.status is TurnStatus.LATE
        assert await fixture.runtime.store.read(lambda uow: uow.slots.of_session(old)) == ()


async def test_s22_resume_finds_the_newest_session_of_a_title_and_lists_without_one(
    tmp_path: Path, where: Where
) -> None:
    async with model() as server, platform_fixture(where, tmp_path, server) as fixture:
        await fixture.hear("hello")
        await fixture.hear("/title My Project")
        mine = (await session_of(fixture)).id
        await fixture.hear("/new")
        await fixture.hear("something else")
        (listed,) = await fixture.hear("/resume")
        assert "My Project" in listed
        assert f"/resume {mine}" in await fixture.offered()
        (back,) = await fixture.hear("/resume My Project")
        assert "Resumed" in back
        assert (await session_of(fixture)).id == mine
        assert "already" in (await fixture.hear("/resume My Project"))[0]
        assert "Did you mean" in (await fixture.hear("/resume My Projekt"))[0]
        assert "no session" in (await fixture.hear("/resume zzzz"))[0]


async def test_s22_the_session_of_another_user_cannot_be_resumed(tmp_path: Path, where: Where) -> None:
    async with model() as server, platform_fixture(where, tmp_path, server) as fixture:
        await fixture.hear("secret plan")
        await fixture.hear("/title My Project")
        mine = (await session_of(fixture)).id
        await fixture.hear("hi", "bob")
        for name in ("My Project", mine, mine[:12], "1"):
            (answer,) = await fixture.hear(f"/resume {name}", "bob")
            assert "no session" in answer.lower() or "no other" in answer, answer
            assert "secret" not in answer


@pytest.mark.parametrize("command", ["/sessions", "/resume", "/resume My Project", "/memory", "/search plan"])
async def test_s22_private_data_is_not_shown_in_a_group(tmp_path: Path, where: Where, command: str) -> None:
    """In a group each user has a session of their own, and all members read the replies."""
    async with model() as server, platform_fixture(where, tmp_path, server) as fixture:
        await fixture.hear("secret plan")
        await fixture.hear("/title My Project")
        await fixture.say_in_a_group(command)
        await until(lambda: fixture.gateway.outbox.waiting == 0 and not fixture.gateway.worker.busy, "rest")
        for _ in range(1000):
            if await fixture.group_texts():
                break
            await fixture.clock.sleep(0.01)
        assert await fixture.group_texts() == ["Ask me that in a private chat: here others would read it."]
