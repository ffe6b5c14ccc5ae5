import logging
from pathlib import Path
from typing import Any

import pytest
from tests.house import CLI, TELEGRAM, Gate, House

from everthread import plugins
from everthread.domain.boundary import Branch, Compress, New, Resume, Rewind
from everthread.domain.model import HookCall, Session, Turn
from everthread.ports.store import BoundaryRow


class Watcher:
    """Writes down what it is told."""

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
    """One hook, which does what it is told to."""

    def __init__(self, do: Any) -> None:
        self.do = do

    @plugins.hookimpl
    def on_session_finalize(self, session_id: str) -> None:
        self.do(session_id)


def test_only_what_some_plugin_implements_is_wanted() -> None:
    assert plugins.wanted(plugins.loaded(entry_points=False)) == frozenset()
    manager = plugins.loaded([Finalize(print), Boundaries()], entry_points=False)
    assert plugins.wanted(manager) == {"on_session_finalize", "on_boundary"}


def test_a_plugin_that_asks_for_what_no_hook_gives_is_refused_at_once() -> None:
    class Wrong:
        @plugins.hookimpl
        def on_session_finalize(self, session_identifier: str) -> None: ...

    with pytest.raises(Exception, match="session_identifier"):
        plugins.loaded([Wrong()], entry_points=False)


def test_an_installed_plugin_that_cannot_be_loaded_is_reported_and_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Entry:
        def __init__(self, name: str, plugin: object) -> None:
            self.name, self.plugin = name, plugin

        def load(self) -> object:
            if self.plugin is None:
                raise ImportError("no module named gone")
            return self.plugin

    good = Boundaries()
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Entry("bad", None), Entry("good", good)])
    with caplog.at_level(logging.WARNING):
        manager = plugins.loaded()
    assert manager.get_plugin("good") is good
    assert "plugin bad can't be loaded: no module named gone" in caplog.text


async def test_hooks_come_in_the_order_of_the_boundaries(tmp_path: Path) -> None:
    watcher = Watcher()
    async with House(tmp_path, plugins=(watcher,)) as house:
        first = (await house.turn(CLI, "one")).ref.session_id
        second = (await house.cross(CLI, New())).ref
        assert second is not None
        await house.cross(CLI, Resume(first))
        await house.settled()
    assert watcher.got == [
        ("start", first),
        ("turn", "one"),
        ("finalize", first, "cli"),
        ("reset", second.session_id, "cli"),
        ("start", second.session_id),
        ("finalize", second.session_id, "cli"),
    ]


async def test_every_boundary_reaches_a_plugin_as_the_audit_trail_has_it(tmp_path: Path) -> None:
    boundaries = Boundaries()
    async with House(tmp_path, plugins=(boundaries,)) as house:
        ref = (await house.turn(CLI, "one")).ref
        await house.cross(CLI, Compress(ref.session_id, ref.generation, "so far", 1))
        await house.cross(CLI, Rewind())
        await house.turn(CLI, "two")
        await house.cross(CLI, Rewind())
        await house.cross(CLI, Branch())
        await house.settled()
        trail = await house.store.read(lambda uow: uow.sessions.boundaries(limit=100))
    assert [row.kind for row in boundaries.rows] == ["new", "compress", "rewind", "branch"]
    assert tuple(reversed(boundaries.rows)) == trail


async def test_a_hook_that_raises_is_reported_and_the_others_are_called(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(session_id: str) -> None:
        raise ValueError("broken plugin")

    called: list[str] = []
    async with House(tmp_path, plugins=(Finalize(called.append), Finalize(fail), Finalize(called.append))) as house:
        await house.turn(CLI, "one")
        crossing = await house.cross(CLI, New())
        await house.settled()
        assert crossing.left is not None
        assert called == [crossing.left] * 2
        [incident] = await house.incidents()
        assert "hook:on_session_finalize" in incident
        assert "broken plugin" in incident
    assert "broken plugin" in caplog.text


async def test_a_hook_that_hangs_is_left_behind_reported_and_holds_up_no_other_key(tmp_path: Path) -> None:
    first_of: dict[str, str] = {}
    called: list[str] = []
    with Gate() as gate:

        def hang(session_id: str) -> None:
            if session_id == first_of["cli"]:
                gate.wait()
            called.append(session_id)

        async with House(tmp_path, plugins=(Finalize(hang),)) as house:
            for key in (CLI, TELEGRAM):
                first_of[key.platform] = (await house.turn(key, "one")).ref.session_id
            await house.cross(CLI, New())
            await house.cross(TELEGRAM, New())
            await house.settled()
            assert called == [first_of["telegram"]]
            assert "no return within 0.2 s" in (await house.incidents())[0]


async def test_hooks_that_were_not_called_are_called_after_a_restart(tmp_path: Path) -> None:
    watcher = Watcher()
    async with House(tmp_path, plugins=(watcher,)) as house:
        house.lanes.serve(plugins.HOOKS_LANE, _never)  # this process never gets round to them
        await house.turn(CLI, "one")
        crossing = await house.cross(CLI, New())
    watcher.got.clear()
    async with House(tmp_path, plugins=(watcher,)) as house:
        await house.settled()
    assert crossing.ref is not None
    assert ("finalize", crossing.left, "cli") in watcher.got
    assert watcher.got.index(("finalize", crossing.left or "", "cli")) < watcher.got.index(
        ("reset", crossing.ref.session_id, "cli")
    )


async def _never(lease: object) -> None:
    return None


async def test_a_hook_that_took_the_process_down_too_often_is_given_up_and_said_so(tmp_path: Path) -> None:
    called: list[str] = []
    async with House(tmp_path, plugins=(Finalize(called.append),)) as house:
        call = HookCall("on_session_finalize", "s1", "cli")

        def add(uow: Any) -> None:
            uow.lanes.add_hook(CLI, call, 0.0)
            [hook] = uow.lanes.hooks(10)
            for _ in range(plugins.ATTEMPTS_MAX):
                uow.lanes.hook_tried(hook.id)

        await house.store.write(add)
        await house.settled()
        assert called == []
        assert "given up" in (await house.incidents())[0]


async def test_more_hooks_than_are_taken_at_once_are_all_called(tmp_path: Path) -> None:
    called: list[str] = []
    async with House(tmp_path, plugins=(Finalize(called.append),)) as house:

        def add(uow: Any) -> None:
            for number in range(250):
                uow.lanes.add_hook(CLI, HookCall("on_session_finalize", f"s{number}", "cli"), 0.0)

        await house.store.write(add)
        await house.settled()
    assert called == [f"s{number}" for number in range(250)]
