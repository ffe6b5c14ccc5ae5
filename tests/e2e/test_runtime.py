"""The wired-up core: start, drain, and stop within a time limit whatever a provider does."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import FailingClock, until

from everthread.bootstrap.clock import ulids
from everthread.bootstrap.runtime import SHUTDOWN_S_MAX, Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.errors import Unavailable
from everthread.domain.model import Inbound, Message, Role, SessionKey
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.plugins import hookimpl
from everthread.ports.memory import MemoryProvider

KEY = SessionKey.parse("agent:main:cli:dm:1")
MARGIN_S = 2.0


class Diary(MemoryProvider):
    """Memory provider that records turns after calling `before`."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.name = "diary"
        self.turns: list[str] = []
        self.shut_down = False
        self.before = before

    async def sync_turn(self, user: str, assistant: str, **_: Any) -> None:
        waited = self.before()
        if asyncio.iscoroutine(waited):
            await waited
        self.turns.append(user)

    def shutdown(self) -> None:
        self.shut_down = True


class StuckThread(MemoryProvider):
    """Memory provider with hooks that never return, including `shutdown`."""

    def __init__(self, released: threading.Event) -> None:
        super().__init__()
        self.name = "diary"
        self.released = released

    def sync_turn(self, user: str, assistant: str, **_: Any) -> None:
        self.released.wait()

    def shutdown(self) -> None:
        self.released.wait()


async def say(runtime: Runtime, text: str) -> None:
    await runtime.lifecycle.accept(Inbound(KEY, "me", text))
    ticket = await runtime.lifecycle.begin_turn(KEY)
    assert ticket is not None
    await runtime.lifecycle.commit_turn(ticket, [Message(Role.USER, text), Message(Role.ASSISTANT, "yes")], "yes")


async def held_leases(runtime: Runtime, names: tuple[str, ...]) -> list[str]:
    """Return the names of the leases that another process cannot acquire now."""
    now = runtime.clock.now()
    got = await runtime.store.write(lambda uow: [uow.leases.acquire(name, "other", now, 0.0) for name in names])
    return [name for name, lease in zip(names, got, strict=True) if lease is None]


# --- Ids -------------------------------------------------------------------------------------------------------------


def test_ids_have_26_characters_of_crockfords_alphabet() -> None:
    new_id = ulids(time.time)
    assert all(len(new_id()) == 26 and set(new_id()) <= set("0123456789ABCDEFGHJKMNPQRSTVWXYZ") for _ in range(100))
    assert ulids(lambda: 0.0, lambda bits: 2**bits - 1)() == "0000000000ZZZZZZZZZZZZZZZZ"


def test_ids_sort_by_time_across_processes() -> None:
    early = ulids(lambda: 1_700_000_000.000, lambda bits: 2**bits - 1)
    late = ulids(lambda: 1_700_000_000.001, lambda bits: 0)
    assert early() < late()


@pytest.mark.parametrize("step", [0.0, -3600.0, 0.0004])
def test_ids_increase_even_if_the_clock_goes_back(step: float) -> None:
    times = itertools.count(1_700_000_000.0, step)
    new_id = ulids(lambda: next(times))
    made = [new_id() for _ in range(1000)]
    assert made == sorted(set(made))


# --- Draining --------------------------------------------------------------------------------------------------------


async def test_a_short_run_delivers_its_turns(tmp_path: Path) -> None:
    diary = Diary()
    async with Runtime(Settings(tmp_path), providers=[diary]) as runtime:
        await runtime.start()
        await say(runtime, "one")
        assert await runtime.drain()
        assert diary.turns == ["one"]
        assert not diary.shut_down
    assert diary.shut_down


async def test_s28_turns_left_by_a_short_run_are_delivered_by_the_next(tmp_path: Path) -> None:
    async with Runtime(Settings(tmp_path), providers=[Diary(lambda: asyncio.sleep(60))]) as runtime:
        await runtime.start()
        await say(runtime, "one")
        begun = time.monotonic()
        assert not await runtime.drain(0.3)
        assert 0.3 <= time.monotonic() - begun < MARGIN_S
        await runtime.stop(0.0)
    diary = Diary()
    async with Runtime(Settings(tmp_path), providers=[diary]) as runtime:
        await runtime.start()
        assert await runtime.drain()
    assert diary.turns == ["one"]


async def test_draining_does_not_wait_for_entries_due_later(tmp_path: Path) -> None:
    def refuse() -> None:
        raise Unavailable("diary", "closed for an hour", retry_after_s=3600)

    async with Runtime(Settings(tmp_path), providers=[Diary(refuse)]) as runtime:
        await runtime.start()
        await say(runtime, "one")
        begun = time.monotonic()
        await runtime.drain(10)
        assert time.monotonic() - begun < 5
    [status] = await _status(tmp_path)
    assert status.lanes.waiting_entries > 0


async def _status(home: Path) -> Any:
    async with Runtime(Settings(home)) as runtime:
        return await runtime.memory.journal.status()


# --- Stopping --------------------------------------------------------------------------------------------------------


async def test_a_provider_that_hangs_forever_delays_stopping_only_to_its_limit(tmp_path: Path) -> None:
    released = threading.Event()
    try:
        async with Runtime(Settings(tmp_path), providers=[StuckThread(released)]) as runtime:
            await runtime.start()
            await say(runtime, "one")
            await asyncio.sleep(0.1)
            begun = time.monotonic()
            await runtime.stop(0.3)
            assert time.monotonic() - begun < 0.3 + SHUTDOWN_S_MAX + MARGIN_S
    finally:
        released.set()
    diary = Diary()
    async with Runtime(Settings(tmp_path), providers=[diary]) as runtime:
        await runtime.start()
        assert await runtime.drain()
    assert diary.turns == ["one"]


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.1])
async def test_a_stopped_process_holds_no_lease_even_right_after_the_start(after_s: float, tmp_path: Path) -> None:
    policies = ResetPolicies(ResetPolicy(idle_s=60))
    async with Runtime(Settings(tmp_path), providers=[Diary()], policies=policies) as first:
        await first.start()
        await asyncio.sleep(after_s)
        await first.stop(0.0)
        async with Runtime(Settings(tmp_path)) as second:
            assert await held_leases(second, ("journal:diary", "timers", f"process:{first.holder}")) == []


async def test_a_lease_granted_while_the_lanes_stop_is_released(tmp_path: Path) -> None:
    async with Runtime(Settings(tmp_path), providers=[Diary()]) as runtime:
        await runtime.memory.start()
        for rounds in range(6):
            serving = asyncio.ensure_future(runtime.lanes.run())
            for _ in range(rounds):
                await asyncio.sleep(0)
            serving.cancel()
            await asyncio.wait({serving})
            assert await held_leases(runtime, ("journal:diary",)) == []


async def test_a_drained_process_no_longer_counts_as_alive(tmp_path: Path) -> None:
    """Otherwise its unfinished work would wait for it in vain."""

    async def heartbeat() -> None:
        now = runtime.clock.now()
        await runtime.store.write(lambda uow: uow.leases.keep_alive(runtime.holder, now, 60))

    runtime = Runtime(Settings(tmp_path), providers=[Diary(heartbeat)])
    async with runtime:
        await say(runtime, "one")
        await runtime.memory.start()
        await runtime.store.write(lambda uow: uow.cursors.restart("diary", None, 0.0))
        await runtime.start()
    async with Runtime(Settings(tmp_path)) as another:
        assert await held_leases(another, (f"process:{runtime.holder}",)) == []


async def test_stopping_is_safe_before_starting_and_twice(tmp_path: Path) -> None:
    async with Runtime(Settings(tmp_path)) as runtime:
        await runtime.stop()
        await runtime.stop()
    async with Runtime(Settings(tmp_path)) as runtime:
        await runtime.start()
        await runtime.start()
        await runtime.stop()


async def test_an_error_in_the_block_is_not_replaced_by_one_from_stopping(tmp_path: Path) -> None:
    async def fail() -> None:
        async with Runtime(Settings(tmp_path), providers=[Diary()]) as runtime:
            await runtime.start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_plugins_are_notified_when_the_sessions_of_this_process_end(tmp_path: Path) -> None:
    class Listener:
        def __init__(self) -> None:
            self.finalized: list[str] = []

        @hookimpl
        def on_session_finalize(self, session_id: str) -> None:
            self.finalized.append(session_id)

    listener = Listener()
    async with Runtime(Settings(tmp_path), plugins=[listener]) as runtime:
        await runtime.start()
        crossing = await runtime.lifecycle.cross(KEY, New(), owner="me")
        await say(runtime, "one")
        assert listener.finalized == []
    assert crossing.ref is not None
    assert listener.finalized == [crossing.ref.session_id]


# --- Lanes of other processes -----------------------------------------------------------------------------------------


async def test_a_process_without_policies_leaves_other_processes_timers_alone(tmp_path: Path) -> None:
    policies = ResetPolicies(ResetPolicy(idle_s=0.01))
    async with Runtime(Settings(tmp_path), policies=policies) as gateway:
        await say(gateway, "one")
        await asyncio.sleep(0.05)
        async with Runtime(Settings(tmp_path)) as command:
            await command.start()
            await asyncio.sleep(0.2)
        await gateway.start()
        deadline = time.monotonic() + 5
        while await gateway.lifecycle.current(KEY) is not None:
            assert time.monotonic() < deadline, "the session did not expire"
            await asyncio.sleep(0.01)


async def test_lanes_that_die_are_reported_and_restarted(tmp_path: Path) -> None:
    clock, diary = FailingClock(), Diary()
    async with Runtime(Settings(tmp_path), providers=[diary], clock=clock) as runtime:
        await runtime.start()
        clock.is_failing = True
        await until(lambda: runtime.lanes_problem)
        assert "no more time" in runtime.lanes_problem
        await say(runtime, "after the failure")
        assert diary.turns == []
        assert await runtime.drain(8.0)
        assert diary.turns == ["after the failure"]
        assert (runtime.lane_restarts, runtime.lanes_problem) == (1, "")
        [incident] = await runtime.store.read(lambda uow: uow.incidents.newest(10))
        assert (incident.source, "no more time" in incident.text) == ("lanes", True)
