"""Numbered scenarios of problems reported for other agents on messaging platforms."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.fake_platform import FakePlatform
from tests.gateway import ANNA, GatewayFixture, gateway_fixture
from tests.runtime import AsyncDiary, Call, MovableClock, ThreadDiary, until

from everthread import plugins as plugin_hooks
from everthread.commands.registry import COMMANDS
from everthread.config.schema import (
    AccessGrants,
    AccessSettings,
    CompressionSettings,
    GatewaySettings,
    PlatformAccount,
    ProviderSettings,
    ReviewSettings,
)
from everthread.domain.boundary import Resume
from everthread.domain.model import Inbound, NoteTarget, Role, SessionKey, SessionRef, ToolCall, TurnStatus
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.ports.model import ToolSchema, Usage
from everthread.ports.tools import Tool, ToolUse
from everthread.store.unit_of_work import UnitOfWork
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

HOUR_S = 3600.0
IDLE = ResetPolicies(ResetPolicy(idle_s=HOUR_S))
DAILY = ResetPolicies(ResetPolicy(daily_hour=4))
SHORT_TAIL = CompressionSettings(tail_tokens=100)
SLOW = Say("slowly " * 100, chunks=100, delay_s=0.05)


def said_to(request: Any) -> list[str]:
    """Return the user messages of a request."""
    return [str(message.content) for message in request.messages if message.role == "user"]


def model(slow: str = "") -> ModelServer:
    """Model server that quotes the newest message, and is slow if it starts with `slow`."""

    def script(request: Any) -> Say:
        last = said_to(request)[-1]
        return SLOW if slow and last.startswith(slow) else Say(f"You said: {last.splitlines()[0]}")

    return ModelServer(script)


def summarizing(request: Any) -> Say:
    """Script of a model that answers at length, and summarizes."""
    return Say("## Facts\n- boats") if "Bring the summary" in str(request) else Say("of boats and masts " * 200)


class Plugin:
    """Plugin that records the session hooks."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []

    @plugin_hooks.hookimpl
    def on_session_finalize(self, session_id: str, platform: str) -> None:
        self.calls.append(("finalize", session_id, platform))

    @plugin_hooks.hookimpl
    def on_session_reset(self, session_id: str, platform: str) -> None:
        self.calls.append(("reset", session_id, platform))


# --- S14, S20: the end of a session --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["idle", "daily", "reset"])
@pytest.mark.parametrize("state", ["cached", "evicted", "restarted"])
async def test_s14_the_end_of_a_session_delivers_its_transcript_once(tmp_path: Path, how: str, state: str) -> None:
    diary, clock = AsyncDiary(), MovableClock()
    policies = DAILY if how == "daily" else IDLE
    async with model() as server:
        platform = FakePlatform()
        async with gateway_fixture(
            tmp_path, server, platform, providers=(diary,), policies=policies, clock=clock
        ) as fixture:
            await fixture.hear("one")
            await fixture.hear("two")
            old = (await fixture.session()).id
            if state == "evicted":
                fixture.gateway.agent._preparer._kept.clear()  # type: ignore[attr-defined]  # noqa: SLF001
            if state != "restarted":
                await _end(fixture, how, old)
        if state == "restarted":
            async with gateway_fixture(
                tmp_path, server, platform, providers=(diary,), policies=policies, clock=clock
            ) as fixture:
                await _end(fixture, how, old)
    (end,) = diary.book.of("on_session_end", old)
    assert [turn.user_text for turn in end.view.turns] == ["one", "two"]


async def _end(fixture: GatewayFixture, how: str, old: str) -> None:
    if how == "reset":
        await fixture.hear("/reset")
    else:
        await fixture.later(25 * HOUR_S)
        before = len(fixture.platform.texts())
        await until(lambda: fixture.runtime.lanes is not None)
        await _ended(fixture, old)
        await until(lambda: len(fixture.platform.texts()) > before, "a notice")
        assert "has ended" in fixture.platform.texts()[-1]
        # S20: the next expiry check has no effect.
        await fixture.later(25 * HOUR_S)
    await fixture.settled()


async def _ended(fixture: GatewayFixture, session_id: str) -> None:
    for _ in range(2000):
        session = await fixture.runtime.store.read(lambda uow: uow.sessions.get(session_id))
        if session is not None and session.ended_at is not None:
            return
        await fixture.clock.sleep(0.002)
    raise AssertionError("it never ended")


@pytest.mark.parametrize("state", ["cached", "restarted"])
async def test_s14_a_session_in_use_past_its_first_timer_ends_once_when_it_is_idle(tmp_path: Path, state: str) -> None:
    diaries, clock, platform = (AsyncDiary(), ThreadDiary()), MovableClock(), FakePlatform()
    async with model() as server, AsyncExitStack() as stack:
        more: dict[str, Any] = {"policies": IDLE, "clock": clock, "review": ReviewSettings(every_turns=10)}
        start = partial(gateway_fixture, tmp_path, server, platform, providers=diaries, **more)
        fixture = await stack.enter_async_context(start())
        await fixture.hear("one")
        old = (await fixture.session()).id
        first_due = await fixture.runtime.store.read(lambda uow: uow.leases.next_timer())
        assert first_due is not None
        clock.advance(0.6 * HOUR_S)
        await fixture.hear("two")
        if state == "restarted":
            await stack.aclose()
            fixture = await stack.enter_async_context(start())
        await _not_ended_after(fixture, 0.6 * HOUR_S, old)
        assert clock.now() > first_due
        await fixture.hear("three")
        clock.advance(0.5 * HOUR_S)
        await fixture.hear("four")
        # The timer of the third message is due, and nobody writes after that.
        await _not_ended_after(fixture, 0.6 * HOUR_S, old)
        await _not_ended_after(fixture, 0.3 * HOUR_S, old)
        assert all(diary.book.of("on_session_end") == [] for diary in diaries)
        assert not any(b"[A review." in body for body in server.requests)
        await fixture.later(0.2 * HOUR_S)
        await _ended(fixture, old)
        await _checked(fixture, 0.5 * HOUR_S)
        await fixture.hear("another day")
        await until(lambda: any(b"[A review." in body for body in server.requests), "the review of the ended session")
        await fixture.hear("and more")
        assert await _no_review_waits(fixture)
        await fixture.settled()
        for diary in diaries:
            (end,) = diary.book.of("on_session_end")
            said = ["one", "two", "three", "four"]
            assert (end.session, [turn.user_text for turn in end.view.turns]) == (old, said)
            assert diary.book.told(old) == ["switch", *said, "end"]
        assert sum(b"[A review." in body for body in server.requests) == 1
        assert sum("has ended" in text for text in platform.texts()) == 1


async def test_s14_a_review_with_three_notes_delivers_the_transcript_twice(tmp_path: Path) -> None:
    """At the boundary, and after the last note of the review."""
    facts = [{"action": "add", "target": "user", "content": fact} for fact in ("sails", "reads", "lives in Porto")]
    calls = tuple(ToolCall(f"c{number}", "memory", json.dumps(fact)) for number, fact in enumerate(facts))

    def script(request: Any) -> Say:
        if not any("[A review." in text for text in said_to(request)):
            return Say("Yes.")
        return Say("Done.") if request.messages[-1].role == "tool" else Say(calls=calls)

    diary, clock = AsyncDiary(), MovableClock()
    more: dict[str, Any] = {"policies": IDLE, "clock": clock, "review": ReviewSettings(every_turns=10)}
    async with ModelServer(script) as server:
        async with gateway_fixture(tmp_path, server, FakePlatform(), providers=(diary,), **more) as fixture:
            await fixture.hear("one")
            old = (await fixture.session()).id
            await fixture.later(2 * HOUR_S)
            await _ended(fixture, old)
            await fixture.hear("another day")
            assert await _no_review_waits(fixture)
            await until(lambda: len(diary.book.of("on_session_end", old)) > 1, "the close after the review")
            await fixture.settled()
    assert diary.book.told(old) == ["switch", "one", "end", "sails", "reads", "lives in Porto", "end"]


async def _no_review_waits(fixture: GatewayFixture) -> bool:
    for _ in range(500):
        if not await fixture.runtime.store.read(lambda uow: uow.reviews.is_due(fixture.clock.now() + 10**6)):
            return True
        await asyncio.sleep(0.01)
    return False


async def _not_ended_after(fixture: GatewayFixture, seconds: float, session_id: str) -> None:
    await _checked(fixture, seconds)
    session = await fixture.session()
    assert (session.id, session.ended_at) == (session_id, None)


async def _checked(fixture: GatewayFixture, seconds: float) -> None:
    """Let time pass, and wait until no timer is due any more."""
    await fixture.later(seconds)
    for _ in range(2000):
        next_at = await fixture.runtime.store.read(lambda uow: uow.leases.next_timer())
        if next_at is None or next_at > fixture.clock.now():
            return
        await fixture.clock.sleep(0.002)
    raise AssertionError("a timer is still due")


async def test_s14_a_turn_that_runs_past_the_timer_keeps_its_session(tmp_path: Path) -> None:
    """The timer was set by the message before, and is due while the answer to this one is being written."""
    diary, clock = AsyncDiary(), MovableClock()
    async with (
        model(slow="long") as server,
        gateway_fixture(tmp_path, server, providers=(diary,), policies=IDLE, clock=clock) as fixture,
    ):
        await fixture.hear("one")
        old = (await fixture.session()).id
        clock.advance(0.9 * HOUR_S)
        fixture.platform.say("long story")
        await until(lambda: fixture.gateway.worker.running)
        await _not_ended_after(fixture, 2 * HOUR_S, old)
        await fixture.hear("/stop")
        await fixture.hear("two")
        await fixture.later(2 * HOUR_S)
        await _ended(fixture, old)
        await fixture.settled()
        (end,) = diary.book.of("on_session_end")
        assert [turn.user_text for turn in end.view.turns] == ["one", "long story", "two"]


async def test_s14_a_reset_during_an_answer_delivers_the_partial_turn(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with model(slow="long") as server, gateway_fixture(tmp_path, server, providers=(diary,)) as fixture:
        await fixture.hear("one")
        fixture.platform.say("long story")
        await until(lambda: fixture.gateway.worker.running)
        old = (await fixture.session()).id
        await fixture.hear("/new")
        await fixture.settled()
        last = diary.book.of("on_session_end", old)[-1]
        assert [turn.user_text for turn in last.view.turns] == ["one", "long story"]


@pytest.mark.parametrize("is_delivered", [True, False])
async def test_s20_an_expired_session_is_not_ended_again_after_a_restart(tmp_path: Path, is_delivered: bool) -> None:
    """The first process stops after the provider took the close, or while the provider hangs."""
    diary, plugin, clock, platform = AsyncDiary(), Plugin(), MovableClock(), FakePlatform()
    hanging = asyncio.Event()

    async def hang(call: Call) -> None:
        if call.hook == "on_session_end" and not is_delivered:
            await hanging.wait()

    diary.before = hang
    async with model() as server:
        start = partial(
            gateway_fixture,
            tmp_path,
            server,
            platform,
            providers=(diary,),
            plugins=(plugin,),
            policies=IDLE,
            clock=clock,
            drain_s=0.5,
        )
        async with start() as fixture:
            await fixture.hear("one")
            old = (await fixture.session()).id
            await fixture.later(2 * HOUR_S)
            await _ended(fixture, old)
            await until(lambda: any(call.hook == "on_session_end" for call in diary.book.begun), "the close")
        hanging.set()
        async with start() as fixture:
            await _checked(fixture, 2 * HOUR_S)
            await fixture.settled()
            assert await fixture.runtime.store.read(lambda uow: uow.sessions.at(ANNA)[1]) is None
            await fixture.hear("two")
            new = (await fixture.session()).id
            await fixture.hear("three")
            await fixture.settled()
            assert [turn.user_text for turn in await fixture.turns(new)] == ["two", "three"]
            boundaries = await fixture.runtime.store.read(lambda uow: uow.sessions.boundaries(limit=10))
        moves = [(row.kind, row.from_session, row.to_session) for row in reversed(boundaries) if row.kind != "suspend"]
        assert moves == [("new", None, old), ("expire", old, None), ("new", None, new)]
    (end,) = (call for call in diary.book.calls if call.hook == "on_session_end")
    assert (end.session, [turn.user_text for turn in end.view.turns]) == (old, ["one"])
    assert diary.book.told(new) == ["switch", "two", "three"]
    calls = [("finalize", old, "fake"), ("reset", new, "fake"), ("finalize", new, "fake")]
    assert plugin.calls == calls, "the last one is the shutdown"
    assert sum("has ended" in text for text in platform.texts()) == 1


# --- S19 -----------------------------------------------------------------------------------------------------------


async def test_s19_finalize_precedes_reset_on_new_and_expiry_and_runs_for_all_at_shutdown(
    tmp_path: Path,
) -> None:
    plugin, clock = Plugin(), MovableClock()
    async with model() as server:
        async with gateway_fixture(tmp_path, server, plugins=(plugin,), policies=IDLE, clock=clock) as fixture:
            await fixture.hear("one")
            first = (await fixture.session()).id
            await fixture.hear("/new")
            second = (await fixture.session()).id
            await fixture.hear("two")
            await fixture.later(2 * HOUR_S)
            await _ended(fixture, second)
            await fixture.hear("three")
            third = (await fixture.session()).id
            await fixture.hear("hello", chat="43")
            other = (await fixture.session(SessionKey.parse("agent:main:fake:dm:43"))).id
        mine = [call[:2] for call in plugin.calls if call[1] != other]
        assert mine == [
            ("finalize", first),
            ("reset", second),
            ("finalize", second),
            ("reset", third),
            ("finalize", third),
        ]
        assert ("finalize", other, "fake") in plugin.calls


async def test_s19_shutdown_after_a_compression_finalizes_only_the_session_served_now(tmp_path: Path) -> None:
    plugin, diary, platform = Plugin(), AsyncDiary(), FakePlatform()
    async with ModelServer(summarizing) as server:
        start = partial(
            gateway_fixture, tmp_path, server, platform, providers=(diary,), plugins=(plugin,), compression=SHORT_TAIL
        )
        async with start() as fixture:
            for text in ("one", "two", "three"):
                await fixture.hear(text)
            old = (await fixture.session()).id
            (done,) = await fixture.hear("/compress")
            assert "The full text is still stored" in done, done
            tip = await fixture.session()
            assert tip.parent_id == old
            await fixture.settled()
            assert plugin.calls == [], "a compression finalizes nothing"
            closed = diary.book.of("on_session_end")
            assert [call.session for call in closed] == [old]
        assert plugin.calls == [("finalize", tip.id, "fake")]
        async with start() as fixture:
            # It serves nothing, so it has nothing to finalize.
            await fixture.settled()
            assert (await fixture.session()).id == tip.id
        assert plugin.calls == [("finalize", tip.id, "fake")]
        async with start() as fixture:
            await fixture.hear("four")
            assert [turn.user_text for turn in await fixture.turns(tip.id)] == ["four"]
        assert plugin.calls == [("finalize", tip.id, "fake")] * 2
        assert diary.book.of("on_session_end") == closed


# --- S21 -----------------------------------------------------------------------------------------------------------


class Pinboard(AsyncDiary):
    """Provider with a tool."""

    def __init__(self) -> None:
        super().__init__("pinboard")
        self.pinned: list[tuple[str, str, str]] = []

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return [{"name": "pin", "description": "Pin a text.", "parameters": {"type": "object", "properties": {}}}]

    async def handle_tool_call(self, name: str, args: Mapping[str, Any], *, ref: SessionRef) -> str:
        self.pinned.append((ref.owner, ref.session_id, str(args["text"])))
        return "pinned"


async def test_s21_tool_calls_of_two_users_at_the_same_time_act_on_their_own_owner(tmp_path: Path) -> None:
    people, board = {"42": "Anna", "43": "Bob"}, Pinboard()
    before_the_calls, after_the_calls = asyncio.Barrier(2), asyncio.Barrier(2)

    async def meet(arguments: Mapping[str, Any], use: ToolUse) -> str:
        async with asyncio.timeout(10):
            await (after_the_calls if arguments["again"] else before_the_calls).wait()
        return "met"

    def script(request: Any) -> Say:
        name, _, rest = said_to(request)[-1].splitlines()[0].partition(" ")
        if rest != "at work":
            return Say("Aye.")
        calls = {
            0: [("meet", {"again": False})],
            1: [
                ("memory", {"action": "add", "target": "user", "content": f"{name} sails"}),
                ("pin", {"text": name}),
                ("session_search", {"query": "secret"}),
            ],
            4: [("meet", {"again": True})],
        }
        done = sum(message.role == "tool" for message in request.messages)
        made = [ToolCall(f"c{done}{number}", *call) for number, call in enumerate(_as_json(calls.get(done, [])))]
        return Say(calls=tuple(made)) if made else Say("Done.")

    tool = Tool(ToolSchema("meet", "Wait for the other.", {"type": "object", "properties": {}}), meet)
    access = AccessSettings(guests=AccessGrants(("meet", "pin")))
    async with (
        ModelServer(script) as server,
        gateway_fixture(tmp_path, server, providers=(board,), extra_tools=(tool,), access=access) as fixture,
    ):
        for chat, name in people.items():
            await fixture.hear(f"the secret of {name}", chat)
            await fixture.hear("/new", chat)
        for chat, name in people.items():
            fixture.platform.say(f"{name} at work", chat=chat)
        await until(lambda: all(fixture.platform.texts(chat)[-1] == "Done." for chat in people), "both answers")
        await fixture.rest()
        await fixture.settled()
        for chat, name in people.items():
            session = await fixture.session(SessionKey.parse(f"agent:main:fake:dm:{chat}"))
            notes = await fixture.runtime.store.read(
                lambda uow, owner=session.owner: uow.notes.current(owner, NoteTarget.USER)
            )
            assert [(note.content, note.session_id) for note in notes] == [(f"{name} sails", session.id)]
            (written,) = board.book.of("on_memory_write", session.id)
            assert (written.ref.owner, written.text) == (session.owner, f"{name} sails")
            assert [pin for pin in board.pinned if pin[2] == name] == [(session.owner, session.id, name)]
            (turn,) = await fixture.turns(session.id)
            found = " ".join(message.content for message in turn.messages if message.role is Role.TOOL)
            assert [other for other in people.values() if f"the secret of {other}" in found] == [name]


def _as_json(calls: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, str]]:
    return [(name, json.dumps(arguments)) for name, arguments in calls]


# --- S22, S23 ------------------------------------------------------------------------------------------------------


async def test_s22_a_person_continues_a_conversation_on_another_platform(tmp_path: Path) -> None:
    """One person on two platforms is one owner: a session started on one platform is resumed on the other."""
    gateway = GatewaySettings(links={"anna": ("fake:42", "fake:43")})
    async with model() as server, gateway_fixture(tmp_path, server, gateway=gateway) as fixture:
        await fixture.hear("the lamp is green")
        await fixture.hear("/title Lamp")
        mine = (await fixture.session()).id
        (back,) = await fixture.hear("/resume Lamp", chat="43")
        assert "Resumed" in back
        await fixture.hear("which colour?", chat="43")
        assert (await fixture.session(SessionKey.parse("agent:main:fake:dm:43"))).id == mine
        assert b"the lamp is green" in server.requests[-1]
        assert (await fixture.session()).id == mine, "the session does not continue on the first platform"


async def test_s22_handoff_continues_on_another_platform(tmp_path: Path) -> None:
    gateway = GatewaySettings(links={"anna": ("fake:42", "tower:7")})
    tower = FakePlatform("tower")
    async with model() as server, gateway_fixture(tmp_path, server, others=(tower,), gateway=gateway) as fixture:
        tower.say("hello", chat="7")
        await until(lambda: tower.texts("7"))
        await fixture.hear("the lamp is green")
        mine = (await fixture.session()).id
        assert "tower" in (await fixture.hear("/handoff nowhere"))[0]
        (answer,) = await fixture.hear("/handoff tower")
        assert "continues on tower" in answer
        await until(lambda: "Continuing" in tower.texts("7")[-1], "a word on the other platform")
        tower.say("which colour?", chat="7")
        await until(lambda: tower.texts("7")[-1] == "You said: which colour?")
        assert (await fixture.session(SessionKey.parse("agent:main:tower:dm:7"))).id == mine
        assert b"the lamp is green" in server.requests[-1]


async def test_s23_a_branch_has_the_history_and_both_sessions_continue(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with model() as server, gateway_fixture(tmp_path, server, providers=(diary,)) as fixture:
        await fixture.hear("one")
        parent = (await fixture.session()).id
        await fixture.hear("/branch Other way")
        child = await fixture.session()
        assert child.parent_id == parent
        await fixture.hear("two")
        assert b"one" in server.requests[-1]
        await fixture.hear(f"/resume {parent}")
        await fixture.hear("three")
        assert b'"two"' not in server.requests[-1]
        await fixture.settled()
        switch = diary.book.of("on_session_switch", child.id)[0]
        assert switch.more["reason"] == "branch"
        assert [turn.user_text for turn in await fixture.turns(parent)] == ["one", "three"]
        assert [turn.user_text for turn in await fixture.turns(child.id)] == ["two"]


# --- S24, S25 ------------------------------------------------------------------------------------------------------


async def test_s25_turns_on_a_platform_are_reviewed_with_the_same_prefix(tmp_path: Path) -> None:
    async with model() as server, gateway_fixture(tmp_path, server, review=ReviewSettings(every_turns=10)) as fixture:
        for number in range(10):
            await fixture.hear(f"message {number}")
        await until(lambda: any(b"[A review." in body for body in server.requests), "a review")
        review = next(body for body in server.requests if b"[A review." in body)
        last = next(body for body in server.requests if b'"message 9"' in body)
        same = last.index(b'"message 9"')
        assert review[:same] == last[:same]
        assert len(await fixture.turns()) == 10
        assert not any("review" in text.lower() for text in fixture.platform.texts())


@pytest.mark.parametrize("told", [True, False])
async def test_s25_notes_of_a_review_are_announced_in_the_chat_if_enabled(tmp_path: Path, told: bool) -> None:
    note = ToolCall("c1", "memory", '{"action": "add", "target": "user", "content": "Sails a boat called Bruno"}')
    steps = iter([(note,)])

    def script(request: Any) -> Say:
        return Say(calls=next(steps, ())) if "[A review." in str(request) else Say("Aye.")

    gateway = GatewaySettings(review_notices=told)
    async with (
        ModelServer(script) as server,
        gateway_fixture(tmp_path, server, review=ReviewSettings(every_turns=2), gateway=gateway) as fixture,
    ):
        for text in ("I sail", "a boat called Bruno"):
            await fixture.hear(text)
        owner = (await fixture.session()).owner

        await until(lambda: sum(b"[A review." in body for body in server.requests) == 2, "the end of a review")
        assert await fixture.runtime.store.read(lambda uow: uow.notes.current(owner, NoteTarget.USER))
        if told:
            await until(lambda: len(fixture.platform.texts()) == 3, "a line")
            assert "Sails a boat called Bruno" in fixture.platform.texts()[-1]
            assert "/memory undo" in fixture.platform.texts()[-1]
        await asyncio.sleep(0.3)
        assert len(fixture.platform.texts()) == 2 + told


async def test_s25_notes_of_a_review_are_announced_by_the_next_process_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = ToolCall("c1", "memory", '{"action": "add", "target": "user", "content": "Sails a boat called Bruno"}')
    steps = iter([(note,)])

    def script(request: Any) -> Say:
        return Say(calls=next(steps, ())) if "[A review." in str(request) else Say("Aye.")

    async def nothing() -> None:
        pass

    more: dict[str, Any] = {"review": ReviewSettings(every_turns=2), "gateway": GatewaySettings(review_notices=True)}
    async with ModelServer(script) as server:
        async with gateway_fixture(tmp_path, server, **more) as fixture:
            # Simulate a crash right after the end of the review was stored: suppress everything that follows.
            monkeypatch.setattr(fixture.gateway.outbox, "put", lambda *_: None)
            monkeypatch.setattr(fixture.gateway.outbox, "sweep", nothing)
            for text in ("I sail", "a boat called Bruno"):
                fixture.platform.say(text)
            await until(lambda: sum(b"[A review." in body for body in server.requests) == 2, "the end of a review")
            assert await _no_review_waits(fixture)
            assert not fixture.platform.texts()
        async with gateway_fixture(tmp_path, server, **more) as fixture:
            await until(lambda: len(fixture.platform.texts()) == 3, "two answers and a line")
            assert "Sails a boat called Bruno" in fixture.platform.texts()[-1]


async def test_s24_a_long_conversation_on_a_platform_is_compressed_and_continues(tmp_path: Path) -> None:
    """All keys move to the new session, the reply reaches the chat of the question, and no turn is lost."""
    answers = Say("of boats and masts " * 500, usage=Usage(9_000, 3_000))

    def script(request: Any) -> Say:
        return Say("## Facts\n- boats") if "Bring the summary" in str(request) else answers

    async with ModelServer(script) as server:
        endpoints = {"stub": ProviderSettings("openai_compat", server.base_url, context_tokens=20_000)}
        async with gateway_fixture(
            tmp_path, server, endpoints=endpoints, compression=CompressionSettings(tail_tokens=100)
        ) as fixture:
            await fixture.hear("one")
            # The first session, or the one it has been compressed into by now.
            early, desk = await fixture.session(), SessionKey.parse("agent:main:cli:dm:desk")
            await fixture.runtime.lifecycle.cross(desk, Resume(early.id), owner=early.owner)
            for text in ("two", "three", "four"):
                await fixture.hear(text)
            await until(lambda: any(b"Bring the summary" in body for body in server.requests), "a summary")
            await fixture.hear("five")
            tip = await fixture.session()
            assert tip.parent_id is not None
            assert (await fixture.session(desk)).id == tip.id
            said: set[str] = set()
            lineage: str | None = tip.id
            while lineage is not None:
                said |= {turn.user_text for turn in await fixture.turns(lineage)}
                lineage = await fixture.runtime.store.read(partial(_parent, session_id=lineage))
            assert said == {"one", "two", "three", "four", "five"}, "a stored turn is missing"
            assert b"## Facts" in server.requests[-1]
            (found, *_) = await fixture.hear("/search three")
            assert "three" in found


def _parent(uow: UnitOfWork, session_id: str) -> str | None:
    session = uow.sessions.get(session_id)
    return session.parent_id if session is not None else None


# --- S26, S29 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
async def test_s26_a_command_with_invalid_arguments_is_answered_with_an_explanation(tmp_path: Path, name: str) -> None:
    async with (
        model() as server,
        gateway_fixture(tmp_path, server, gateway=GatewaySettings(admin_commands=())) as fixture,
    ):
        await fixture.hear("hello")
        for nonsense in ("", "\x00\x01", "x" * 3000, "-1", "999999999999", "; DROP TABLE sessions"):
            (answer, *_) = await fixture.hear(f"/{name} {nonsense}")
            assert answer.strip()
            assert "Traceback" not in answer
            assert "went wrong inside" not in answer
        await fixture.rest()


async def test_s26_an_unknown_command_suggests_the_nearest(tmp_path: Path) -> None:
    async with model() as server, gateway_fixture(tmp_path, server) as fixture:
        (answer,) = await fixture.hear("/nwe")
        assert "Did you mean /new" in answer


@pytest.mark.parametrize("busy", ["queue", "interrupt", "steer"])
async def test_s29_a_message_during_an_answer_follows_the_busy_setting(tmp_path: Path, busy: Any) -> None:
    account = PlatformAccount("fake", allow_all=True, busy=busy)
    async with model(slow="long") as server, gateway_fixture(tmp_path, server, account=account) as fixture:
        fixture.platform.say("long story")
        await until(lambda: fixture.gateway.worker.running)
        await fixture.clock.sleep(0.2)
        fixture.platform.say("wait")
        wanted = 1 if busy == "steer" else 2
        await until(lambda: len(fixture.platform.texts()) >= wanted)
        await fixture.rest()
        turns = await fixture.turns()
        if busy == "interrupt":
            assert [turn.status for turn in turns] == [TurnStatus.INTERRUPTED, TurnStatus.DONE]
            assert turns[0].assistant_text.startswith("slowly")
            assert fixture.platform.texts()[-1] == "You said: wait"
        else:
            assert all(turn.status is TurnStatus.DONE for turn in turns)
            assert {text for turn in turns for text in turn.user_text.split("\n")} == {"long story", "wait"}


async def test_s29_stop_keeps_the_partial_answer(tmp_path: Path) -> None:
    async with model(slow="long") as server, gateway_fixture(tmp_path, server) as fixture:
        fixture.platform.say("long story")
        await until(lambda: fixture.gateway.worker.running)
        await fixture.clock.sleep(0.3)
        fixture.platform.say("/stop")
        await until(lambda: any("Stopped" in text for text in fixture.platform.texts()))
        await fixture.rest()
        (turn,) = await fixture.turns()
        assert turn.status is TurnStatus.INTERRUPTED
        assert any(text.startswith("slowly") for text in fixture.platform.texts())


# --- Commands and crashes --------------------------------------------------------------------------------------------


async def test_a_command_started_before_a_restart_is_not_executed_twice(tmp_path: Path) -> None:
    """The process died after /undo had removed a turn and before the command was confirmed."""
    async with model() as server:
        platform = FakePlatform()
        async with gateway_fixture(tmp_path, server, platform) as fixture:
            await fixture.hear("one")
            await fixture.hear("two")
            await fixture.hear("three")
        async with gateway_fixture(tmp_path, server, platform) as fixture:
            lifecycle = fixture.runtime.lifecycle
            row, _ = await lifecycle.accept(Inbound(ANNA, "fake:42", "/undo", "bot", "u1", command=True))
            from everthread.domain.boundary import Rewind

            await lifecycle.cross(ANNA, Rewind(1), owner="fake:42", command_id=row.id)
        async with gateway_fixture(tmp_path, server, platform) as fixture:
            await until(lambda: "restart" in fixture.platform.texts()[-1])
            await fixture.rest()
            session = await fixture.session()
            view = await fixture.runtime.store.read(lambda uow: uow.turns.view(session))
            assert [turn.user_text for turn in view.turns] == ["one", "two"]


async def test_a_message_behind_a_pending_command_is_not_answered_before_it(tmp_path: Path) -> None:
    """Both were accepted before the process died: the message after /new belongs to the new conversation."""
    async with model() as server:
        platform = FakePlatform()
        async with gateway_fixture(tmp_path, server, platform) as fixture:
            await fixture.hear("one")
            old = (await fixture.session()).id
        async with gateway_fixture(tmp_path, server, platform, drain_s=0) as fixture:
            await fixture.gateway.stop(0)
            lifecycle = fixture.runtime.lifecycle
            await lifecycle.accept(Inbound(ANNA, "fake:42", "before", "bot", "u1"))
            await lifecycle.accept(Inbound(ANNA, "fake:42", "/new", "bot", "u2", command=True))
            await lifecycle.accept(Inbound(ANNA, "fake:42", "after", "bot", "u3"))
        async with gateway_fixture(tmp_path, server, platform) as fixture:
            await until(lambda: fixture.platform.texts()[-1] == "You said: after")
            assert [(turn.user_text, turn.status) for turn in await fixture.turns(old)] == [
                ("one", TurnStatus.DONE),
                ("before", TurnStatus.SET_ASIDE),
            ]
            assert [turn.user_text for turn in await fixture.turns()] == ["after"]
