"""Contract of memory providers. Subclass `ProviderContract` in a test module and define two fixtures:

    class TestMyMemory(ProviderContract):
        @pytest.fixture
        def provider(self, server):
            return MyMemory(url=server.url)

        @pytest.fixture
        def effects(self, server):
            return lambda provider: [Effect(doc.session, "turn", doc.text) for doc in server.documents]

`provider` is a fresh provider on an empty back end. `effects` returns the contents of the back end, oldest first, as a
list of `StoredEntry` or an awaitable of one. Its kinds are `turn`, `note`, `delegation`, `close` and `opened`; omit the
kinds that your back end does not store. Query the back end itself, or the server that stands in for it, not the
provider.

Three more fixtures have defaults. `settings` are the keyword arguments of `initialize`. `faults` breaks the back end on
demand; without it the tests that need a broken one are skipped. `settles_s` is the time the back end may take until
recall finds a delivery. Run by the tests of providers in tests/contract and tests/servers.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import pytest

from everthread.domain.errors import ProviderError, Rejected, Unavailable
from everthread.domain.events import (
    Delivery,
    Event,
    ForgetScope,
    Forgotten,
    NoteWritten,
    SessionClosed,
    SessionOpened,
    SessionRewound,
    TurnCommitted,
    View,
    WorkDelegated,
)
from everthread.domain.model import (
    Cause,
    ChatType,
    Message,
    NoteAction,
    NoteTarget,
    NoteVersion,
    Role,
    SessionKey,
    SessionRef,
    Turn,
    TurnStatus,
)
from everthread.memory.legacy_providers import as_provider
from everthread.memory.provider_calls import Caller
from everthread.memory.recall import gather
from everthread.ports.memory import Capability, MemoryProvider, RecallItem
from everthread.testing import in_loop
from everthread.testing.recording_provider import StoredEntry

EffectsOf = Callable[[Any], Sequence[StoredEntry] | Awaitable[Sequence[StoredEntry]]]

CALL_S_MAX = 10.0


class Faults(Protocol):
    """Faults of the back end. Each ends after its number of calls, or with `heal`."""

    def fail_next(self, calls: int = 1) -> None:
        """Be unreachable or overloaded; store nothing."""
        ...

    def reject_next(self, calls: int = 1) -> None:
        """Reject deliveries permanently as invalid; store nothing."""
        ...

    def lose_next(self, calls: int = 1) -> None:
        """Store the delivery and break the connection before acknowledging it."""
        ...

    def hang(self) -> None:
        """Accept calls and never answer."""
        ...

    def heal(self) -> None: ...


class Session:
    """A session from the provider's point of view: each step is one delivery."""

    def __init__(self, caller: Caller, session_id: str, owner: str) -> None:
        self.ref = SessionRef(session_id, 0, SessionKey("main", "telegram", ChatType.DM, f"{owner}-chat"), 1, owner)
        self.caller = caller
        self.seq = 0
        self.turns: list[Turn] = []
        self.delivered: list[tuple[Event, Delivery]] = []

    async def deliver(self, *events: Event) -> None:
        for event in events:
            self.seq += 1
            delivery = Delivery(f"{self.ref.session_id}:{self.seq}:{self.caller.name}:0", self.seq)
            self.delivered.append((event, delivery))
            await self.caller.deliver(event, delivery, timeout_s=CALL_S_MAX)

    async def again(self, which: int = -1, attempt: int = 2) -> None:
        """Deliver an entry again, as after a crash: the same key, another attempt."""
        event, delivery = self.delivered[which]
        await self.caller.deliver(event, Delivery(delivery.key, delivery.seq, attempt), timeout_s=CALL_S_MAX)

    def turn(self, user: str, assistant: str = "I see.") -> TurnCommitted:
        messages = (Message(Role.USER, user), Message(Role.ASSISTANT, assistant))
        number = len(self.turns) + 1
        turn = Turn(self.ref.session_id, number, f"{self.ref.session_id}-t{number}", TurnStatus.DONE, 1.0, messages)
        self.turns.append(turn)
        return TurnCommitted(self.ref, turn)

    def opened(self, parent_id: str = "") -> SessionOpened:
        return SessionOpened(self.ref, parent_id, not parent_id, Cause.NEW)

    def closed(self) -> SessionClosed:
        return SessionClosed(self.ref, View(None, tuple(self.turns)), self.seq)

    def note(self, content: str, note_id: str = "n1", action: NoteAction = NoteAction.ADD) -> NoteWritten:
        ref = self.ref
        return NoteWritten(
            ref, NoteVersion(note_id, 1, ref.owner, NoteTarget.USER, action, content, ref.session_id, None, 1.0)
        )

    def everything(self) -> tuple[Event, ...]:
        """One entry of each kind, in a valid order."""
        return (
            self.opened("some-parent"),
            self.turn("I keep bees in Aarhus"),
            self.note("keeps bees"),
            WorkDelegated(self.ref, "count the hives", "there are seven", "some-child"),
            self.turn("and I paint them yellow"),
            SessionRewound(self.ref, (2,)),
            self.closed(),
        )


class ProviderContract:
    """Guarantees of a memory provider."""

    @pytest.fixture
    def provider(self) -> object:
        raise NotImplementedError("give the contract a fixture `provider`; see its module's docstring")

    @pytest.fixture
    def effects(self) -> EffectsOf:
        raise NotImplementedError("give the contract a fixture `effects`; see its module's docstring")

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {}

    @pytest.fixture
    def faults(self) -> Faults | None:
        return None

    @pytest.fixture
    def broken(self, faults: Faults | None) -> Faults:
        if faults is None:
            pytest.skip("the fixture `faults` is not defined")
        return faults

    @pytest.fixture
    def settles_s(self) -> float:
        return 0.0

    @pytest.fixture
    def caller(self, provider: object, settings: dict[str, Any]) -> Caller:
        return Caller(as_provider(provider), settings)

    # Identity and capabilities ----------------------------------------------------------------------------------------

    def test_it_has_a_name_and_a_scorecard(self, caller: Caller) -> None:
        """Each promise is `done`, or states a reason in words."""
        provider = caller.provider
        assert provider.name
        for promise in (provider.scorecard.redelivery, provider.scorecard.order, provider.scorecard.forget):
            assert promise not in ("", "not declared", "unknown")
            assert promise == "done" or len(promise) > 10, f"{promise!r} is no reason"

    def test_the_scorecard_agrees_with_the_capabilities(self, caller: Caller) -> None:
        provider = caller.provider
        assert (provider.scorecard.forget == "done") == (Capability.FORGET in provider.capabilities)
        for capability, hook in ((Capability.RECALL, "prefetch"), (Capability.FORGET, "forget")):
            assert caller.has(hook) or capability not in provider.capabilities

    @in_loop
    async def test_missing_hooks_are_no_error(self, caller: Caller) -> None:
        session = await _ready_session(caller)
        await session.deliver(*session.everything())
        await session.deliver(*(Forgotten(session.ref, scope, "x", "n1") for scope in ForgetScope))
        ref, messages = session.ref, [Message(Role.USER, "hello")]
        await caller.call("on_turn_start", "hello", ref=ref, timeout_s=CALL_S_MAX)
        await caller.call("queue_prefetch", "hello", ref=ref, timeout_s=CALL_S_MAX)
        assert isinstance(await caller.call("on_pre_compress", messages, ref=ref, timeout_s=CALL_S_MAX), str)
        assert isinstance(await caller.call("system_prompt_block", ref=ref, timeout_s=CALL_S_MAX), str)
        assert isinstance(await caller.call("health", timeout_s=CALL_S_MAX), str)
        assert all("name" in schema or "function" in schema for schema in caller.provider.get_tool_schemas())

    @in_loop
    async def test_shutting_down_is_safe_at_any_time(self, caller: Caller) -> None:
        for _ in range(2):
            await caller.call("shutdown", timeout_s=CALL_S_MAX)
        await caller.ready()
        await Session(caller, "s1", "ann").deliver(Session(caller, "s1", "ann").opened())
        for _ in range(2):
            await caller.call("shutdown", timeout_s=CALL_S_MAX)

    # Delivery ---------------------------------------------------------------------------------------------------------

    @in_loop
    async def test_a_redelivered_entry_has_no_second_effect(self, caller: Caller, effects: EffectsOf) -> None:
        session = await _ready_session(caller, promise="redelivery")
        once: list[StoredEntry] = []
        for event in session.everything():
            await session.deliver(event)
            once = await _effects(effects, caller.provider)
            await session.again()
            await session.again(attempt=3)
            assert await _effects(effects, caller.provider) == once
        # Also much later, after other deliveries.
        for which in range(len(session.delivered)):
            await session.again(which)
        assert await _effects(effects, caller.provider) == once

    @in_loop
    async def test_the_turns_of_a_session_are_stored_in_order(self, caller: Caller, effects: EffectsOf) -> None:
        session = await _ready_session(caller, promise="order")
        words = ["apple", "birch", "cedar", "damson", "elder", "fir"]
        await session.deliver(session.opened())
        for word in words:
            await session.deliver(session.turn(f"next is {word}"))
        turns = [one.text for one in await _turns(effects, caller)]
        assert len(turns) == len(words)
        assert all(word in text for word, text in zip(words, turns, strict=True))

    @in_loop
    async def test_concurrent_sessions_do_not_mix(self, caller: Caller, effects: EffectsOf) -> None:
        """One instance serves all sessions. Only the `ref` of a call identifies its session."""
        await caller.ready()
        sessions = [Session(caller, f"session-{n}", f"owner-{n % 2}") for n in range(5)]

        async def talk(session: Session) -> None:
            await session.deliver(session.opened())
            for n in range(4):
                await session.deliver(session.turn(f"word{n} said in {session.ref.session_id}"))

        await asyncio.gather(*(talk(session) for session in sessions))
        turns = await _turns(effects, caller)
        for session in sessions:
            name = session.ref.session_id
            own = [one.text for one in turns if one.session_id == name]
            assert len(own) == 4
            assert all(f"said in {name}" in text for text in own)
        assert len(turns) == 20

    @in_loop
    async def test_an_outage_is_unavailable_and_passes(
        self, caller: Caller, effects: EffectsOf, broken: Faults
    ) -> None:
        session = await _ready_session(caller)
        await session.deliver(session.opened())
        broken.fail_next()
        with pytest.raises(Unavailable) as failure:
            await session.deliver(session.turn("I keep bees"))
        assert failure.value.provider == caller.name
        assert not await _turns(effects, caller)
        await session.again()
        assert len(await _turns(effects, caller)) == 1

    @in_loop
    async def test_an_invalid_entry_is_rejected(self, caller: Caller, broken: Faults) -> None:
        session = await _ready_session(caller)
        broken.reject_next()
        with pytest.raises(Rejected) as failure:
            await session.deliver(session.turn("I keep bees"))
        assert failure.value.provider == caller.name

    @in_loop
    async def test_no_hook_raises_an_error_of_a_library(self, caller: Caller, broken: Faults) -> None:
        session = await _ready_session(caller)
        for fault in (broken.fail_next, broken.reject_next):
            for event in session.everything():
                broken.heal()
                fault(1)
                try:
                    await session.deliver(event)
                except ProviderError:
                    continue
            broken.heal()
            fault(1)
            try:
                await _recall(caller, "bees", session.ref)
            except ProviderError:
                continue

    @in_loop
    async def test_a_lost_acknowledgement_leads_to_no_second_effect(
        self, caller: Caller, effects: EffectsOf, broken: Faults
    ) -> None:
        session = await _ready_session(caller, promise="redelivery")
        await session.deliver(session.opened())
        broken.lose_next()
        with pytest.raises(Unavailable):
            await session.deliver(session.turn("I keep bees"))
        await session.again()
        assert len(await _turns(effects, caller)) == 1

    @in_loop
    async def test_a_call_that_hangs_times_out(self, caller: Caller, broken: Faults) -> None:
        session = await _ready_session(caller)
        broken.hang()
        with pytest.raises(Unavailable):
            await caller.deliver(session.turn("I keep bees"), Delivery("k", 1), timeout_s=0.1)
        broken.heal()
        async with asyncio.timeout(CALL_S_MAX):
            while caller.stuck:
                await asyncio.sleep(0.01)
        await session.deliver(session.turn("I keep bees"))

    # Recall -----------------------------------------------------------------------------------------------------------

    @in_loop
    async def test_recall_finds_delivered_entries(self, caller: Caller, settles_s: float) -> None:
        session = await _ready_session(caller, Capability.RECALL)
        await session.deliver(session.opened(), session.turn("I keep bees in Aarhus"))
        await session.deliver(session.closed())
        items = await _recalled(caller, "bees", session.ref, settles_s)
        assert any("bees" in item.text for item in items)

    @in_loop
    async def test_recall_never_returns_entries_of_another_owner(self, caller: Caller, settles_s: float) -> None:
        ann, bob = await _ready_session(caller, Capability.RECALL), Session(caller, "s-bob", "bob")
        for session, secret in ((ann, "larkspur"), (bob, "foxglove")):
            await session.deliver(session.opened(), session.turn(f"the password is {secret}"))
            await session.deliver(session.note(f"password: {secret}", f"n-{secret}"))
            await session.deliver(session.closed())
        for session, own, others in ((ann, "larkspur", "foxglove"), (bob, "foxglove", "larkspur")):
            items = await _recalled(caller, f"password {own}", session.ref, settles_s)
            assert any(own in item.text for item in items)
            for query in ("password", others, f"password {others}"):
                assert not [item for item in await _recall(caller, query, session.ref) if others in item.text]
        nobody = Session(caller, "s-eve", "eve")
        assert not list(await _recall(caller, "password larkspur foxglove", nobody.ref))

    @in_loop
    async def test_recall_returns_at_most_the_limit(self, caller: Caller, settles_s: float) -> None:
        session = await _ready_session(caller, Capability.RECALL)
        for n in range(6):
            await session.deliver(session.turn(f"bees again, hive {n}"))
        await _recalled(caller, "bees", session.ref, settles_s)
        assert len(await _recall(caller, "bees", session.ref, limit=2)) <= 2

    @in_loop
    async def test_recall_obeys_its_deadline(self, caller: Caller, broken: Faults) -> None:
        ref = (await _ready_session(caller, Capability.RECALL)).ref
        broken.hang()
        begun = time.monotonic()
        recall = await gather(
            ref, {caller.name: lambda: _recall(caller, "bees", ref)}, deadline_s=0.2, budget_tokens=100
        )
        assert time.monotonic() - begun < 1.0
        assert (recall.items, recall.missing) == ((), (caller.name,))
        broken.heal()

    # Forgetting -------------------------------------------------------------------------------------------------------

    @in_loop
    async def test_a_forgotten_session_is_deleted_and_others_stay(
        self, caller: Caller, effects: EffectsOf, settles_s: float
    ) -> None:
        gone, stays = await _ready_session(caller, Capability.FORGET), Session(caller, "s2", "ann")
        for session, word in ((gone, "larkspur"), (stays, "foxglove")):
            await session.deliver(session.turn(f"I planted {word}"), session.note(f"planted {word}", f"n-{word}"))
            await session.deliver(session.closed())
        await gone.deliver(Forgotten(gone.ref, ForgetScope.SESSION))
        await gone.again()
        await _check_gone(caller, effects, stays.ref, "larkspur", settles_s)
        left = {one.session_id for one in await _effects(effects, caller.provider)}
        assert "s2" in left

    @in_loop
    async def test_a_forgotten_owner_is_deleted_and_others_stay(
        self, caller: Caller, effects: EffectsOf, settles_s: float
    ) -> None:
        ann, bob = await _ready_session(caller, Capability.FORGET), Session(caller, "s2", "bob")
        for session, word in ((ann, "larkspur"), (bob, "foxglove")):
            await session.deliver(session.turn(f"I planted {word}"), session.note(f"planted {word}", f"n-{word}"))
        # The owner's notes session, which has no turns, carries the event.
        notes_session = Session(caller, "notes:ann", "ann")
        await notes_session.deliver(Forgotten(notes_session.ref, ForgetScope.OWNER))
        await _check_gone(caller, effects, ann.ref, "larkspur", settles_s)
        assert any("foxglove" in one.text for one in await _effects(effects, caller.provider))

    @in_loop
    async def test_a_forgotten_fact_is_deleted(self, caller: Caller, effects: EffectsOf, settles_s: float) -> None:
        session = await _ready_session(caller, Capability.FORGET)
        await session.deliver(session.turn("I keep bees"), session.note("the code is 4711", "n-code"))
        notes_session = Session(caller, "notes:ann", "ann")
        await notes_session.deliver(Forgotten(notes_session.ref, ForgetScope.FACT, "the code is 4711", "n-code"))
        await _check_gone(caller, effects, session.ref, "4711", settles_s)
        assert any("bees" in one.text for one in await _effects(effects, caller.provider))


# ----------------------------------------------------------------------------------------------------------------------


async def _ready_session(caller: Caller, needs: Capability = Capability.NONE, *, promise: str = "") -> Session:
    """Start the provider and return a session of it. Skip the test if the provider declares or promises too little."""
    provider = caller.provider
    if needs not in provider.capabilities:
        pytest.skip(f"{provider.name} does not declare {needs.name}")
    if promise and (said := getattr(provider.scorecard, promise)) != "done":
        pytest.skip(f"{provider.name} is exempt: {said}")
    await caller.ready()
    return Session(caller, "s1", "ann")


async def _effects(effects: EffectsOf, provider: MemoryProvider) -> list[StoredEntry]:
    found = effects(provider)
    return list(await found if inspect.isawaitable(found) else found)


async def _turns(effects: EffectsOf, caller: Caller) -> list[StoredEntry]:
    return [one for one in await _effects(effects, caller.provider) if one.kind == "turn"]


async def _recall(caller: Caller, query: str, ref: SessionRef, limit: int = 10) -> Sequence[RecallItem]:
    return await caller.call("prefetch", query, ref=ref, limit=limit, timeout_s=CALL_S_MAX)


async def _recalled(caller: Caller, query: str, ref: SessionRef, settles_s: float) -> Sequence[RecallItem]:
    """Recall, retried until it finds something or `settles_s` has passed."""
    deadline = time.monotonic() + settles_s
    items = await _recall(caller, query, ref)
    while not items and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
        items = await _recall(caller, query, ref)
    return items


async def _check_gone(caller: Caller, effects: EffectsOf, ref: SessionRef, word: str, settles_s: float) -> None:
    deadline = time.monotonic() + settles_s

    async def left() -> list[str]:
        found = [one.text for one in await _effects(effects, caller.provider)]
        if Capability.RECALL in caller.provider.capabilities:
            found += [item.text for item in await _recall(caller, word, ref)]
        return [text for text in found if word in text]

    while await left() and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert await left() == []
