import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import CLI, TELEGRAM, CoreFixture, Gate, until

from everthread import plugins
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import Branch, Compress, New, Resume, Rewind
from everthread.domain.model import (
    HookCall,
    Lease,
    Session,
    SessionKey,
    Turn,
)
from everthread.store.sessions import BoundaryRow
from everthread.store.unit_of_work import UnitOfWork
from everthread.trust.decisions import TrustFile
from everthread.trust.installed_plugins import PluginTrust


class Watcher:
    """A plugin that records its calls."""

    def __init__(self) -> None:
        self.got: list[tuple[str, ...]] = []

    @plugins.hookimpl
    def on_session_start(self, session: Session) -> None:
        self.got.append(("start", session.id))

    @plugins.hookimpl
    def on_session_finalize(self, session_id: str, platform: str) -> None:
        self.got.append(("finalize", session_id, platform))

    @plugins.hookimpl
    def on_session_reset(self, session_id: str, platform: str) -> None:
        self.got.append(("reset", session_id, platform))

    @plugins.hookimpl
    def on_turn_end(self, turn: Turn) -> None:
        self.got.append(("turn", turn.user_text))


class Boundaries:
    def __init__(self) -> None:
        self.rows: list[BoundaryRow] = []

    @plugins.hookimpl
    def on_boundary(self, boundary: BoundaryRow) -> None:
        self.rows.append(boundary)


class Finalize:
    """A plugin with one hook whose behaviour a test sets."""

    def __init__(self, do: Any) -> None:
        self.do = do

    @plugins.hookimpl
    def on_session_finalize(self, session_id: str) -> None:
        self.do(session_id)


def finalizing(
    *sessions: str, key: SessionKey = CLI, hook: str = "on_session_finalize"
) -> Callable[[UnitOfWork], None]:
    """Writes down that these sessions were left."""

    def add(uow: UnitOfWork) -> None:
        for session in sessions:
            uow.leases.add_hook(key, HookCall(hook, session, key.platform), 0.0)

    return add


async def served_by_hand(
    core: CoreFixture, plugin: object, wake: Callable[[str], None]
) -> tuple[plugins.HookRunner, Lease]:
    """A runner that does nothing unless it is drained here."""
    manager = plugins.load_plugins([plugin])
    runner = plugins.HookRunner(core.store, core.clock, manager, wake=wake, hook_s_max=60)
    lease = await core.store.write(lambda uow: uow.leases.acquire(runner.lane, "me", core.clock.now(), 60))
    assert lease is not None
    return runner, lease


async def waiting(core: CoreFixture | Runtime) -> list[str]:
    return [hook.call.session_id for hook in await core.store.read(lambda uow: uow.leases.hooks(1000))]


def test_only_implemented_hooks_are_queued() -> None:
    assert plugins.implemented_hooks(plugins.load_plugins()) == frozenset()
    manager = plugins.load_plugins([Finalize(print), Boundaries()])
    assert plugins.implemented_hooks(manager) == {"on_session_finalize", "on_boundary"}


def test_a_plugin_with_an_unknown_hook_argument_is_refused() -> None:
    class Wrong:
        @plugins.hookimpl
        def on_session_finalize(self, session_identifier: str) -> None: ...

    with pytest.raises(Exception, match="session_identifier"):
        plugins.load_plugins([Wrong()])


def test_an_installed_plugin_that_can_not_be_loaded_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Entry:
        dist, value = None, "somewhere"

        def __init__(self, name: str, plugin: object) -> None:
            self.name, self.plugin = name, plugin

        def load(self) -> object:
            if self.plugin is None:
                raise ImportError("no module named gone")
            return self.plugin

    good = Boundaries()
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Entry("bad", None), Entry("good", good)])
    monkeypatch.setattr(plugins, "has_plugins", lambda folders: True)
    manager = plugins.load_plugins()
    with caplog.at_level(logging.WARNING):
        plugins.load_installed(manager, PluginTrust(("bad", "good"), TrustFile(tmp_path / "trust.json")))
    assert manager.get_plugin("good") is good
    assert "plugin bad can't be loaded: no module named gone" in caplog.text


async def test_hooks_come_in_the_order_of_the_boundaries(tmp_path: Path) -> None:
    watcher = Watcher()
    async with CoreFixture(tmp_path, plugins=(watcher,)) as core:
        first = (await core.turn(CLI, "one")).ref.session_id
        second = (await core.cross(CLI, New())).ref
        assert second is not None
        await core.cross(CLI, Resume(first))
        await core.settled()
    assert watcher.got == [
        ("start", first),
        ("turn", "one"),
        ("finalize", first, "cli"),
        ("reset", second.session_id, "cli"),
        ("start", second.session_id),
        ("finalize", second.session_id, "cli"),
    ]


async def test_every_boundary_reaches_a_plugin_as_in_the_audit_trail(tmp_path: Path) -> None:
    boundaries = Boundaries()
    async with CoreFixture(tmp_path, plugins=(boundaries,)) as core:
        ref = (await core.turn(CLI, "one")).ref
        await core.cross(CLI, Compress(ref.session_id, ref.generation, "so far", 1))
        await core.cross(CLI, Rewind())
        await core.turn(CLI, "two")
        await core.cross(CLI, Rewind())
        await core.cross(CLI, Branch())
        await core.settled()
        trail = await core.store.read(lambda uow: uow.sessions.boundaries(limit=100))
    assert [row.kind for row in boundaries.rows] == ["new", "compress", "rewind", "branch"]
    assert tuple(reversed(boundaries.rows)) == trail


async def test_a_hook_that_raises_is_reported_and_the_others_are_called(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(session_id: str) -> None:
        raise ValueError("broken plugin")

    called: list[str] = []
    async with CoreFixture(
        tmp_path, plugins=(Finalize(called.append), Finalize(fail), Finalize(called.append))
    ) as core:
        await core.turn(CLI, "one")
        crossing = await core.cross(CLI, New())
        await core.settled()
        assert crossing.left is not None
        assert called == [crossing.left] * 2
        [incident] = await core.incidents()
        assert "hook:on_session_finalize" in incident
        assert "broken plugin" in incident
    assert "broken plugin" in caplog.text


async def test_a_hanging_hook_is_abandoned_and_reported_and_delays_no_other_key(tmp_path: Path) -> None:
    first_of: dict[str, str] = {}
    called: list[str] = []
    with Gate() as gate:

        def hang(session_id: str) -> None:
            if session_id == first_of["cli"]:
                gate.wait()
            called.append(session_id)

        async with CoreFixture(tmp_path, plugins=(Finalize(hang),), hook_s_max=0.5) as core:
            for key in (CLI, TELEGRAM):
                first_of[key.platform] = (await core.turn(key, "one")).ref.session_id
            await core.cross(CLI, New())
            await core.cross(TELEGRAM, New())
            await core.settled()
            assert called == [first_of["telegram"]]
            assert "no return within 0.5 s" in (await core.incidents())[0]


async def test_queued_hooks_are_called_after_a_restart(tmp_path: Path) -> None:
    watcher = Watcher()
    async with CoreFixture(tmp_path, plugins=(watcher,)) as core:
        core.lanes.serve(core.hooks.lane, _never)  # this process never gets round to them
        await core.turn(CLI, "one")
        crossing = await core.cross(CLI, New())
    watcher.got.clear()
    async with CoreFixture(tmp_path, plugins=(watcher,)) as core:
        await core.settled()
    assert crossing.ref is not None
    assert ("finalize", crossing.left, "cli") in watcher.got
    assert watcher.got.index(("finalize", crossing.left or "", "cli")) < watcher.got.index(
        ("reset", crossing.ref.session_id, "cli")
    )


async def _never(lease: object) -> None:
    return None


async def test_a_hook_that_crashed_the_process_too_often_is_dropped_and_reported(tmp_path: Path) -> None:
    called: list[str] = []
    async with CoreFixture(tmp_path, plugins=(Finalize(called.append),)) as core:
        call = HookCall("on_session_finalize", "s1", "cli")

        def add(uow: Any) -> None:
            uow.leases.add_hook(CLI, call, 0.0)
            [hook] = uow.leases.hooks(10)
            for _ in range(plugins.ATTEMPTS_MAX):
                uow.leases.count_hook_attempt(hook.id)

        await core.store.write(add)
        await core.settled()
        assert called == []
        assert "skipped" in (await core.incidents())[0]


async def test_more_hooks_than_one_batch_are_all_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "AT_ONCE", 4)
    called: list[str] = []
    sessions = [f"s{number}" for number in range(10)]
    async with CoreFixture(tmp_path, plugins=(Finalize(called.append),), hook_s_max=60) as core:
        await core.store.write(finalizing(*sessions))
        await until(lambda: len(called) == len(sessions))
        await core.settled()
    assert called == sessions


def test_processes_share_a_lane_if_they_have_the_same_hooks() -> None:
    names = ["on_boundary", "on_session_finalize"]
    assert plugins.lane_name(names) == plugins.lane_name(reversed(names))
    assert len({plugins.lane_name(some) for some in (names, names[:1], names[1:])}) == 3


async def test_two_processes_with_different_plugins_serve_theirs_side_by_side(tmp_path: Path) -> None:
    called: list[str] = []
    boundaries = Boundaries()
    async with (
        CoreFixture(tmp_path, plugins=(boundaries,)) as theirs,
        CoreFixture(tmp_path, plugins=(Finalize(called.append),)) as ours,
    ):
        old = (await ours.turn(CLI, "one")).ref.session_id
        await ours.cross(CLI, New())
        await theirs.cross(TELEGRAM, New())
        await ours.settled()
        await theirs.settled()
    assert called == [old]
    assert [row.key for row in boundaries.rows] == [TELEGRAM]


async def test_hooks_of_missing_plugins_wait_and_delay_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "AT_ONCE", 2)
    watcher, called = Watcher(), list[str]()
    async with CoreFixture(tmp_path, plugins=(Finalize(called.append),)) as core:
        await core.store.write(finalizing("s1", "s2", "s3", hook="on_session_reset"))
        await core.store.write(finalizing("s4"))
        await core.settled()
        assert called == ["s4"]
        assert await waiting(core) == ["s1", "s2", "s3"]
    async with CoreFixture(tmp_path, plugins=(watcher,)) as core:
        await core.settled()
    assert watcher.got == [("reset", name, "cli") for name in ("s1", "s2", "s3")]


async def test_a_hook_called_by_another_process_is_not_called_again(tmp_path: Path) -> None:
    called: list[str] = []
    with Gate() as gate:

        def hang(session_id: str) -> None:
            called.append(session_id)
            gate.wait()

        async with CoreFixture(tmp_path, plugins=(Finalize(hang),), hook_s_max=60) as core:
            await core.store.write(finalizing("s1", "s2", "s3"))
            await until(gate.reached.is_set)
            hooks = await core.store.read(lambda uow: uow.leases.hooks(9))
            await core.store.write(lambda uow: uow.leases.drop_hook(hooks[1].id))
            gate.open()
            await core.settled()
    assert called == ["s1", "s3"]


async def test_a_hanging_hook_with_a_long_queue_delays_no_other_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "AT_ONCE", 2)
    called: list[str] = []
    with Gate() as gate:

        def hang(session_id: str) -> None:
            if session_id == "hangs":
                gate.wait()
            called.append(session_id)

        async with CoreFixture(tmp_path, plugins=(Finalize(hang),), hook_s_max=60) as core:
            await core.store.write(finalizing("hangs", "s1", "s2"))
            await until(gate.reached.is_set)
            await core.store.write(finalizing("t1", "t2", "t3", key=TELEGRAM))
            await until(lambda: called == ["t1", "t2", "t3"])
            gate.open()
            await core.settled()
    assert called == ["t1", "t2", "t3", "hangs", "s1", "s2"]


async def test_draining_does_not_wait_for_hooks_and_their_end_wakes_the_lane(tmp_path: Path) -> None:
    called: list[str] = []
    woken: list[str] = []
    with Gate() as gate:

        def hang(session_id: str) -> None:
            gate.wait()
            called.append(session_id)

        async with CoreFixture(tmp_path) as core:
            runner, lease = await served_by_hand(core, Finalize(hang), woken.append)
            await core.store.write(finalizing("s1"))
            for _ in range(2):
                async with asyncio.timeout(5):
                    assert await runner.drain(lease) is None
            await until(gate.reached.is_set)
            assert (called, woken) == ([], [])
            gate.open()
            await until(lambda: woken)
            assert (called, woken) == (["s1"], [runner.lane])
            assert await waiting(core) == []


async def test_a_partly_claimed_lane_is_due_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "AT_ONCE", 2)
    with Gate() as gate:
        async with CoreFixture(tmp_path) as core:
            runner, lease = await served_by_hand(core, Finalize(lambda session_id: gate.wait()), lambda lane: None)
            await core.store.write(finalizing("s1", "s2"))
            await core.store.write(finalizing("t1", key=TELEGRAM))
            due = await runner.drain(lease)
            assert due is not None
            assert due <= core.clock.now()
            assert await runner.drain(lease) is None
            await runner.stop()


async def test_a_hook_that_returns_during_the_read_of_its_lane_is_not_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    woken: list[str] = []
    with Gate() as gate:

        def hang(session_id: str) -> None:
            gate.wait()
            called.append(session_id)

        async with CoreFixture(tmp_path) as core:
            runner, lease = await served_by_hand(core, Finalize(hang), woken.append)
            await core.store.write(finalizing("s1"))
            await runner.drain(lease)
            await until(gate.reached.is_set)
            tried: list[int] = []
            read = core.store.read

            async def slow_read(work: Any) -> Any:
                found = await read(work)
                gate.open()
                await until(lambda: woken)
                return found

            with monkeypatch.context() as patch:
                patch.setattr(core.store, "read", slow_read)
                patch.setattr(runner, "_start", lambda key, hooks, lease: tried.append(len(hooks)))
                await runner.drain(lease)
    assert (called, tried) == (["s1"], [])


async def test_a_plugin_with_too_many_open_calls_is_not_called(tmp_path: Path) -> None:
    begun: list[str] = []
    others: list[str] = []
    back: list[str] = []
    keys = [SessionKey.parse(f"agent:main:cli:dm:{number}") for number in range(plugins.STUCK_MAX + 2)]
    with Gate() as gate:

        def hang(session_id: str) -> None:
            begun.append(session_id)
            gate.wait()
            back.append(session_id)

        async with CoreFixture(tmp_path, plugins=(Finalize(hang), Finalize(others.append)), hook_s_max=0.3) as core:
            for number, key in enumerate(keys):
                await core.store.write(finalizing(f"s{number}", key=key))
            await core.settled()
            assert len(begun) == plugins.STUCK_MAX
            incidents = await core.incidents()
            assert len([text for text in incidents if "no return within 0.3 s" in text]) >= plugins.STUCK_MAX
            assert len([text for text in incidents if "4 calls have not returned" in text]) == 2
            await until(lambda: sorted(others) == [f"s{number}" for number in range(len(keys))])
            gate.open()
            await until(lambda: len(back) == plugins.STUCK_MAX)
            await asyncio.sleep(0.05)
            await core.store.write(finalizing("later"))
            await core.settled()
            await until(lambda: "later" in back)


async def test_calls_within_their_time_limit_are_awaited(tmp_path: Path) -> None:
    begun: list[str] = []
    keys = [SessionKey.parse(f"agent:main:cli:dm:{number}") for number in range(plugins.STUCK_MAX + 2)]
    with Gate() as gate:

        def hang(session_id: str) -> None:
            begun.append(session_id)
            gate.wait()

        async with CoreFixture(tmp_path, plugins=(Finalize(hang),), hook_s_max=60) as core:
            for number, key in enumerate(keys):
                await core.store.write(finalizing(f"s{number}", key=key))
            await until(lambda: len(begun) == plugins.STUCK_MAX)
            await asyncio.sleep(0.05)
            assert len(begun) == plugins.STUCK_MAX
            gate.open()
            await core.settled()
            assert sorted(begun) == [f"s{number}" for number in range(len(keys))]
            assert await core.incidents() == []


async def test_a_running_hook_of_a_stopping_process_is_called_again(tmp_path: Path) -> None:
    called: list[str] = []
    woken: list[str] = []
    with Gate() as gate:

        def hang(session_id: str) -> None:
            gate.wait()
            called.append(session_id)

        async with CoreFixture(tmp_path) as core:
            runner, lease = await served_by_hand(core, Finalize(hang), woken.append)
            await core.store.write(finalizing("s1"))
            await runner.drain(lease)
            await until(gate.reached.is_set)
            async with asyncio.timeout(5):
                await runner.stop()
            gate.open()
            await until(lambda: called)
            await asyncio.sleep(0.1)
            assert (await waiting(core), woken) == (["s1"], [])
            await runner.drain(lease)
            await until(lambda: woken)
            assert (await waiting(core), called) == ([], ["s1", "s1"])


async def test_a_stopping_runtime_does_not_wait_for_hooks_and_leaves_none_running(tmp_path: Path) -> None:
    with Gate() as gate:
        async with Runtime(Settings(tmp_path), plugins=[Finalize(lambda session_id: gate.wait())]) as runtime:
            await runtime.start()
            await runtime.store.write(finalizing("s1"))
            await until(gate.reached.is_set)
            async with asyncio.timeout(5):
                await runtime.stop(0.0)
            assert not [task for task in asyncio.all_tasks() if "HookRunner" in repr(task)]


class Asynchronous:
    def __init__(self, do: Any) -> None:
        self.do = do

    @plugins.hookimpl
    async def on_session_finalize(self, session_id: str) -> None:
        await self.do(session_id)


async def _exits(session_id: str) -> None:
    sys.exit(3)


async def _is_cancelled(session_id: str) -> None:
    raise asyncio.CancelledError


async def _hangs(session_id: str) -> None:
    await asyncio.Event().wait()


async def test_an_async_hook_that_hangs_is_cancelled(tmp_path: Path) -> None:
    cancelled: list[str] = []

    async def hang(session_id: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(session_id)
            raise

    async with CoreFixture(tmp_path, plugins=(Asynchronous(hang),), hook_s_max=0.1) as core:
        await core.store.write(finalizing("s1"))
        await core.settled()
        assert cancelled == ["s1"]


@pytest.mark.parametrize(
    ("plugin", "problem"),
    [
        (Finalize(lambda session_id: sys.exit(3)), "SystemExit(3)"),
        (Asynchronous(_exits), "SystemExit(3)"),
        (Asynchronous(_is_cancelled), "cancelled"),
        (Asynchronous(_hangs), "no return within 0.3 s"),
    ],
)
async def test_a_failing_hook_is_reported_and_the_next_is_called(tmp_path: Path, plugin: object, problem: str) -> None:
    async with CoreFixture(tmp_path, plugins=(plugin,), hook_s_max=0.3) as core:
        await core.store.write(finalizing("s1", "s2"))
        await core.settled()
        incidents = await core.incidents()
    assert [problem in incident for incident in incidents] == [True, True]


def test_an_installed_package_cannot_load_its_plugin_without_an_approval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not plugins.has_plugins([str(tmp_path), str(tmp_path / "nowhere")])
    package = tmp_path / "diary-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: diary\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[console_scripts]\ndiary = diary:main\n")
    assert not plugins.has_plugins([str(tmp_path)])
    (package / "entry_points.txt").write_text("[everthread.plugins]\ndiary = diary_plugin:plugin\n")
    assert plugins.has_plugins([str(tmp_path)])
    (tmp_path / "diary_plugin.py").write_text("class plugin:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    manager, trust = plugins.load_plugins(), TrustFile(tmp_path / "home" / "trust.json")
    [problem] = plugins.load_installed(manager, PluginTrust((), trust))
    assert problem.startswith("plugin diary of diary 1.0 is not loaded: not approved yet. To change that: ")
    assert not manager.has_plugin("diary")
    assert "diary_plugin" not in sys.modules
    [(plugin, _)] = plugins.find_installed()
    PluginTrust((), trust).decide(plugin, False)
    assert plugins.load_installed(manager, PluginTrust((), trust)) == ()
    assert "diary_plugin" not in sys.modules
    PluginTrust((), trust).decide(plugin, True)
    assert plugins.load_installed(manager, PluginTrust((), trust)) == ()
    assert manager.has_plugin("diary")


def test_an_archive_on_the_path_may_hold_plugins(tmp_path: Path) -> None:
    (tmp_path / "packages.zip").write_bytes(b"")
    assert plugins.has_plugins([str(tmp_path / "packages.zip")])


async def test_a_plugin_may_be_async(tmp_path: Path) -> None:
    heard: list[str] = []

    class Later:
        @plugins.hookimpl
        async def on_session_finalize(self, session_id: str) -> None:
            heard.append(session_id)

    async with CoreFixture(tmp_path, plugins=(Later(),)) as core:
        left = (await core.turn(CLI, "hello")).ref.session_id
        await core.cross(CLI, New())
        await until(lambda: heard == [left])
