"""What one provider's trouble may cost a turn: at most the hook's time limit, and nothing of the other providers."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.notices import NoticeRecorder
from tests.runtime import CLI, TELEGRAM, AsyncDiary, Call, CoreFixture, Gate, until

from everthread.adapters.lanes.local import LEASE_S
from everthread.domain.errors import Unavailable
from everthread.domain.model import Lease, SessionRef
from everthread.memory import manager
from everthread.memory.circuit_breaker import RECALL_PAUSE_S
from everthread.memory.delivery_results import Limits
from everthread.memory.provider_calls import Caller
from everthread.ports.memory import Capability, MemoryProvider, RecallItem
from everthread.store.unit_of_work import UnitOfWork

REF = SessionRef("s1", 0, CLI, 1, "me")


class Helper(MemoryProvider):
    """A provider with every hook of a turn; tests set its start and its tool schemas."""

    def __init__(self, name: str, *, starting: Callable[[], object] | None = None, tools: Any = ()) -> None:
        super().__init__()
        self.name = name
        self.capabilities = Capability.RECALL
        self.starting = starting
        self.tools = tools
        self.asked: list[str] = []

    def initialize(self, **settings: Any) -> None:
        if self.starting is not None:
            self.starting()

    def on_turn_start(self, user: str, *, ref: SessionRef) -> None:
        self.asked.append("on_turn_start")

    def system_prompt_block(self, *, ref: SessionRef) -> str:
        self.asked.append("system_prompt_block")
        return f"block of {self.name}"

    def on_pre_compress(self, messages: Any, *, ref: SessionRef) -> str:
        self.asked.append("on_pre_compress")
        return f"summary of {self.name}"

    def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> list[RecallItem]:
        self.asked.append("prefetch")
        return [RecallItem(f"{query} of {self.name}")]

    def get_tool_schemas(self) -> Any:
        return self.tools() if callable(self.tools) else self.tools


async def a_turn(core: CoreFixture) -> tuple[tuple[str, ...], tuple[str, ...]]:
    core.memory.turn_started("hello", ref=REF)
    await asyncio.wait(core.memory._notices)  # noqa: SLF001 - nobody else waits for them
    blocks = await core.memory.system_prompt_blocks(ref=REF)
    return blocks, await core.memory.on_pre_compress([], ref=REF)


async def test_a_provider_that_hangs_at_start_costs_a_turn_only_the_hook_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "HOOK_S_MAX", 0.5)
    with Gate() as gate:
        stuck, well = Helper("stuck", starting=gate.wait), Helper("well")
        async with CoreFixture(tmp_path, stuck, well) as core:
            begun = time.monotonic()
            assert await a_turn(core) == (("block of well",), ("summary of well",))
            assert time.monotonic() - begun < 10
    assert (stuck.asked, len(well.asked)) == ([], 3)


async def test_starting_and_the_call_share_one_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_s: list[float] = []

    async def call(self: Caller, hook: str, *args: Any, timeout_s: float, **kwargs: Any) -> None:
        if hook == "handle_tool_call":
            left_s.append(timeout_s)

    monkeypatch.setattr(Caller, "call", call)
    async with CoreFixture(tmp_path, Helper("slow", starting=lambda: time.sleep(0.2))) as core:
        await core.memory.handle_tool_call("slow", "look", {}, ref=REF)
    assert 0 < left_s[0] < manager.TOOL_S_MAX - 0.19


async def test_a_recall_does_not_wait_for_a_starting_provider_and_starts_it_once(tmp_path: Path) -> None:
    with Gate() as gate:
        stuck = Helper("stuck", starting=gate.wait)
        async with CoreFixture(tmp_path, stuck, Helper("well")) as core:
            await core.memory.recall("warm up", ref=REF, deadline_s=0.5)
            before = len(asyncio.all_tasks())
            for _ in range(2):
                core.clock.advance(RECALL_PAUSE_S)
                recall = await core.memory.recall("tea", ref=REF, deadline_s=0.5)
                assert ([item.text for item in recall.items], recall.missing) == (["tea of well"], ("stuck",))
            await until(lambda: len(asyncio.all_tasks()) <= before, "the questions have gone")
            gate.open()
            await until(lambda: len(asyncio.all_tasks()) < before, "the start has come to its end")
            core.clock.advance(RECALL_PAUSE_S)
            assert (await core.memory.recall("tea", ref=REF)).missing == ()
    assert stuck.asked == ["prefetch"]


def broken() -> None:
    raise KeyError("tools")


async def test_tools_come_from_providers_that_answer(tmp_path: Path) -> None:
    good = Helper("good", tools=[{"name": "look"}, {"name": "find"}])
    others = [Helper("broken", tools=broken), Helper("none", tools=()), AsyncDiary("diary")]
    async with CoreFixture(tmp_path, good, *others) as core:
        assert await core.memory.tool_schemas() == {
            "good": ({"name": "look"}, {"name": "find"}),
            "none": (),
            "diary": (),
        }


@pytest.mark.parametrize("answer", [None, 7, "look", ["look"], [None]])
async def test_a_provider_with_invalid_schemas_offers_no_tools(tmp_path: Path, answer: Any) -> None:
    async with CoreFixture(tmp_path, Helper("odd", tools=answer), Helper("good", tools=[{"name": "look"}])) as core:
        assert await core.memory.tool_schemas() == {"good": ({"name": "look"},)}


async def test_slow_tool_schemas_do_not_block_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "HOOK_S_MAX", 0.5)
    with Gate() as gate:
        async with CoreFixture(tmp_path, Helper("slow", tools=gate.wait), Helper("good")) as core:
            asking = asyncio.ensure_future(core.memory.tool_schemas())
            await until(gate.reached.is_set)
            assert not asking.done()
            assert await asking == {"good": ()}


class Listener(Helper):
    """A provider that receives turns and can fail at them."""

    async def sync_turn(self, user: str, assistant: str, **more: Any) -> None: ...


async def test_a_provider_with_an_open_breaker_is_left_out_of_a_turn(tmp_path: Path) -> None:
    ill, well = Listener("ill"), Helper("well")
    async with CoreFixture(tmp_path, ill, well, limits=Limits(breaker_s=60.0)) as core:

        def open_breaker(uow: UnitOfWork) -> None:
            row = uow.cursors.provider("ill")
            assert row is not None
            uow.cursors.save_provider(replace(row, open_until=core.clock.now() + 30))

        await core.store.write(open_breaker)
        assert await a_turn(core) == (("block of well",), ("summary of well",))
        assert [item.text for item in (await core.memory.recall("tea", ref=REF)).items] == ["tea of well"]
        assert ill.asked == []
        await core.later(31)
        assert await a_turn(core) == (("block of ill", "block of well"), ("summary of ill", "summary of well"))


async def test_a_cached_open_breaker_costs_a_turn_no_read(tmp_path: Path) -> None:
    ill = AsyncDiary("ill")

    async def refuse(call: Call) -> None:
        raise Unavailable("ill", "connection refused")

    ill.before = refuse
    async with CoreFixture(tmp_path, ill, limits=Limits(breaker_failures=1, breaker_s=60.0)) as core:
        await core.turn(CLI, "tea")
        await until(lambda: core.memory.journal.breakers.open_until("ill", core.clock.now()) is not None)
        read = 0
        read_inline = core.store.read_inline

        async def counted(work: Callable[[UnitOfWork], Any]) -> Any:
            nonlocal read
            read += 1
            return await read_inline(work)

        core.store.read_inline = counted
        assert (await core.memory.recall("tea", ref=REF)).items == ()
        due = await core.memory.journal.drain("ill", Lease("journal:ill", "me", 1))
        assert due is not None
        assert due > core.clock.now() + 30
        assert read == 0
        ill.before = None
        await core.later(61)
        core.lanes.wake(manager.lane_name("ill"))
        await core.settled()
        assert core.memory.journal.breakers.open_until("ill", core.clock.now()) is None


async def test_a_successful_delivery_clears_a_cached_open_breaker(tmp_path: Path) -> None:
    slow, arrive = AsyncDiary("slow"), asyncio.Event()

    async def one_waits_and_one_fails(call: Call) -> None:
        if call.text == "fails":
            raise Unavailable("slow", "connection refused")
        if call.hook == "sync_turn":
            await arrive.wait()

    slow.before = one_waits_and_one_fails
    limits = Limits(breaker_failures=1, breaker_s=60.0)
    async with CoreFixture(tmp_path, slow, limits=limits) as core:

        def is_open() -> bool:
            return core.memory.journal.breakers.open_until("slow", core.clock.now()) is not None

        await core.turn(CLI, "waits")
        await until(lambda: any(call.text == "waits" for call in slow.book.begun))
        await core.turn(TELEGRAM, "fails")
        await until(is_open)
        arrive.set()
        await until(lambda: not is_open())
        slow.before = None
        await core.later(2)
        await core.settled()
    assert sorted(call.text for call in slow.book.of("sync_turn")) == ["fails", "waits"]


async def test_a_delivery_that_cancels_itself_is_retried(tmp_path: Path) -> None:
    diary, tries = AsyncDiary(), 0

    async def cancel_twice(call: Call) -> None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise asyncio.CancelledError

    diary.before = cancel_twice
    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, "hello")
        await core.reported("memory:diary", "the call cancelled itself")
        await core.settled()
    assert "hello" in diary.book.words()


async def test_a_process_without_the_lease_delivers_nothing(tmp_path: Path) -> None:
    """A full disk keeps a process from renewing its lease, and from noticing that another has it."""

    async def down(call: Call) -> None:
        raise Unavailable("diary", "down")

    diary = AsyncDiary()
    diary.before = down
    async with CoreFixture(
        tmp_path, diary, limits=Limits(backoff_s=0.2, backoff_s_max=0.2, breaker_failures=99)
    ) as core:
        await core.turn(CLI, "hello")
        await core.reported("memory:diary", "down")
        now = core.clock.now()

        def taken_over(uow: UnitOfWork) -> Lease | None:
            return uow.leases.acquire("journal:diary", "another", now + 2 * LEASE_S, LEASE_S)

        assert await core.store.write(taken_over) is not None
        diary.before = None
        tried = len(diary.book.begun)
        await asyncio.sleep(0.6)
        assert len(diary.book.begun) == tried


async def test_a_process_that_loses_its_lease_stops_delivering(tmp_path: Path) -> None:
    """The next entry is read with the note of how the last one went: by then another may have the lane."""
    diary, gate = AsyncDiary(), asyncio.Event()

    async def wait(call: Call) -> None:
        await gate.wait()

    diary.before = wait
    async with CoreFixture(tmp_path, diary, limits=Limits(lanes_max=1)) as core:
        await core.turn(CLI, "one")
        await core.turn(CLI, "two")
        await until(lambda: diary.book.begun)
        now = core.clock.now()
        taken = await core.store.write(
            lambda uow: uow.leases.acquire("journal:diary", "another", now + 2 * LEASE_S, LEASE_S)
        )
        assert taken is not None
        gate.set()
        await asyncio.sleep(0.3)
        assert len(diary.book.begun) == 1
        # It is not even noted that it went well: whoever has the lane now may be just about to deliver it.
        cursor = await core.store.read(lambda uow: uow.cursors.get("diary", diary.book.begun[0].session))
        assert cursor is not None
        assert cursor.seq == 0


async def test_a_delivered_turn_is_one_write(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, "one")
        await core.settled()
        written: list[str] = []
        write = core.store.write

        async def counted(work: Any) -> Any:
            written.append(work.__qualname__)
            return await write(work)

        core.store.write = counted  # pyright: ignore[reportAttributeAccessIssue] - looked over its shoulder
        await core.turn(CLI, "two")
        await core.settled()
        of_delivery = [name for name in written if name.startswith("DeliveryService")]
    # One to see that there is something new, and one to note that it has arrived and that nothing is left.
    assert of_delivery == ["DeliveryService._discover.<locals>.discover"] * 2 + [
        "DeliveryService._record.<locals>.record"
    ]


async def test_both_notices_reach_the_providers_that_override_them(tmp_path: Path) -> None:
    recorder, other = NoticeRecorder(), AsyncDiary("other")
    async with CoreFixture(tmp_path, recorder, other) as core:
        core.memory.turn_started("hello", ref=REF)
        await until(lambda: recorder.calls)
        core.memory.turn_committed("tea", ref=REF)
        await until(lambda: len(recorder.calls) == 2)
    assert recorder.calls == [("on_turn_start", "hello", REF), ("queue_prefetch", "tea", REF)]


async def test_a_notice_that_no_provider_overrides_starts_no_task(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, AsyncDiary()) as core:
        before = asyncio.all_tasks()
        core.memory.turn_started("hello", ref=REF)
        core.memory.turn_committed("hello", ref=REF)
        assert asyncio.all_tasks() == before


async def test_a_failed_notice_is_logged_and_affects_no_other_provider(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("down")

    well = NoticeRecorder("well")
    async with CoreFixture(tmp_path, NoticeRecorder("ill", before=fail), well) as core:
        core.memory.turn_started("hello", ref=REF)
        await until(lambda: well.calls and caplog.messages)
    assert caplog.messages == ["ill: on_turn_start failed: down"]


async def test_hanging_notices_are_bounded_and_do_not_delay_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(manager, "NOTICES_MAX", 2)
    with Gate() as gate:
        async with CoreFixture(tmp_path, NoticeRecorder(before=gate.wait)) as core:
            for _ in range(3):
                core.memory.turn_started("hello", ref=REF)
            assert caplog.messages == ["on_turn_start is not called: 2 earlier calls have not returned"]
            begun = time.monotonic()
        assert time.monotonic() - begun < manager.HOOK_S_MAX
