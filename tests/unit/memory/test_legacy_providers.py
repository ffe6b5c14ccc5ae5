from pathlib import Path
from typing import Any

import pytest
from tests.runtime import CLI, AsyncDiary, CoreFixture, ThreadDiary

from everthread.domain.boundary import Branch, New
from everthread.domain.errors import BadInput
from everthread.domain.events import Delivery, SessionClosed, SessionOpened, TurnCommitted, View
from everthread.domain.model import Cause, Message, Role, SessionRef, Turn, TurnStatus
from everthread.memory.legacy_providers import HOOKS, as_provider
from everthread.memory.provider_calls import Caller
from everthread.ports.memory import HOOK_OF, Capability, MemoryProvider

REF = SessionRef("s1", 0, CLI, 1, "me")
DELIVERY = Delivery("s1:1:p:0", 1)
MESSAGES = (Message(Role.USER, "hi"), Message(Role.ASSISTANT, "hello"))
TURN = Turn("s1", 1, "t1", TurnStatus.DONE, 0.0, MESSAGES)


class NoHooks:
    """Not derived from anything, and with nothing to say."""


class Short:
    """An older signature: no ref, no delivery, no keyword that today's contract added."""

    name = "short"

    def __init__(self) -> None:
        self.got: list[Any] = []

    def sync_turn(self, user_content: str, assistant_content: str) -> None:
        self.got.append(("turn", user_content, assistant_content))

    def on_session_end(self, messages: list[Message]) -> None:
        self.got.append(("end", len(messages)))

    async def on_session_switch(self, new_session_id: str, *, parent_session_id: str = "", reset: bool = False) -> None:
        self.got.append(("switch", new_session_id, parent_session_id, reset))


class Derived(MemoryProvider):
    """Derived from today's class, and still with a signature of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "derived"
        self.got: list[Any] = []

    def sync_turn(self, user: str, assistant: str, *, ref: SessionRef) -> None:  # pyright: ignore
        self.got.append((user, ref.session_id))


@pytest.mark.parametrize("today", [MemoryProvider(), AsyncDiary(), ThreadDiary()])
def test_a_provider_with_the_current_interface_is_used_unchanged(today: MemoryProvider) -> None:
    assert as_provider(today) is today


def test_every_hook_of_the_contract_is_adapted() -> None:
    public = {
        name for name in vars(MemoryProvider) if not name.startswith("_") and callable(vars(MemoryProvider)[name])
    }
    assert set(HOOKS) == public - {"deliver"}
    assert {hook for hook, _ in HOOK_OF.values()} <= set(HOOKS)


async def test_an_object_without_hooks_is_a_provider_that_does_nothing() -> None:
    provider = as_provider(NoHooks())
    assert (provider.name, provider.capabilities) == ("nohooks", Capability.NONE)
    caller = Caller(provider)
    await caller.ready()
    for event in (SessionOpened(REF, "", True, Cause.NEW), TurnCommitted(REF, TURN)):
        await caller.deliver(event, DELIVERY, timeout_s=1)


async def test_an_older_signature_gets_only_the_arguments_it_accepts() -> None:
    short = Short()
    caller = Caller(as_provider(short))
    await caller.deliver(SessionOpened(REF, "s0", False, Cause.BRANCH), DELIVERY, timeout_s=1)
    await caller.deliver(TurnCommitted(REF, TURN), DELIVERY, timeout_s=1)
    await caller.deliver(SessionClosed(REF, View(None, (TURN,)), 2), DELIVERY, timeout_s=1)
    assert short.got == [("switch", "s1", "s0", False), ("turn", "hi", "hello"), ("end", 2)]


async def test_a_hook_with_fewer_positions_gets_the_first_ones() -> None:
    class Terse:
        def __init__(self) -> None:
            self.got: list[str] = []

        def sync_turn(self, user: str) -> None:
            self.got.append(user)

        def on_delegation(self, *anything: str) -> None:
            self.got += anything

    terse = Terse()
    provider = as_provider(terse)
    provider.sync_turn("hi", "hello", ref=REF, delivery=DELIVERY)
    provider.on_delegation("a task", "its result", ref=REF, delivery=DELIVERY)
    assert terse.got == ["hi", "a task", "its result"]


async def test_a_derived_class_with_an_older_hook_keeps_working() -> None:
    derived = Derived()
    provider = as_provider(derived)
    assert provider is not derived
    await Caller(provider).deliver(TurnCommitted(REF, TURN), DELIVERY, timeout_s=1)
    assert derived.got == [("hi", "s1")]


async def test_an_exception_of_an_older_provider_is_raised() -> None:
    class Broken:
        def sync_turn(self, user: str, assistant: str) -> None:
            raise TypeError("its own mistake")

    with pytest.raises(TypeError, match="its own mistake"):
        await Caller(as_provider(Broken())).deliver(TurnCommitted(REF, TURN), DELIVERY, timeout_s=1)


def test_a_provider_with_prefetch_is_asked_unless_it_declares_otherwise() -> None:
    class Asks:
        def prefetch(self, query: str) -> list[Any]:
            return []

    class Mute(Asks):
        capabilities = Capability.NONE

    assert as_provider(Asks()).capabilities is Capability.RECALL
    assert as_provider(Mute()).capabilities is Capability.NONE


async def test_two_providers_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="name of its own"):
        async with CoreFixture(tmp_path, NoHooks(), NoHooks()):
            pass


async def test_an_older_provider_works_through_whole_sessions_beside_a_current_one(tmp_path: Path) -> None:
    short, diary = Short(), AsyncDiary()
    async with CoreFixture(tmp_path, short, NoHooks(), diary) as core:
        first = (await core.turn(CLI, "one")).ref.session_id
        second = (await core.cross(CLI, Branch())).ref
        assert second is not None
        await core.turn(CLI, "two")
        await core.cross(CLI, New())
        await core.settled()
        assert await core.incidents() == []
    # Nothing is promised between sessions; within one, the order is the log's.
    of_first = [("switch", first, "", True), ("turn", "one", "re one"), ("end", 2)]
    of_second = [("switch", second.session_id, first, False), ("turn", "two", "re two"), ("end", 4)]
    for told in (of_first, of_second):
        assert [got for got in short.got if got in told] == told
    assert diary.book.told(first) == ["switch", "one", "end"]
