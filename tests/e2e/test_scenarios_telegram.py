"""What went wrong for people elsewhere, on Telegram: each with its number, through the emulated Bot API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.house import AsyncDiary, MovableClock, until
from tests.telegram_town import ANN, BOB, Town, town

from everthread.bootstrap import TIMERS_LANE
from everthread.domain.boundary import New
from everthread.domain.model import ChatType, Inbound, Kind, SessionKey, TurnStatus
from everthread.domain.policy import ResetPolicies, ResetPolicy
from everthread.testing.model_replies import Say
from everthread.testing.model_server import ModelServer
from everthread.testing.telegram import wire

pytestmark = pytest.mark.timeout(60)

HOUR_S = 3600.0
IDLE = ResetPolicies(ResetPolicy(idle_s=HOUR_S))
DAILY = ResetPolicies(ResetPolicy(daily_hour=4))
SLOW = Say("slowly " * 100, chunks=100, delay_s=0.05)


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def model(slow: str = "") -> ModelServer:
    """Quotes what was said last; slow with what begins like this."""

    def script(request: Any) -> Say:
        last = [str(message.content) for message in request.messages if message.role == "user"][-1]
        return SLOW if slow and last.startswith(slow) else Say(f"You said: {last.splitlines()[0]}")

    return ModelServer(script)


async def _running(there: Town, text: str) -> str:
    """Say something that takes long, and wait until it is being answered; the session's id."""
    await there.people.say(ANN, text)
    await until(lambda: there.gateway.working.running, "a turn that runs")
    return (await there.session()).id


async def test_s15_a_scheduled_session_that_expires_concerns_no_provider(tmp_path: Path) -> None:
    diary, clock = AsyncDiary(), MovableClock()
    key = SessionKey("main", "telegram", ChatType.DM, str(ANN))
    async with model() as server, town(tmp_path, server, providers=(diary,), policies=IDLE, clock=clock) as there:
        await there.hear("/help")
        await there.runtime.lifecycle.cross(key, New(kind=Kind.CRON), owner="me")
        await there.runtime.lifecycle.accept(Inbound(key, "me", "do your work"))
        there.gateway.working.wake(key)
        await there.people.until(lambda: there.people.texts(ANN)[1:] == ["You said: do your work"], "the work's answer")
        old = (await there.session(key)).id
        clock.ahead_s += 2 * HOUR_S
        there.runtime.lanes.wake(TIMERS_LANE)
        await _ended(there, old)
        assert await there.runtime.drain(8.0)
        assert diary.book.effects == []


async def _ended(there: Town, session_id: str) -> None:
    for _ in range(4000):
        session = await there.runtime.store.read(lambda uow: uow.sessions.get(session_id))
        if session is not None and session.ended_at is not None:
            return
        await there.runtime.clock.sleep(0.002)
    raise AssertionError("it never ended")


@pytest.mark.parametrize("how", ["idle", "daily", "new"])
async def test_s16_the_next_message_runs_in_the_new_session_and_nothing_is_added_to_the_old(
    tmp_path: Path, how: str
) -> None:
    clock, policies = MovableClock(), DAILY if how == "daily" else IDLE
    async with model() as server, town(tmp_path, server, policies=policies, clock=clock) as there:
        await there.hear("apple")
        old = (await there.session()).id
        if how == "new":
            await there.hear("/new")
        else:
            clock.ahead_s += 25 * HOUR_S
        await there.hear("two")
        await there.hear("three")
        new = (await there.session()).id
        assert new != old
        assert [turn.user_text for turn in await there.turns(old)] == ["apple"]
        assert [turn.user_text for turn in await there.turns(new)] == ["two", "three"]
        asked = server.requests[-1]
        assert b"three" in asked
        assert b"two" in asked
        assert b"apple" not in asked


async def test_s17_after_resume_the_next_message_has_the_resumed_history(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with model(slow="long") as server, town(tmp_path, server, providers=(diary,)) as there:
        await there.hear("the lamp is green")
        first = (await there.session()).id
        await there.hear("/new")
        await _running(there, "long story")
        await there.hear(f"/resume {first}")
        await there.hear("which colour?")
        assert (await there.session()).id == first
        assert b"the lamp is green" in server.requests[-1]
        assert await there.runtime.drain(8.0)
        assert diary.book.of("sync_turn", first)[-1].text == "which colour?"
        assert [turn.user_text for turn in await there.turns(first)] == ["the lamp is green", "which colour?"]


@pytest.mark.parametrize("stream", [False, True])
async def test_s18_a_late_turn_stays_in_the_old_session_and_its_reply_is_not_posted(
    tmp_path: Path, stream: bool
) -> None:
    async with model(slow="long") as server, town(tmp_path, server, account={"stream": stream}) as there:
        old = await _running(there, "long story")
        if stream:
            await there.people.until(lambda: there.people.texts(ANN), "a beginning")
        await there.hear("/new")
        assert (await there.hear("hello"))[-1] == "You said: hello"
        begun = [text for text in there.people.texts(ANN) if "slowly" in text]
        assert all(text.endswith("(stopped)") for text in begun)
        assert len(begun) == stream
        (late,) = await there.turns(old)
        assert late.status is TurnStatus.LATE


async def test_s22_resume_finds_the_newest_of_a_title_and_lists_without_one(tmp_path: Path) -> None:
    async with model() as server, town(tmp_path, server) as there:
        await there.hear("hello")
        await there.hear("/title My Project")
        mine = (await there.session()).id
        await there.hear("/new")
        await there.hear("something else")
        (listed,) = await there.hear("/resume")
        assert "My Project" in listed
        shown = (await there.people.messages(ANN))[-1]
        assert f"/resume {mine}" in [command for row in shown.buttons for _, command in row]
        (back,) = await there.hear("/resume My Project")
        assert "Back in" in back
        assert (await there.session()).id == mine
        assert "already" in (await there.hear("/resume My Project"))[0]
        assert "did you mean" in (await there.hear("/resume My Projekt"))[0]
        assert "no session" in (await there.hear("/resume zzzz"))[0]


async def test_s22_nobody_resumes_somebody_elses_conversation(tmp_path: Path) -> None:
    async with model() as server, town(tmp_path, server) as there:
        await there.hear("secret plan")
        await there.hear("/title My Project")
        mine = (await there.session()).id
        await there.hear("hi", BOB)
        for name in ("My Project", mine, mine[:12], "1"):
            (answer,) = await there.hear(f"/resume {name}", BOB)
            assert "no session" in answer.lower() or "no other" in answer, answer
            assert "secret" not in answer


async def test_s22_what_is_private_is_not_shown_where_others_read_along(tmp_path: Path) -> None:
    async with model() as server, town(tmp_path, server) as there:
        await there.hear("secret plan")
        group = await there.people.group(wire.Group(-1001, "The office"))
        await there.people.say(ANN, "/sessions", chat=group)
        await there.people.until(lambda: there.people.texts(group), "an answer")
        assert there.people.texts(group) == ["Ask me that where we are alone: others would read here what is yours."]
