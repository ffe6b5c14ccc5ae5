import asyncio
import gc
import threading
import time
from typing import Any

import pytest
from tests.runtime import CLI, AsyncDiary, Gate, ThreadDiary, until

from everthread.concurrency import in_daemon_thread
from everthread.domain.errors import Rejected, Unavailable
from everthread.domain.events import Delivery, SessionOpened
from everthread.domain.model import Cause, SessionRef
from everthread.memory import provider_calls as calling
from everthread.memory.provider_calls import STUCK_MAX, Caller, CallTimeout
from everthread.ports.memory import MemoryProvider

REF = SessionRef("s1", 0, CLI, 1, "me")
OPENED = SessionOpened(REF, "", True, Cause.NEW)
DELIVERY = Delivery("s1:1:p:0", 1)


class Provider(MemoryProvider):
    """Plain and async hooks whose behaviour a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "p"
        self.initialized: list[dict[str, Any]] = []
        self.starting: Gate | None = None

    def initialize(self, **settings: Any) -> None:
        self.initialized.append(settings)
        if self.starting is not None:
            self.starting.wait()

    def handle_tool_call(self, name: str, args: Any, *, ref: SessionRef) -> Any:
        return args["do"]()

    async def on_pre_compress(self, messages: Any, *, ref: SessionRef) -> str:
        return await messages[0]()


async def plainly(caller: Caller, do: Any, timeout_s: float = 5.0) -> Any:
    return await caller.call("handle_tool_call", "tool", {"do": do}, ref=REF, timeout_s=timeout_s)


async def asynchronously(caller: Caller, do: Any, timeout_s: float = 5.0) -> Any:
    return await caller.call("on_pre_compress", [do], ref=REF, timeout_s=timeout_s)


async def test_a_plain_hook_runs_in_a_daemon_thread_of_its_own() -> None:
    thread = await plainly(Caller(Provider()), threading.current_thread)
    assert thread is not threading.main_thread()
    assert (thread.daemon, thread.name) == (True, "p:handle_tool_call")


async def test_an_async_hook_runs_in_the_event_loop() -> None:
    async def where() -> Any:
        return threading.current_thread()

    assert await asynchronously(Caller(Provider()), where) is threading.main_thread()


async def test_an_exception_of_a_hook_reaches_the_caller_unchanged() -> None:
    def refuse() -> None:
        raise Rejected("p", "too long")

    async def refuse_too() -> None:
        refuse()

    caller = Caller(Provider())
    with pytest.raises(Rejected, match="too long"):
        await plainly(caller, refuse)
    with pytest.raises(Rejected, match="too long"):
        await asynchronously(caller, refuse_too)
    assert caller.stuck == 0


def end(error: BaseException) -> Any:
    raise error


async def test_a_call_that_cancels_itself_does_not_cancel_its_caller() -> None:
    async def cancel() -> None:
        end(asyncio.CancelledError())

    caller = Caller(Provider())
    for call in (asynchronously(caller, cancel), plainly(caller, cancel)):
        with pytest.raises(Unavailable, match="p: the call cancelled itself"):
            await call
    assert caller.stuck == 0


async def test_a_caller_cancelled_together_with_the_call_is_cancelled() -> None:
    calls: list[asyncio.Task[Any]] = []

    async def cancel_both() -> None:
        calls[0].cancel()
        end(asyncio.CancelledError())

    calls.append(asyncio.ensure_future(asynchronously(Caller(Provider()), cancel_both)))
    await asyncio.wait(calls)
    assert calls[0].cancelled()


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_an_exception_that_ends_a_thread_is_reported(error: BaseException) -> None:
    caller = Caller(Provider())
    with pytest.raises(Unavailable, match=f"p: the call was ended by {type(error).__name__}"):
        await plainly(caller, lambda: end(error))
    assert caller.stuck == 0


async def test_a_plain_hook_past_its_limit_is_abandoned_until_it_returns() -> None:
    caller = Caller(Provider())
    with Gate() as gate:
        with pytest.raises(CallTimeout, match=r"no answer within 0.02 s") as caught:
            await plainly(caller, gate.wait, timeout_s=0.02)
        assert caller.stuck == 1
        assert not caught.value.pending.done()
        gate.open()
        await asyncio.wait_for(asyncio.shield(caught.value.pending), 5)
        await until(lambda: caller.stuck == 0)


async def test_an_async_hook_past_its_limit_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    caller = Caller(Provider())
    with pytest.raises(CallTimeout):
        await asynchronously(caller, for_ever, timeout_s=0.02)
    await asyncio.wait_for(cancelled.wait(), 5)
    await until(lambda: caller.stuck == 0)


async def test_a_provider_with_too_many_open_calls_is_not_called_until_one_returns() -> None:
    caller, gates = Caller(Provider()), [Gate() for _ in range(STUCK_MAX)]
    try:
        for gate in gates:
            with pytest.raises(CallTimeout):
                await plainly(caller, gate.wait, timeout_s=0.01)
        with pytest.raises(Unavailable, match="4 calls have not returned"):
            await plainly(caller, lambda: "never called")
        gates[0].open()
        await until(lambda: caller.stuck == STUCK_MAX - 1)
        assert await plainly(caller, lambda: "called") == "called"
    finally:
        for gate in gates:
            gate.open()


async def test_a_thread_whose_caller_gave_up_counts_as_an_open_call() -> None:
    caller = Caller(Provider())
    with Gate() as gate:
        waiting = asyncio.ensure_future(plainly(caller, gate.wait))
        await until(gate.reached.is_set)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert caller.stuck == 1
        gate.open()
        await until(lambda: caller.stuck == 0)


async def test_an_awaitable_returned_by_a_plain_hook_is_awaited() -> None:
    async def slowly() -> str:
        await asyncio.sleep(0)
        return "done"

    assert await plainly(Caller(Provider()), slowly) == "done"


async def test_a_provider_is_initialised_once_with_its_settings() -> None:
    provider = Provider()
    caller = Caller(provider, {"url": "http://localhost"})
    await asyncio.gather(*(caller.ready() for _ in range(5)))
    await caller.ready()
    assert provider.initialized == [{"url": "http://localhost"}]


async def test_a_failed_initialisation_is_retried() -> None:
    class Moody(MemoryProvider):
        tries = 0

        def initialize(self, **settings: Any) -> None:
            self.tries += 1
            if self.tries == 1:
                raise OSError("no route")

    provider = Moody()
    caller = Caller(provider)
    with pytest.raises(Unavailable, match="can't be initialized: no route"):
        await caller.ready()
    await caller.ready()
    assert provider.tries == 2


async def test_nothing_counts_as_delivered_while_initialisation_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "INITIALIZE_S_MAX", 0.02)
    provider = Provider()
    caller = Caller(provider)
    with Gate() as gate:
        provider.starting = gate
        for _ in range(2):
            with pytest.raises(Unavailable) as caught:
                await caller.ready()
            assert not isinstance(caught.value, CallTimeout)
        monkeypatch.undo()
        gate.open()
        await caller.ready()
        assert len(provider.initialized) == 1


async def test_an_initialisation_that_cancels_itself_has_failed() -> None:
    class Cancelling(MemoryProvider):
        name = "p"

        async def initialize(self, **settings: Any) -> None:
            raise asyncio.CancelledError

    with pytest.raises(Unavailable, match="can't be initialized: CancelledError"):
        await Caller(Cancelling()).ready()


async def test_a_caller_waits_for_initialisation_no_longer_than_its_limit() -> None:
    provider = Provider()
    caller = Caller(provider)
    with Gate() as gate:
        provider.starting = gate
        with pytest.raises(Unavailable, match=r"not initialized within 0\.02 s"):
            await caller.ready(0.02)
        gate.open()
        await caller.ready(5)
    assert len(provider.initialized) == 1


async def test_an_unawaited_initialisation_failure_is_no_error_of_the_event_loop() -> None:
    """The event loop reports an exception that is never retrieved."""
    provider, complaints = Provider(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    with Gate() as gate:

        def fail() -> None:
            gate.wait()
            raise OSError("no route")

        provider.initialize = lambda **settings: fail()
        caller = Caller(provider)
        with pytest.raises(Unavailable):
            await caller.ready(0.02)
        before = len(asyncio.all_tasks())
        gate.open()
        await until(lambda: len(asyncio.all_tasks()) < before - 1)
    gc.collect()
    assert complaints == []


async def test_initialisation_continues_after_its_first_caller_gives_up() -> None:
    provider = Provider()
    caller = Caller(provider)
    with Gate() as gate:
        provider.starting = gate
        first = asyncio.ensure_future(caller.ready())
        await until(gate.reached.is_set)
        first.cancel()
        await asyncio.wait({first})
        second = asyncio.ensure_future(caller.ready())
        await asyncio.sleep(0)
        gate.open()
        await second
    assert len(provider.initialized) == 1


async def test_an_event_calls_its_hook_if_the_provider_has_it() -> None:
    diary, thread = AsyncDiary(), ThreadDiary()
    for provider in (diary, thread, MemoryProvider()):
        await Caller(provider).deliver(OPENED, DELIVERY, timeout_s=5)
    for book in (diary.book, thread.book):
        assert [(call.hook, call.ref, call.delivery) for call in book.calls] == [("on_session_switch", REF, DELIVERY)]


def test_only_overridden_methods_count_as_hooks() -> None:
    async def look() -> None:
        caller = Caller(AsyncDiary())
        assert caller.has("sync_turn")
        assert not caller.has("health")

    asyncio.run(look())


def test_a_thread_that_outlives_its_event_loop_is_harmless() -> None:
    release = threading.Event()

    async def start() -> None:
        in_daemon_thread(lambda: release.wait(5), "outlives")

    asyncio.run(start())
    thread = next(thread for thread in threading.enumerate() if thread.name == "outlives")
    release.set()
    thread.join(5)
    assert not thread.is_alive()


def test_a_hung_plain_hook_does_not_delay_the_end_of_the_loop() -> None:
    with Gate() as gate:

        async def leave() -> None:
            with pytest.raises(CallTimeout):
                await plainly(Caller(Provider()), gate.wait, timeout_s=0.01)

        began = time.monotonic()
        asyncio.run(leave())
        assert time.monotonic() - began < 2
