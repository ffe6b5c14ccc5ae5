"""Checks of stored state."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.e2e.cli.commands.doctor.doctor_home import ME, TERMINAL, failed, fill_home, in_home

from everthread.bootstrap.runtime import Runtime
from everthread.domain.errors import Rejected
from everthread.domain.model import Inbound
from everthread.ports.memory import MemoryProvider
from everthread.store.failed_updates import FailedUpdate
from everthread.store.incidents import Incident


class Picky(MemoryProvider):
    def __init__(self) -> None:
        super().__init__()
        self.name = "picky"

    async def sync_turn(self, user: str, assistant: str, **_: Any) -> None:
        raise Rejected(self.name, "not that")


def test_parked_entries_are_reported(tmp_path: Path) -> None:
    asyncio.run(fill_home(tmp_path / "home", Picky()))
    found = failed(tmp_path / "home", "--offline")
    assert list(found) == ["parked", "incidents"]
    assert "1 entry of picky" in found["parked"][0]
    assert "journal retry picky" in found["parked"][1]


def test_incidents_of_the_last_day_are_reported(home: Path) -> None:
    async def happen(runtime: Runtime, ago_s: float) -> None:
        incident = Incident(time.time() - ago_s, "hook:on_session_reset", None, "it broke")
        await runtime.store.write(lambda uow: uow.incidents.add(incident))

    in_home(home, lambda runtime: happen(runtime, 90_000))
    assert failed(home, "--offline") == {}
    in_home(home, lambda runtime: happen(runtime, 60))
    assert "hook:on_session_reset: it broke" in failed(home, "--offline")["incidents"][0]


def test_updates_that_could_not_be_handled_are_reported(home: Path) -> None:
    async def fail(runtime: Runtime) -> None:
        update = FailedUpdate("telegram", "bot", "7", "42", ME, "{}", "KeyError", 2, 1.0, 2.0)
        await runtime.store.write(lambda uow: uow.failed_updates.add(update))

    in_home(home, fail)
    found = failed(home, "--offline")
    assert list(found) == ["updates"]
    assert found["updates"][0] == "1 update could not be handled; the newest: telegram update 7 (KeyError, 2 attempts)"


def test_an_interrupted_turn_is_reported(home: Path) -> None:
    async def begin(runtime: Runtime) -> None:
        await runtime.lifecycle.accept(Inbound(TERMINAL, ME, "hello again"))
        ticket = await runtime.lifecycle.begin_turn(TERMINAL)
        assert ticket is not None
        await runtime.lifecycle.abandon_turn(ticket)

    in_home(home, begin)
    found = failed(home, "--offline")
    assert "1 turn interrupted" in found["turns"][0]
    assert "start everthread" in found["turns"][1]


def test_edited_note_files_are_reported_and_the_fix_works(home: Path) -> None:
    (home / "memory" / "USER.md").write_text("is called Ana Lima\n")
    assert "USER.md" in failed(home, "--offline")["notes"][0]
    command = [sys.executable, "-m", "everthread", "--home", str(home), "memory", "list"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=18)
    assert failed(home, "--offline") == {}
