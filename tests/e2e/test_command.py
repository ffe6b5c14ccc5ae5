"""The `everthread` command as a person or a script meets it: real processes on real folders."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText
from everthread.agent.skills.history import Origin
from everthread.bootstrap.runtime import Runtime
from everthread.cli import main as cli
from everthread.config.settings import Settings
from everthread.domain import titles
from everthread.domain.boundary import Branch, New
from everthread.domain.errors import BadTitle, Rejected
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role, SessionKey
from everthread.lifecycle import NoteChange
from everthread.ports.memory import Capability, MemoryProvider

TERMINAL = SessionKey.parse("agent:main:cli:dm:1")
CHAT = SessionKey.parse("agent:main:telegram:dm:42")
BUSY_S_MAX = 5.0


class Picky(MemoryProvider):
    """Takes anything but what is called spicy, and never forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "picky"

    async def sync_turn(self, user: str, assistant: str, **_: Any) -> None:
        if "spicy" in user:
            raise Rejected(self.name, "not\nthat\x1b[31m")


class Polite(MemoryProvider):
    """Forgets when asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "polite"
        self.capabilities = Capability.FORGET
        self.asked: list[str] = []

    async def forget(self, scope: Any, **_: Any) -> None:
        self.asked.append(scope.value)


@dataclass(frozen=True)
class Lived:
    """A home with some history: Lisbon (2 turns, one parked), its branch, a chat of another owner, a note."""

    home: Path
    lisbon: str
    branch: str
    chat: str
    note: str


async def _say(runtime: Runtime, key: SessionKey, owner: str, text: str) -> None:
    await runtime.lifecycle.accept(Inbound(key, owner, text))
    ticket = await runtime.lifecycle.begin_turn(key)
    assert ticket is not None
    await runtime.lifecycle.commit_turn(ticket, [Message(Role.USER, text), Message(Role.ASSISTANT, "yes")], "yes")


async def _live(home: Path) -> Lived:
    async with Runtime(Settings(home), providers=[Picky()]) as runtime:
        await runtime.start()
        opened = [(await runtime.lifecycle.cross(TERMINAL, New("Trip to Lisbon"), owner="local")).ref]
        await _say(runtime, TERMINAL, "local", "hello")
        await _say(runtime, TERMINAL, "local", "something spicy")
        opened.append((await runtime.lifecycle.cross(TERMINAL, Branch(), owner="local")).ref)
        opened.append((await runtime.lifecycle.cross(CHAT, New("日本旅行"), owner="telegram:42")).ref)
        await _say(runtime, CHAT, "telegram:42", "konnichiwa")
        note = NoteChange(NoteAction.ADD, NoteTarget.USER, "likes mangoes")
        note_id = (await runtime.lifecycle.write_note(note, owner="local")).note_id
        assert await runtime.drain()
    lisbon, branch, chat = (ref.session_id if ref else "" for ref in opened)
    return Lived(home, lisbon, branch, chat, note_id)


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """As after an installation: the first command compiles the sources, and the others need not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return asyncio.run(_live(tmp_path_factory.mktemp("original") / "home"))


@pytest.fixture
def lived(original: Lived, tmp_path: Path) -> Lived:
    shutil.copytree(original.home, tmp_path / "home")
    return Lived(tmp_path / "home", original.lisbon, original.branch, original.chat, original.note)


def everthread(
    *arguments: str, home: Path | str | None = None, answer: str = "", env: dict[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("EVERTHREAD_HOME", "XDG_DATA_HOME")}
    given = [] if home is None else ["--home", str(home)]
    return subprocess.run(
        [sys.executable, "-m", "everthread", *given, *arguments],
        capture_output=True,
        text=True,
        input=answer,
        env=clean | (env or {}),
        timeout=18,
        check=False,
        **more,
    )


def printed(*arguments: str, home: Path) -> Any:
    """What a command that must succeed printed, as JSON."""
    done = everthread(*arguments, "--json", home=home)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def titles_in(home: Path) -> set[str]:
    return {session["title"] for session in printed("sessions", "list", home=home)}


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("everthread: ")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("\n")
    for word in words:
        assert word in done.stderr


# --- Asking for help -------------------------------------------------------------------------------------------------


def test_version_is_said() -> None:
    done = everthread("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"everthread \d+\.\d+\.\d+\S*\n", done.stdout)


@pytest.mark.parametrize(
    "command",
    [
        "",
        "sessions",
        "sessions list",
        "boundaries",
        "journal",
        "journal status",
        "journal retry",
        "journal replay",
        "forget",
        "config",
        "config path",
        "config show",
        "config validate",
        *(f"config {verb}" for verb in ("get", "set", "edit")),
        "memory",
        *(f"memory {verb}" for verb in ("list", "show", "edit", "log", "undo", "forget", "status")),
        *("recall", "setup", "setup local", "doctor", "logs", "completion"),
        *("pairing", "pairing list", "pairing approve", "pairing revoke"),
    ],
)
def test_every_command_has_help_with_an_example(command: str) -> None:
    done = everthread(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"Examples?:\n +everthread ", done.stdout)


def test_help_is_quick() -> None:
    def cpu_s() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert everthread("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cpu_s() for _ in range(5)) < 0.2


def test_help_imports_nothing_of_the_core() -> None:
    # What is measured above depends on the machine; what costs the time does not.
    script = (
        "import sys; from everthread.__main__ import main; sys.argv[1:] = ['--help']\n"
        "try: main()\nexcept SystemExit: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert "click" in modules
    assert not modules & {"apsw", "msgspec", "asyncio", "pluggy", "importlib.metadata", "json", "everthread.domain"}
    assert not modules & {"dataclasses", "tomllib", "everthread.config.settings"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["sessions", "lst"],
        ["sessions", "list", "--limit", "0"],
        ["--colour"],
        ["forget"],
        ["forget", "x", "--owner", "y"],
    ],
)
def test_wrong_usage_is_one_line_and_2(arguments: list[str], tmp_path: Path) -> None:
    assert_one_line(everthread(*arguments, home=tmp_path), 2, "--help")


def test_an_empty_home_is_refused_rather_than_guessed() -> None:
    assert_one_line(everthread("sessions", "list", home=""), 2, "--home")


# --- Which home ------------------------------------------------------------------------------------------------------


def test_the_home_is_the_flag_then_the_variable_then_xdg_then_the_users(tmp_path: Path) -> None:
    variables = {
        "HOME": str(tmp_path / "user"),
        "XDG_DATA_HOME": str(tmp_path / "xdg"),
        "EVERTHREAD_HOME": str(tmp_path / "variable"),
    }

    def used(*arguments: str, **env: str) -> str:
        done = everthread(*arguments, "sessions", "list", env=env)
        assert done.returncode == 0
        return done.stdout

    assert str(tmp_path / "flag") in used("--home", str(tmp_path / "flag"), **variables)
    assert str(tmp_path / "variable") in used(**variables)
    assert str(tmp_path / "xdg" / "everthread") in used(**variables | {"EVERTHREAD_HOME": ""})
    assert str(tmp_path / "user" / ".everthread") in used(**variables | {"EVERTHREAD_HOME": "", "XDG_DATA_HOME": ""})
    assert str(tmp_path / "user" / ".everthread") in used(
        **variables | {"EVERTHREAD_HOME": "", "XDG_DATA_HOME": "relative/is/invalid"}
    )
    assert str(tmp_path / "user" / "mine") in used("--home", "~/mine", **variables)


def test_the_home_may_be_given_after_the_command(lived: Lived) -> None:
    done = everthread("sessions", "list", "--home", str(lived.home))
    assert "Trip to Lisbon" in done.stdout


@pytest.mark.parametrize("command", ["sessions list", "boundaries", "journal status"])
def test_looking_at_a_home_that_is_not_there_shows_nothing_and_makes_nothing(command: str, tmp_path: Path) -> None:
    home = tmp_path / "not" / "yet"
    assert printed(*command.split(), home=home) == []
    done = everthread(*command.split(), home=home)
    assert done.returncode == 0
    assert str(home) in done.stdout
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize("command", ["journal retry picky", "journal replay picky", "forget 01ABCD --yes"])
def test_changing_a_home_that_is_not_there_is_refused_and_makes_nothing(command: str, tmp_path: Path) -> None:
    assert_one_line(everthread(*command.split(), home=tmp_path / "not"), 1, str(tmp_path / "not"))
    assert not (tmp_path / "not").exists()


# --- Looking ---------------------------------------------------------------------------------------------------------


def test_sessions_list_shows_every_owners_conversations(lived: Lived) -> None:
    found = printed("sessions", "list", home=lived.home)
    assert [session["id"] for session in found] == [lived.chat, lived.branch, lived.lisbon]
    lisbon = found[-1]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", lisbon.pop("last_active"))
    assert lisbon.pop("opened")
    assert lisbon == {
        "id": lived.lisbon,
        "title": "Trip to Lisbon",
        "state": "open",
        "end_reason": None,
        "turns": 2,
        "key": "agent:main:cli:dm:1",
        "owner": "local",
        "kind": "chat",
        "cause": "new_session",
        "parent": None,
    }


def test_sessions_list_is_a_plain_table_for_people(lived: Lived) -> None:
    heading, *lines = everthread("sessions", "list", home=lived.home).stdout.splitlines()
    assert heading.split("  ")[0] == "ID"
    assert len(lines) == 3
    assert re.match(
        rf"{lived.lisbon}  Trip to Lisbon +open +2 +\d{{4}}-\d\d-\d\d \d\d:\d\d +agent:main:cli:dm:1$", lines[2]
    )
    # Characters of double width push nothing out of line.
    assert lines[0].index("open") + len("日本旅行") == lines[2].index("open")


def test_limit_limits(lived: Lived) -> None:
    assert len(printed("sessions", "list", "--limit", "1", home=lived.home)) == 1
    assert len(printed("boundaries", "--limit", "2", home=lived.home)) == 2


def test_boundaries_are_the_audit_trail_newest_first(lived: Lived) -> None:
    found = printed("boundaries", home=lived.home)
    assert [row["boundary"] for row in found if row["boundary"] != "suspend"] == ["new", "branch", "new"]
    branch = next(row for row in found if row["boundary"] == "branch")
    assert (branch["from"], branch["to"], branch["by"]) == (lived.lisbon, lived.branch, "user")
    assert branch["key"] == "agent:main:cli:dm:1"
    table = everthread("boundaries", home=lived.home).stdout
    assert re.search(rf"branch +{lived.lisbon} +{lived.branch} +user", table)


def test_journal_status_shows_what_is_parked_and_why(lived: Lived) -> None:
    [picky] = printed("journal", "status", home=lived.home)
    assert (picky["provider"], picky["waiting_entries"], picky["parked"]) == ("picky", 0, 1)
    assert [entry["session"] for entry in picky["parked_entries"]] == [lived.lisbon]
    table = everthread("journal", "status", home=lived.home).stdout
    assert "not that" in table
    assert "\x1b" not in table, "a provider's words must not reach the terminal's controls"


def test_looking_writes_nothing(lived: Lived) -> None:
    def kept() -> dict[Path, bytes]:
        return {path: path.read_bytes() if path.is_file() else b"" for path in lived.home.rglob("*")}

    before = kept()
    for command in ("sessions list", "sessions tree", "boundaries", "journal status"):
        assert everthread(*command.split(), home=lived.home).returncode == 0
    assert kept() == before


def test_a_reader_that_goes_away_gets_no_noise(lived: Lived) -> None:
    command = f"{sys.executable} -m everthread --home {lived.home} sessions list | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=18, check=False)
    assert done.stderr == ""


# --- Repairing the journal -------------------------------------------------------------------------------------------


def test_retry_sets_parked_entries_going(lived: Lived) -> None:
    assert printed("journal", "retry", "picky", home=lived.home) == {
        "provider": "picky",
        "session": None,
        "entries": 1,
    }
    [picky] = printed("journal", "status", home=lived.home)
    assert (picky["waiting_entries"], picky["parked"]) == (1, 0)
    assert "Nothing is parked" in everthread("journal", "retry", "picky", home=lived.home).stdout


def test_retry_may_be_of_one_session(lived: Lived) -> None:
    assert printed("journal", "retry", "picky", lived.chat, home=lived.home)["entries"] == 0
    done = printed("journal", "retry", "picky", lived.lisbon, home=lived.home)
    assert (done["session"], done["entries"]) == (lived.lisbon, 1)


def test_replay_sets_a_session_back_or_all(lived: Lived) -> None:
    one = printed("journal", "replay", "picky", "日本旅行", home=lived.home)
    assert (one["session"], one["sessions"]) == (lived.chat, 1)
    assert printed("journal", "status", home=lived.home)[0]["waiting_sessions"] == 1
    assert printed("journal", "replay", "picky", home=lived.home)["sessions"] > 1


def test_an_unknown_provider_is_refused_with_the_known_ones(lived: Lived) -> None:
    assert_one_line(everthread("journal", "retry", "nobody", home=lived.home), 1, "nobody", "picky")
    assert_one_line(everthread("journal", "replay", "picky", "no such", home=lived.home), 1, "no such")


# --- Forgetting ------------------------------------------------------------------------------------------------------


def test_forgetting_a_session_asks_first_and_says_what(lived: Lived) -> None:
    done = everthread("forget", "日本旅行", home=lived.home, answer="n\n")
    assert done.returncode == 1
    assert "日本旅行" in done.stdout
    assert lived.chat in done.stdout
    assert "1 turn," in done.stdout
    assert "Nothing was forgotten" in done.stdout
    assert "日本旅行" in titles_in(lived.home)

    done = everthread("forget", "日本旅行", home=lived.home, answer="y\n")
    assert done.returncode == 0
    assert "日本旅行" not in titles_in(lived.home)
    assert b"konnichiwa" not in (lived.home / "everthread.db").read_bytes()


def test_no_answer_is_a_no(lived: Lived) -> None:
    done = everthread("forget", lived.chat, home=lived.home)
    assert done.returncode == 1
    assert "--yes" in done.stderr
    assert "日本旅行" in titles_in(lived.home)


def test_a_session_is_found_by_id_by_its_beginning_and_by_title(lived: Lived) -> None:
    # Ids made within moments of each other differ in their last parts only.
    assert everthread("forget", lived.chat[:-2], "--yes", home=lived.home).returncode == 0
    assert lived.lisbon in everthread("forget", "trip to lisbon", "--yes", home=lived.home).stdout
    # Its branch was called after it.
    assert titles_in(lived.home) <= {None}
    assert everthread("forget", lived.branch, "--yes", home=lived.home).returncode == 0


def test_forgetting_says_what_becomes_of_relatives(lived: Lived) -> None:
    assert "1 session branched or continued from it" in everthread("forget", lived.lisbon, home=lived.home).stdout
    assert f"Its parent session {lived.lisbon} is kept" in everthread("forget", lived.branch, home=lived.home).stdout


def test_forgetting_a_person_takes_everything_of_theirs_and_nothing_else(lived: Lived) -> None:
    done = everthread("forget", "--owner", "local", home=lived.home, answer="y\n")
    assert done.returncode == 0
    assert "2 sessions and 1 note" in done.stdout
    assert titles_in(lived.home) == {"日本旅行"}
    assert_one_line(everthread("forget", "--owner", "local", "--yes", home=lived.home), 1, "local")


def test_forgetting_a_fact_shows_it_first(lived: Lived) -> None:
    done = everthread("forget", "--note", lived.note, home=lived.home, answer="y\n")
    assert done.returncode == 0
    assert "likes mangoes" in done.stdout
    assert_one_line(everthread("forget", "--note", lived.note, "--yes", home=lived.home), 1, lived.note)


def test_a_forgotten_fact_leaves_the_file_of_notes(lived: Lived) -> None:
    note = lived.home / "memory" / "local" / "USER.md"
    note.parent.mkdir(parents=True)
    note.write_text("likes mangoes\n")
    assert everthread("forget", "--note", lived.note, "--yes", home=lived.home).returncode == 0
    assert note.read_text() == ""


def test_forget_as_json_keeps_stdout_for_programs(lived: Lived) -> None:
    done = everthread("forget", lived.chat, "--json", home=lived.home, answer="y\n")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "forgotten": "session",
        "id": lived.chat,
        "owner": "telegram:42",
        "cannot_forget": [],
        "skills": [],
        "not_loaded": ["picky"],
    }
    assert lived.chat in done.stderr


def test_skills_that_were_drawn_from_what_is_forgotten_are_named(lived: Lived) -> None:
    folders = SkillFolders(lived.home / "skills")
    folders.write(SkillText("rail", "How we book trains.", "Ask Ann."), origin=Origin(lived.chat, "review-1-2"))
    folders.write(SkillText("tea", "How to make tea.", "Boil water."), origin=Origin("elsewhere", "review-1-2"))
    done = everthread("forget", lived.chat, "--yes", "--json", home=lived.home)
    assert json.loads(done.stdout)["skills"] == ["rail"]
    assert "These skills were derived from it and are kept: rail." in done.stderr
    assert folders.get("rail")


def test_providers_that_cannot_forget_are_named(lived: Lived, capsys: pytest.CaptureFixture[str]) -> None:
    polite = Polite()

    def open_runtime(settings: Settings) -> Runtime:
        return Runtime(settings, providers=[Picky(), polite])

    code = cli.run(open_runtime, ["--home", str(lived.home), "forget", lived.chat, "--yes"])
    assert code == 0
    assert "can't delete data and keep theirs: picky.\n" in capsys.readouterr().out
    assert polite.asked == ["session"], "one that can is told within the time a command has"


@pytest.mark.parametrize("name", ["no such session", "01", "notes:local", "", "x" * 100_000, "\u200b", "🧵\n\x1b[31m"])
def test_an_unknown_session_is_one_line_and_1(name: str, lived: Lived) -> None:
    done = everthread("forget", name, "--yes", home=lived.home)
    assert_one_line(done, 1)
    assert len(done.stderr) < 1000
    assert "\x1b" not in done.stderr
    assert len(titles_in(lived.home)) == 3


def test_a_beginning_that_fits_several_sessions_is_refused(lived: Lived) -> None:
    assert_one_line(everthread("forget", lived.chat[:6], "--yes", home=lived.home), 2, "3 sessions")


def test_a_title_that_two_owners_use_is_refused(lived: Lived) -> None:
    async def name_alike() -> None:
        async with Runtime(Settings(lived.home)) as runtime:
            await runtime.lifecycle.rename(lived.chat, "Trip to Lisbon", owner="telegram:42")

    asyncio.run(name_alike())
    assert_one_line(everthread("forget", "Trip to Lisbon", "--yes", home=lived.home), 2, lived.chat, "telegram:42")


@pytest.mark.parametrize("title", ["", "   ", "\u200b\u2800", "x" * 101, "x" * 10_000_000])
def test_an_empty_or_huge_title_is_refused_and_changes_nothing(title: str, lived: Lived) -> None:
    with pytest.raises(BadTitle) as refusal:
        titles.clean(title)
    assert len(str(refusal.value)) < 200

    async def rename() -> None:
        async with Runtime(Settings(lived.home)) as runtime:
            await runtime.lifecycle.rename(lived.chat, title, owner="telegram:42")

    with pytest.raises(BadTitle):
        asyncio.run(rename())
    assert "日本旅行" in titles_in(lived.home)


# --- A home that can't be used ---------------------------------------------------------------------------------------

EVERY_COMMAND = ["sessions list", "journal retry picky", "forget 01ABCD --yes"]
"""One of each sort: it looks, it acts, it looks and then acts."""


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_a_damaged_database_is_refused_and_left_alone(command: str, tmp_path: Path) -> None:
    path = tmp_path / "everthread.db"
    path.write_bytes(b"this was a database once " * 1000)
    before = path.read_bytes()
    assert_one_line(everthread(*command.split(), home=tmp_path), 78, str(path), "backup")
    assert path.read_bytes() == before


def test_damage_within_the_file_is_refused(lived: Lived) -> None:
    path = lived.home / "everthread.db"
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    assert_one_line(everthread("sessions", "list", home=lived.home), 78, str(path))


def test_a_database_of_a_newer_program_is_refused_and_left_alone(lived: Lived) -> None:
    path = lived.home / "everthread.db"
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO migrations VALUES (9999, 'from_the_future', 'x')")
    connection.close()
    before = path.read_bytes()
    for command in EVERY_COMMAND:
        assert_one_line(everthread(*command.split(), home=lived.home), 78, "9999", "Upgrade")
    assert path.read_bytes() == before


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_some_other_programs_database_is_refused_and_left_alone(command: str, tmp_path: Path) -> None:
    path = tmp_path / "everthread.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    before = path.read_bytes()
    assert_one_line(everthread(*command.split(), home=tmp_path), 78, "other program")
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["everthread.db"]


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_a_home_that_cannot_be_one_is_refused(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for home in (tmp_path / "file", tmp_path / "file" / "below", Path("/dev/null/home")):
        assert_one_line(everthread(*command.split(), home=home), 78, str(home))
    (tmp_path / "odd" / "everthread.db").mkdir(parents=True)
    assert_one_line(everthread(*command.split(), home=tmp_path / "odd"), 78, "everthread.db")


@pytest.mark.parametrize("command", ["sessions list", "boundaries", "forget x --yes", "logs"])
def test_a_home_that_cannot_be_looked_into_is_refused(command: str, tmp_path: Path) -> None:
    home = tmp_path / ("x" * 300)
    assert_one_line(everthread(*command.split(), home=home), 78, str(home), "File name too long", "choose another home")


def test_a_bug_is_one_line_unless_it_is_being_looked_for(
    lived: Lived, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Settings) -> Runtime:
        raise ZeroDivisionError("some\nbug")

    monkeypatch.delenv("EVERTHREAD_DEBUG", raising=False)
    assert cli.run(broken, ["--home", str(lived.home), "sessions", "list"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("everthread: unexpected ZeroDivisionError: some bug; run with EVERTHREAD_DEBUG=1")
    assert told.count("\n") == 1

    monkeypatch.setenv("EVERTHREAD_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.run(broken, ["--home", str(lived.home), "sessions", "list"])


# --- Two programs, no room, interruptions ----------------------------------------------------------------------------


@contextmanager
def write_lock(home: Path) -> Iterator[None]:
    """Another program in the middle of a write."""
    connection = sqlite3.connect(home / "everthread.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


@pytest.mark.parametrize("command", ["journal retry picky", "forget --owner local --yes"])
def test_a_command_that_must_write_gives_way_to_another_writer(command: str, lived: Lived) -> None:
    begun = time.monotonic()
    with write_lock(lived.home):
        done = everthread(*command.split(), home=lived.home)
    assert_one_line(done, 75, "Try again")
    assert time.monotonic() - begun < BUSY_S_MAX + 3
    assert len(titles_in(lived.home)) == 3
    assert everthread(*command.split(), home=lived.home).returncode == 0, "and the next try goes through"


def test_looking_does_not_wait_for_a_writer(lived: Lived) -> None:
    with write_lock(lived.home):
        assert len(titles_in(lived.home)) == 3


def test_many_programs_at_once_all_get_through(lived: Lived) -> None:
    commands = [["journal", "replay", "picky"], ["journal", "retry", "picky"], ["sessions", "list"]] * 2
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "everthread", "--home", str(lived.home), *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    assert [(process.communicate(timeout=18)[1], process.returncode) for process in running] == [("", 0)] * 6


SMALL_DISK = """
mount -t tmpfs -o size=1m none "$2" || exit 9
cp -r "$1" "$2/home"
dd if=/dev/zero of="$2/filler" bs=4k 2>/dev/null
# First there is no room for any file, then for those beside the database, but for little more.
{command} forget --owner local --yes; echo "full: $?"
truncate --size=-80k "$2/filler"
{command} forget --owner local --yes; echo "nearly full: $?"
rm "$2/filler"
{command} sessions list --json; echo "freed: $?"
{command} forget --owner local --yes; echo "again: $?"
"""


def test_a_full_disk_loses_nothing(lived: Lived, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = SMALL_DISK.format(command=f'{sys.executable} -m everthread --home "$2/home"')
    # A mount that only this script sees, and that goes when it ends.
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which(alone[0]) is None or subprocess.run([*alone, "mount", "-t", "tmpfs", "x", disk]).returncode:
        pytest.skip("small disks can't be mounted here")
    done = subprocess.run(
        [*alone, "bash", "-c", script, "-", lived.home, disk], capture_output=True, text=True, timeout=18, check=False
    )
    codes = re.findall(r"^(\w[\w ]+): (\d+)$", done.stdout, re.MULTILINE)
    assert codes == [("full", "75"), ("nearly full", "75"), ("freed", "0"), ("again", "0")], done.stderr
    first, second = done.stderr.splitlines()
    assert "no room left" in first
    assert "no room left" in second
    listing = done.stdout[done.stdout.index("[") : done.stdout.index("freed")]
    assert {session["title"] for session in json.loads(listing)} == {"Trip to Lisbon", "Trip to Lisbon #2", "日本旅行"}
    assert done.stdout.count("Forgotten.") == 1


def test_an_interrupted_command_says_nothing_and_changes_nothing(lived: Lived) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "everthread", "--home", str(lived.home), "forget", lived.chat],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdout is not None
    said = b""
    while b"permanently?" not in said:
        said += process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=18)
    assert (process.returncode, told.strip()) == (130, b"")
    assert "日本旅行" in titles_in(lived.home)
