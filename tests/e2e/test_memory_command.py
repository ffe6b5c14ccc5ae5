"""`everthread memory` and `everthread recall`: real processes on a home where a few things were said and noted."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import Settings
from everthread.domain.boundary import New
from everthread.domain.errors import Rejected
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role, SessionKey
from everthread.lifecycle import NoteChange
from everthread.ports.memory import MemoryProvider

TERMINAL = SessionKey.parse("agent:main:cli:dm:1")
ME = "me"


class Picky(MemoryProvider):
    def __init__(self) -> None:
        super().__init__()
        self.name = "picky"

    async def sync_turn(self, user: str, assistant: str, **_: Any) -> None:
        raise Rejected(self.name, "not that")


@dataclass(frozen=True)
class Kept:
    home: Path
    session: str
    tea: str
    """The agent's note, changed once."""
    name: str
    """A note on the user, written by hand."""


async def _live(home: Path) -> Kept:
    async with Runtime(Settings(home), providers=[Picky()]) as runtime:
        await runtime.start()
        ref = (await runtime.lifecycle.cross(TERMINAL, New("Tea"), owner=ME)).ref
        assert ref is not None
        await runtime.lifecycle.accept(Inbound(TERMINAL, ME, "I like oolong from Taiwan"))
        ticket = await runtime.lifecycle.begin_turn(TERMINAL)
        assert ticket is not None
        change = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, "likes green tea", turn_id=ticket.turn_id)
        tea = (await runtime.lifecycle.write_note(change, owner=ME, ref=ticket.ref)).note_id
        change = NoteChange(NoteAction.REPLACE, NoteTarget.MEMORY, "likes oolong", tea, ticket.turn_id)
        await runtime.lifecycle.write_note(change, owner=ME, ref=ticket.ref)
        said = [Message(Role.USER, "I like oolong from Taiwan"), Message(Role.ASSISTANT, "noted")]
        await runtime.lifecycle.commit_turn(ticket, said, "noted")
        change = NoteChange(NoteAction.ADD, NoteTarget.USER, "is called Ana")
        name = (await runtime.lifecycle.write_note(change, owner=ME)).note_id
        assert await runtime.sync_notes(ME) == ""
        assert await runtime.drain()
    return Kept(home, ref.session_id, tea, name)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return asyncio.run(_live(tmp_path_factory.mktemp("original") / "home"))


@pytest.fixture
def kept(original: Kept, tmp_path: Path) -> Kept:
    shutil.copytree(original.home, tmp_path / "home")
    return Kept(tmp_path / "home", original.session, original.tea, original.name)


def everthread(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "everthread", "--home", str(home), *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=inherited | variables,
        timeout=18,
        check=False,
    )


def printed(home: Path, *arguments: str, **variables: str) -> Any:
    done = everthread(home, *arguments, "--json", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def editor(tmp_path: Path, script: str) -> str:
    """A program that edits a file as told, in Python, with `text` before and after."""
    program = tmp_path / "editor.py"
    program.write_text(
        "import pathlib, sys\npath = pathlib.Path(sys.argv[1])\ntext = path.read_text()\n"
        f"{script}\npath.write_text(text)\n"
    )
    return f"{sys.executable} {program}"


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_list_has_both_collections_with_ids_and_how_full_they_are(kept: Kept) -> None:
    assert everthread(kept.home, "memory", "list").stdout == (
        "USER.md: 13 of 4000 characters (0 % full)\n"
        f"  {kept.name}  is called Ana\n"
        "MEMORY.md: 12 of 8000 characters (0 % full)\n"
        f"  {kept.tea}  likes oolong\n"
    )
    told = printed(kept.home, "memory", "list")
    assert (told["user"]["chars"], told["user"]["chars_max"]) == (13, 4000)
    assert [(n["id"], n["version"], n["text"]) for n in told["memory"]["notes"]] == [(kept.tea, 2, "likes oolong")]


def test_what_was_edited_in_a_file_is_listed(kept: Kept) -> None:
    (kept.home / "memory" / "USER.md").write_text("is called Ana Lima\n")
    assert [n["text"] for n in printed(kept.home, "memory", "list")["user"]["notes"]] == ["is called Ana Lima"]


def test_looking_at_a_home_that_is_not_there_makes_none(tmp_path: Path) -> None:
    home = tmp_path / "none"
    assert printed(home, "memory", "log") == []
    assert printed(home, "memory", "list")["memory"]["notes"] == []
    [builtin] = printed(home, "memory", "status")["providers"]
    assert (builtin["provider"], builtin["loaded"], builtin["state"]) == ("builtin", False, "nothing yet")
    assert printed(home, "recall", "tea") == {"items": [], "missing": []}
    assert_refused(everthread(home, "memory", "undo"), 1, "no data in")
    assert not home.exists()


def test_show_tells_every_version_and_where_it_came_from(kept: Kept) -> None:
    told = printed(kept.home, "memory", "show", "oolong")
    assert (told["id"], told["target"], told["live"]) == (kept.tea, "memory", True)
    newest, oldest = told["versions"]
    assert (newest["change"], newest["action"], newest["text"]) == (f"{kept.tea}:2", "replace", "likes oolong")
    assert (newest["before"], oldest["before"]) == ("likes green tea", None)
    assert (newest["by"], newest["session"], newest["title"], newest["turn"]) == ("agent", kept.session, "Tea", 1)
    shown = everthread(kept.home, "memory", "show", kept.tea).stdout
    assert 'by the agent, in turn 1 of "Tea"' in shown
    assert shown.index("likes oolong") < shown.index("likes green tea")
    assert_refused(everthread(kept.home, "memory", "show", "coffee"), 1, "there is no note", "memory list")


def test_log_is_newest_first_and_limited(kept: Kept) -> None:
    told = printed(kept.home, "memory", "log")
    assert [c["change"] for c in told] == [f"{kept.name}:1", f"{kept.tea}:2", f"{kept.tea}:1"]
    assert (told[0]["by"], told[0]["session"]) == ("user", None)
    assert printed(kept.home, "memory", "log", "--limit", "1") == told[:1]
    assert "likes green tea" in everthread(kept.home, "memory", "log").stdout


def test_undo_takes_back_the_newest_change_or_the_one_that_is_named(kept: Kept) -> None:
    assert "Removed again" in everthread(kept.home, "memory", "undo").stdout
    assert printed(kept.home, "memory", "list")["user"]["notes"] == []
    told = printed(kept.home, "memory", "undo", f"{kept.tea}:2")
    assert told == {"undone": f"{kept.tea}:2", "version": f"{kept.tea}:3", "text": "likes green tea"}
    assert (kept.home / "memory" / "MEMORY.md").read_text() == "likes green tea\n"
    assert_refused(everthread(kept.home, "memory", "undo", f"{kept.tea}:1"), 2, f"{kept.tea}:3 first")
    assert_refused(everthread(kept.home, "memory", "undo", "nonsense"), 1, "memory log")


def test_edit_imports_what_the_editor_leaves_and_says_what_changed(kept: Kept, tmp_path: Path) -> None:
    change = editor(tmp_path, 'text = text.replace("oolong", "sencha") + "§\\nlives in Lisbon\\n"')
    done = everthread(kept.home, "memory", "edit", EDITOR=change)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "replace  likes sencha\nadd      lives in Lisbon\n"
    notes = printed(kept.home, "memory", "list")["memory"]["notes"]
    assert [note["text"] for note in notes] == ["likes sencha", "lives in Lisbon"]
    assert everthread(kept.home, "memory", "edit", EDITOR="true").stdout == "No changes.\n"
    emptied = printed(kept.home, "memory", "edit", "user", VISUAL=editor(tmp_path, 'text = ""'))
    assert [(c["action"], c["before"]) for c in emptied["changes"]] == [("remove", "is called Ana")]
    assert_refused(everthread(kept.home, "memory", "edit", EDITOR="false"), 1, "VISUAL or EDITOR")


def test_what_a_failing_editor_saved_is_put_beside_the_notes(kept: Kept, tmp_path: Path) -> None:
    failing = editor(tmp_path, 'path.write_text(text + "§\\nhalf a note"); sys.exit(3)')
    notes = printed(kept.home, "memory", "list")["memory"]["notes"]
    assert_refused(everthread(kept.home, "memory", "edit", EDITOR=failing), 1, "MEMORY.md.unsaved")
    assert printed(kept.home, "memory", "list")["memory"]["notes"] == notes
    [saved] = kept.home.glob("memory/**/MEMORY.md.unsaved")
    assert saved.read_text().endswith("half a note")
    assert saved.stat().st_mode & 0o777 == 0o600


def test_the_first_note_can_be_written_with_an_editor(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = everthread(home, "memory", "edit", "user", EDITOR=editor(tmp_path, 'text = "is called Ana"'))
    assert done.stdout == "add      is called Ana\n", done.stderr
    assert (home / "memory" / "USER.md").stat().st_mode & 0o777 == 0o600


def test_forget_takes_a_note_out_of_everything_after_a_yes(kept: Kept) -> None:
    done = everthread(kept.home, "memory", "forget", "oolong")
    assert done.returncode == 1, "nobody said yes"
    assert "likes oolong" in everthread(kept.home, "memory", "list").stdout
    done = everthread(kept.home, "memory", "forget", "likes oolong", "--yes")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "Forgotten.")
    for command in ("memory list", "memory log", "recall oolong"):
        shown = everthread(kept.home, *command.split()).stdout
        assert "likes oolong" not in shown
        assert "green tea" not in shown
    assert "oolong" not in (kept.home / "memory" / "MEMORY.md").read_text()
    assert_refused(everthread(kept.home, "memory", "undo", kept.tea), 1, "forgotten")


def test_status_tells_of_providers_and_notes_and_fails_while_something_is_parked(kept: Kept) -> None:
    done = everthread(kept.home, "memory", "status", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    builtin, picky = told["providers"]
    assert (builtin["provider"], builtin["loaded"], builtin["waiting"]) == ("builtin", True, 0)
    assert (picky["provider"], picky["loaded"], picky["parked"]) == ("picky", False, 1)
    assert "not that" in picky["last_error"]
    [entry] = picky["parked_entries"]
    assert (entry["session"], "not that" in entry["error"]) == (kept.session, True)
    assert told["notes"] == {
        "user": {"file": "USER.md", "chars": 13, "chars_max": 4000},
        "memory": {"file": "MEMORY.md", "chars": 12, "chars_max": 8000},
    }
    shown = everthread(kept.home, "memory", "status").stdout
    assert "not loaded here" in shown
    assert kept.session in shown.partition("Parked:")[2]


def test_status_names_what_is_configured_before_anything_was_said(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[memory]\nproviders = ["builtin", "honcho"]\n')
    told = printed(tmp_path, "memory", "status")["providers"]
    assert [(one["provider"], one["state"], one["waiting"], one["health"]) for one in told] == [
        ("builtin", "nothing yet", 0, None),
        ("honcho", "nothing yet", 0, None),
    ]
    shown = everthread(tmp_path, "memory", "status")
    assert (shown.returncode, shown.stdout.count("nothing yet")) == (0, 2)
    assert not list(tmp_path.glob("*.db"))


def test_recall_tells_what_a_turn_would_be_handed_and_where_it_is_from(kept: Kept) -> None:
    told = printed(kept.home, "recall", "which oolong do I like?")
    by_turn = {item["turn"]: item for item in told["items"]}
    assert "I like oolong from Taiwan" in by_turn[1]["text"]
    assert (by_turn[1]["session"], by_turn[1]["title"], by_turn[1]["provider"]) == (kept.session, "Tea", "builtin")
    assert by_turn[1]["score"] > 0
    assert by_turn[1]["at"].endswith("Z")
    assert by_turn[None]["text"] == "noted: likes oolong"
    assert told["missing"] == []
    assert len(printed(kept.home, "recall", "which oolong do I like?", "--limit", "1")["items"]) == 1
    shown = everthread(kept.home, "recall", "oolong from Taiwan").stdout
    assert f'"Tea" ({kept.session}), turn 1, ' in shown
    assert everthread(kept.home, "recall", "zebras").stdout == "Nothing recalled.\n"
    assert_refused(everthread(kept.home, "recall", " "), 2, "QUERY")
