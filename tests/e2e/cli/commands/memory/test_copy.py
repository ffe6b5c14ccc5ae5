"""`everthread memory copy`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.chat_home import Terminal

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import Inbound, Message, Role, SessionKey

TERMINAL = SessionKey.parse("agent:main:cli:dm:1")


SESSIONS, TURNS = 12, 5


PROVIDER = '''
import asyncio, os, sqlite3
from everthread.config.provider_settings import Field
from everthread.domain.errors import Rejected, Unavailable
from everthread.ports.memory import Capability, MemoryProvider

class Ledger(MemoryProvider):
    """Keeps what it is told in a file, under the delivery's key."""

    settings_fields = (Field("file", "Where", required=True), Field("slow_s", "How slow", "number", default=0.0))

    def __init__(self):
        super().__init__()
        self.name = "ledger"
        self.capabilities = Capability.HEALTH

    async def initialize(self, *, file, slow_s, **more):
        self.file, self.slow_s = file, slow_s

    async def _take(self, kind, ref, delivery, text=""):
        if os.path.exists(self.file + ".down"):
            raise Unavailable(self.name, "the ledger is closed")
        if text == "3.2" and os.path.exists(self.file + ".picky"):
            raise Rejected(self.name, "this will not be written down")
        await asyncio.sleep(self.slow_s)
        with sqlite3.connect(self.file, timeout=30) as database:
            columns = "id INTEGER PRIMARY KEY, key UNIQUE, session, seq, kind, text"
            database.execute(f"CREATE TABLE IF NOT EXISTS told ({columns})")
            row = (delivery.key, ref.session_id, delivery.seq, kind, text)
            database.execute("INSERT OR IGNORE INTO told (key, session, seq, kind, text) VALUES (?, ?, ?, ?, ?)", row)
        database.close()
        await asyncio.sleep(self.slow_s)

    async def sync_turn(self, user, assistant, *, ref, delivery, **more):
        await self._take("turn", ref, delivery, user)

    async def on_session_switch(self, new_session_id, *, ref, delivery, **more):
        await self._take("switch", ref, delivery)

    async def on_session_end(self, messages, *, ref, delivery, **more):
        await self._take("end", ref, delivery)

    async def health(self):
        return "closed" if os.path.exists(self.file + ".down") else "ok"
'''


async def fill_home(home: Path) -> list[str]:
    sessions: list[str] = []
    async with Runtime(Settings(home)) as runtime:
        await runtime.start()
        for number in range(SESSIONS):
            ref = (await runtime.lifecycle.cross(TERMINAL, New(f"Talk {number}"), owner="me")).ref
            assert ref is not None
            sessions.append(ref.session_id)
            for turn in range(TURNS):
                text = f"{number}.{turn}"
                await runtime.lifecycle.accept(Inbound(TERMINAL, "me", text))
                ticket = await runtime.lifecycle.begin_turn(TERMINAL)
                assert ticket is not None
                said = [Message(Role.USER, text), Message(Role.ASSISTANT, "yes")]
                await runtime.lifecycle.commit_turn(ticket, said, "yes")
        await runtime.lifecycle.cross(TERMINAL, New(), owner="me")
    return sessions


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    home = tmp_path_factory.mktemp("original") / "home"
    return home, asyncio.run(fill_home(home))


class Place:
    """Home, installed provider package, and the database of the provider."""

    def __init__(self, folder: Path, home: Path, sessions: list[str]) -> None:
        self.home, self.sessions = folder / "home", sessions
        self.file = folder / "ledger.db"
        shutil.copytree(home, self.home)
        site = folder / "site"
        package = site / "ledger-1.0.dist-info"
        package.mkdir(parents=True)
        (site / "ledger.py").write_text(PROVIDER)
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: ledger\nVersion: 1.0\n")
        (package / "entry_points.txt").write_text("[everthread.memory_providers]\nledger = ledger:Ledger\n")
        path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
        self.env = {"PATH": os.environ["PATH"], "PYTHONPATH": path}
        self.settle(0.0)

    def settle(self, slow_s: float) -> None:
        text = (
            f'[memory]\nproviders = ["builtin", "ledger"]\n[memory.ledger]\nfile = "{self.file}"\nslow_s = {slow_s}\n'
        )
        (self.home / "config.toml").write_text(text)

    def close(self) -> None:
        self.file.with_name("ledger.db.down").touch()

    def open(self) -> None:
        self.file.with_name("ledger.db.down").unlink()

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "everthread", "--home", str(self.home), *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=self.env,
            timeout=60,
            check=False,
        )

    def printed(self, *arguments: str, code: int = 0) -> Any:
        done = self.run(*arguments, "--json")
        assert (done.returncode, done.stderr) == (code, ""), done
        return json.loads(done.stdout)

    def told(self) -> list[tuple[str, int, str, str]]:
        if not self.file.exists():
            return []
        database = sqlite3.connect(self.file)
        try:
            return list(database.execute("SELECT session, seq, kind, text FROM told ORDER BY id"))
        except sqlite3.OperationalError:
            return []
        finally:
            database.close()

    def of(self, session: str) -> list[str]:
        return [text or kind for told, _, kind, text in self.told() if told == session]


@pytest.fixture
def place(tmp_path: Path, original: tuple[Path, list[str]]) -> Place:
    return Place(tmp_path, *original)


def whole(number: int) -> list[str]:
    return ["switch", *(f"{number}.{turn}" for turn in range(TURNS)), "end"]


def test_dry_run_prints_the_amount_and_copies_nothing(place: Place) -> None:
    plan = place.printed("memory", "copy", "--from", "builtin", "--to", "ledger", "--dry-run")
    assert plan == {
        "from": "builtin",
        "to": "ledger",
        "dry_run": True,
        "sessions": SESSIONS + 1,
        "turns": SESSIONS * TURNS,
        "tokens": plan["tokens"],
        "entries": SESSIONS * (TURNS + 2) + 1,
        "left": 0,
        "parked": 0,
    }
    assert plan["tokens"] > 0
    assert place.told() == []
    assert (
        f"{SESSIONS + 1} sessions with {SESSIONS * TURNS} turns"
        in place.run("memory", "copy", "--to", "ledger", "--dry-run").stdout
    )


def test_everything_is_delivered_once_and_a_second_run_does_nothing(place: Place) -> None:
    assert place.printed("memory", "copy", "--to", "ledger")["left"] == 0
    for number, session in enumerate(place.sessions):
        assert place.of(session) == whole(number)
    before = place.told()
    again = place.run("memory", "copy", "--to", "ledger")
    assert (again.returncode, again.stdout) == (0, "ledger has received everything already.\n")
    assert place.told() == before


def test_sessions_are_found_by_title_and_id(place: Place) -> None:
    done = place.printed("memory", "copy", "--to", "ledger", "Talk 3", place.sessions[5])
    assert done["sessions"] == 2
    assert {session for session, *_ in place.told()} == {place.sessions[3], place.sessions[5]}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["--to", "hive"],
            1,
            "memory provider 'hive' is not in use; in use are: ledger",
        ),
        (["--to", "builtin"], 1, "memory provider 'builtin' is not in use"),
        (["--from", "ledger", "--to", "builtin"], 2, "--from builtin"),
        (["--to", "ledger", "No such talk"], 1, "there is no session"),
        ([], 2, "Missing option '--to'"),
    ],
)
def test_invalid_requests_are_refused_in_one_line(place: Place, arguments: list[str], code: int, words: str) -> None:
    done = place.run("memory", "copy", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done
    assert words in done.stderr


def test_after_repeated_kills_everything_is_delivered_once_and_in_order(place: Place) -> None:
    place.settle(0.01)
    delivered = [0]
    for more in (7, 25, 50):
        process = subprocess.Popen(
            place.command("memory", "copy", "--to", "ledger", "--yes", "--json"),
            env=place.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 30
        while len(place.told()) < max(more, delivered[-1] + 1) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert process.poll() is None, "the copy ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        delivered.append(len(place.told()))
    assert delivered == sorted(set(delivered)), "each run must deliver more entries"
    assert delivered[-1] < SESSIONS * (TURNS + 2)
    place.settle(0.0)
    assert place.printed("memory", "copy", "--to", "ledger")["left"] == 0
    for number, session in enumerate(place.sessions):
        assert place.of(session) == whole(number)


def test_an_unreachable_provider_is_waited_for_and_shown_in_the_status(place: Place) -> None:
    place.close()
    done = place.run("memory", "copy", "--to", "ledger", "--yes")
    assert done.returncode == 75, done
    assert "waiting for ledger; delivery continues when it is available" in done.stdout
    status = place.run("memory", "status", "--json")
    assert status.returncode == 1, "status must fail while the provider is unavailable"
    (ledger,) = [row for row in json.loads(status.stdout)["providers"] if row["provider"] == "ledger"]
    assert (ledger["health"], ledger["parked"]) == ("closed", 0)
    assert ledger["paused_until"] is not None
    assert ledger["last_error"] == "ledger: the ledger is closed"
    assert ledger["waiting"] > 0
    assert "paused until" in place.run("memory", "status").stdout


def test_rejected_entries_are_not_reported_as_delivered(place: Place) -> None:
    place.file.with_name("ledger.db.picky").touch()
    done = place.run("memory", "copy", "--to", "ledger", "--yes")
    assert done.returncode == 1, done
    assert "which rejected 1 entry" in done.stdout
    assert "everthread memory retry ledger" in done.stdout
    place.file.with_name("ledger.db.picky").unlink()
    assert place.run("memory", "retry", "ledger").returncode == 0
    assert place.run("memory", "copy", "--to", "ledger", "--yes").returncode == 0
    assert "3.2" in place.of(place.sessions[3])


def test_on_a_terminal_it_asks_first_and_shows_progress(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", place.env["PYTHONPATH"])
    terminal = Terminal(place.command("memory", "copy", "--to", "ledger"))
    try:
        terminal.expect("which may charge for it")
        terminal.type("y\n")
        terminal.expect("100%")
        terminal.expect("Delivered 13 sessions")
        assert terminal.ended() == 0
    finally:
        terminal.close()
