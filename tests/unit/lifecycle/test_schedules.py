"""Scheduled tasks: names, addresses, where files may be, and the tool by which the model makes some."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import CLI, CoreFixture

from everthread.agent.tools.schedule import ScheduleTool
from everthread.bootstrap.clock import ulids
from everthread.config.environment import local_zone
from everthread.config.schema import ScheduleSettings, Settings
from everthread.config.settings import load
from everthread.domain.errors import BadConfig, BadSchedule, ToolFailed
from everthread.domain.model import SessionKey, SessionRef
from everthread.domain.rights import RightsPolicy, rights_of
from everthread.domain.schedule import (
    ScheduleState,
    Target,
    TargetKind,
    check_name,
    format_address,
    make_name,
    parse_address,
)
from everthread.gateway.schedule_output import _append, file_at, parse_target  # pyright: ignore[reportPrivateUsage]
from everthread.lifecycle.schedules import FINISHED_KEPT, NewSchedule, OccurrenceResult, ScheduleService
from everthread.ports.tools import ToolUse
from everthread.store.recall_scope import RecallScopes


def test_a_name_is_made_of_the_first_words_and_is_unique() -> None:
    assert make_name("Say good morning, please do!", ()) == "say-good-morning-please"
    assert make_name("Say it", {"say-it", "say-it-2"}) == "say-it-3"
    assert make_name("日本", ()) == "task"
    assert check_name(make_name("x" * 300, ())) == "x" * 58
    for name in ("", "a b", "A", "x" * 65, "-a", "a\n"):
        with pytest.raises(BadSchedule):
            check_name(name)


@pytest.mark.parametrize(
    ("address", "chat", "thread"),
    [
        ("telegram:42", "42", None),
        ("telegram:-1001#7", "-1001", "7"),
        ("matrix:!room:home.org", "!room:home.org", None),
        ("slack:#general", "#general", None),
    ],
)
def test_an_address_survives_a_round_trip(address: str, chat: str, thread: str | None) -> None:
    key = parse_address(address, "main", ("telegram", "matrix", "slack"))
    assert (key.chat, key.thread) == (chat, thread)
    assert format_address(key) == address
    assert SessionKey.parse(str(key)) == key


@pytest.mark.parametrize(
    "address", ["", "telegram", "telegram:", ":42", "other:42", "telegram:4\n2", "telegram:" + "x" * 300]
)
def test_an_invalid_address_is_reported(address: str) -> None:
    with pytest.raises(BadSchedule):
        parse_address(address, "main", ("telegram",))


def test_files_are_written_only_below_the_configured_folders(tmp_path: Path) -> None:
    home, reports = tmp_path / "home", tmp_path / "reports"
    reports.mkdir(parents=True)
    (home / "files").mkdir(parents=True)
    settings = Settings(home, schedule=ScheduleSettings(folders=(reports,)))
    assert file_at(settings, "a/b.txt") == home / "files" / "a" / "b.txt"
    assert file_at(settings, str(reports / "x")) == reports / "x"
    (home / "files" / "out").symlink_to(tmp_path)
    outside = ("../config.toml", "/etc/passwd", "out/x", str(reports), "", "a\0b", str(home / "everthread.db"))
    no_names = ("x" * 300, "a\nb", "sub/" * 2000 + "x", "not-there-yet/" + "x" * 300)
    for path in (*outside, *no_names):
        with pytest.raises(BadSchedule):
            file_at(settings, path)


def test_output_that_may_have_been_appended_is_not_appended_again(tmp_path: Path) -> None:
    file = tmp_path / "a" / "log"
    _append(file, b"one\n", False)
    _append(file, b"one\n", False)
    _append(file, b"one\n", True)
    _append(file, b"two\n", True)
    assert file.read_bytes() == b"one\none\ntwo\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_partial_write_on_a_full_disk_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "log"
    _append(file, b"one\n", False)
    write, room = os.write, [3, 0]

    def small_disk(opened: int, content: bytes) -> int:
        if not room:
            return write(opened, content)
        if (left := room.pop(0)) == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(opened, content[:left])

    monkeypatch.setattr(os, "write", small_disk)
    with pytest.raises(OSError, match="No space"):
        _append(file, b"second\n", False)
    assert file.read_bytes() == b"one\n"
    room[:] = [2, 2]
    _append(file, b"second\n", True)
    assert file.read_bytes() == b"one\nsecond\n"


def test_a_webhook_is_signed_or_refused_and_its_display_hides_the_secret(tmp_path: Path) -> None:
    def chat(text: str) -> str:
        raise AssertionError

    settings = Settings(tmp_path)
    target = parse_target("https://h/x?key=1", "SECRET", settings, chat)
    assert target == Target(TargetKind.WEBHOOK, "https://h/x?key=1", "SECRET")
    assert str(target) == "https://h/x"
    for to, secret in (
        *(("https://h/x", ""), ("https:h", "S"), ("none", "S"), ("https://h/ x", "S"), ("https://", "S")),
        *(("https://me:geheim@h/x", "S"), ("https://h:99999/x", "S"), ("https://h/x", "no name"), ("https://h/x", "9")),
    ):
        with pytest.raises(BadSchedule) as refused:
            parse_target(to, secret, settings, chat)
        assert "geheim" not in str(refused.value)
    assert str(Target(TargetKind.WEBHOOK, "https://me:geheim@h:1/x?key=1#2", "S")) == "https://h:1/x"


def test_the_zone_of_the_machine_is_found_or_is_utc(tmp_path: Path) -> None:
    link = tmp_path / "localtime"
    assert local_zone({}, link) == "UTC"
    link.symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    assert local_zone({}, link) == "Europe/Berlin"
    assert local_zone({"TZ": "America/New_York"}, link) == "America/New_York"
    assert local_zone({"TZ": "CET-1CEST,M3.5.0"}, link) == "UTC"


def test_settings_of_schedules_are_read_and_checked(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[schedule]\nzone = "Asia/Tokyo"\nfolders = ["out", "/srv/x"]\nper_owner = 0\nevery_minutes = 1\n'
    )
    settings = load(str(tmp_path), {})
    assert settings.schedule == ScheduleSettings("Asia/Tokyo", (tmp_path / "out", Path("/srv/x")), 0, 1.0)
    assert settings.zone == "Asia/Tokyo"
    assert settings.file_folders[0] == tmp_path / "files"
    for line, says in (('zone = "Mars"', "toml:2.*Europe/Berlin"), ("per_owner = -1", "0"), ("often = 1", "often")):
        config.write_text(f"[schedule]\n{line}\n")
        with pytest.raises(BadConfig, match=says):
            load(str(tmp_path), {})


async def test_a_schedule_paused_during_replanning_stays_paused(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        scheduling = ScheduleService(core.store, core.clock, ulids(core.clock.now))
        schedule = await scheduling.add(NewSchedule("me", "every 1h", "UTC", "x"))
        as_it_was = await scheduling.all()
        await scheduling.pause(schedule)

        async def seen_before(owner: str | None = None) -> Any:
            return as_it_was

        scheduling.all = seen_before  # type: ignore[method-assign]
        await scheduling.replan()
        left = await core.store.read(lambda uow: uow.schedules.get(schedule.id))
        assert left is not None
        assert (left.state, left.next_at) == (ScheduleState.PAUSED, None)


async def test_only_the_latest_finished_reminders_are_kept(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        scheduling = ScheduleService(core.store, core.clock, ulids(core.clock.now))
        first = await scheduling.add(NewSchedule("me", "in 1h", "UTC", "number 0"))
        core.clock.advance(3700)
        await scheduling.fire_due(core.clock.now())
        await scheduling.add(NewSchedule("bea", "in 1h", "UTC", "hers"))
        for number in range(1, FINISHED_KEPT + 4):
            schedule = await scheduling.add(NewSchedule("me", "in 1h", "UTC", f"number {number}"))
            core.clock.advance(3700)
            await scheduling.fire_due(core.clock.now())
            if number != 3:
                (time,) = await core.store.read(lambda uow, s=schedule: uow.schedules.occurrences(s.id, 2))
                await scheduling.end(time, OccurrenceResult("done"))
        await scheduling.add(NewSchedule("me", "every 1h", "UTC", "goes on"))
        left = {schedule.name for schedule, _ in await scheduling.all("me")}
        assert {f"number-{number}" for number in range(4, FINISHED_KEPT + 4)} < left
        assert {first.name, "number-3"} < left, "these are not done yet"
        assert not {"number-1", "number-2"} & left
        assert len(left) == FINISHED_KEPT + 3
        assert len(await scheduling.all("bea")) == 1
        with pytest.raises(BadSchedule, match="there are already 1 tasks"):
            await scheduling.add(NewSchedule("me", "every 1h", "UTC", "too many"), at_most=1)


# --- The tool --------------------------------------------------------------------------------------------------------

CHAT = SessionKey.parse("agent:main:telegram:group:42::7")


class ScheduleFixture:
    def __init__(self, core: CoreFixture, home: Path) -> None:
        self.scheduling = ScheduleService(core.store, core.clock, ulids(core.clock.now))
        settings = Settings(home, schedule=ScheduleSettings(zone="Europe/Berlin", per_owner=2))
        self._tool = ScheduleTool(
            self.scheduling, core.clock, settings, {"telegram"}, core.store, RecallScopes()
        ).tool()
        assert self._tool.remembers, "a scheduled task must not have it"

    async def ask(self, key: SessionKey = CHAT, owner: str = "bea", **arguments: Any) -> str:
        return await self._tool.run(
            arguments, ToolUse(SessionRef("s", 0, key, 1, owner), "t", "c", rights_of(RightsPolicy("me"), owner))
        )


async def test_the_model_schedules_for_its_speaker_and_into_that_chat(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        said = await desk.ask(action="add", when="0 8 * * 1-5", prompt="Say good morning")
        assert "say-good-morning; next: " in said
        assert "08:00 Europe/Berlin" in said
        ((schedule, _),) = await desk.scheduling.all()
        assert (schedule.owner, schedule.target.to) == ("bea", "agent:main:telegram:group:42")
        assert "say-good-morning" in await desk.ask(action="list")
        assert await desk.ask(action="list", owner="ann") == "Nothing is scheduled."
        with pytest.raises(ToolFailed, match="no task"):
            await desk.ask(action="remove", name="say-good-morning", owner="ann")
        assert await desk.ask(action="remove", name="say-good-morning") == "Removed say-good-morning."


async def test_the_model_can_not_exceed_the_limits_of_schedules(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        refused: tuple[tuple[dict[str, Any], str], ...] = (
            ({"when": "every 5m", "prompt": "x"}, "too often"),
            ({"when": "*/10 8 * * *", "prompt": "x"}, "too often"),
            ({"when": "every 2h", "prompt": "x", "to": "telegram:1"}, "omit `to`"),
            ({"when": "every 2h", "prompt": " "}, "1 to 20000"),
            ({"when": "soon", "prompt": "x"}, "five fields"),
            ({"when": "every 2h", "prompt": "x", "zone": "Mars"}, "time zone"),
        )
        for arguments, says in refused:
            with pytest.raises(ToolFailed, match=says):
                await desk.ask(action="add", **arguments)
        for _ in range(2):
            await desk.ask(action="add", when="every 2h", prompt="x")
        with pytest.raises(ToolFailed, match="at most 2"):
            await desk.ask(action="add", when="every 2h", prompt="x")
        mine = await desk.ask(owner="me", action="add", when="in 5m", prompt="y", to="telegram:1")
        assert "goes to telegram:1" in mine
        with pytest.raises(ToolFailed, match="configured: telegram"):
            await desk.ask(owner="me", action="add", when="in 5m", prompt="y", to="file:x")
        assert "stored in its own conversation" in await desk.ask(CLI, "me", action="add", when="in 5m", prompt="z")


async def test_a_group_neither_sees_nor_removes_the_private_tasks_of_the_person_who_asks(tmp_path: Path) -> None:
    private, elsewhere = (SessionKey.parse(f"agent:main:telegram:{key}") for key in ("dm:7", "group:43::7"))
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        await desk.ask(private, action="add", when="every 2h", prompt="the zebra clinic", name="clinic")
        await desk.ask(CHAT, action="add", when="every 2h", prompt="the bus", name="bus")
        for key in (CHAT, elsewhere):
            listed = await desk.ask(key, action="list")
            assert ("bus" in listed, "clinic" in listed) == (key == CHAT, False)
            with pytest.raises(ToolFailed, match="there is no task 'clinic'"):
                await desk.ask(key, action="remove", name="clinic")
        assert "clinic" in (listed := await desk.ask(private, action="list"))
        assert "bus" in listed
        assert await desk.ask(CHAT, action="remove", name="bus") == "Removed bus."
