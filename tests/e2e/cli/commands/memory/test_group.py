"""`everthread memory`: notes."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.cli.commands.memory.memory_home import SampleHome, assert_refused, everthread, printed


def editor(tmp_path: Path, script: str) -> str:
    """Write an editor program that runs `script` on the variable `text`, and return its command."""
    program = tmp_path / "editor.py"
    program.write_text(
        "import pathlib, sys\npath = pathlib.Path(sys.argv[1])\ntext = path.read_text()\n"
        f"{script}\npath.write_text(text)\n"
    )
    return f"{sys.executable} {program}"


def test_list_prints_both_files_with_ids_and_sizes(sample: SampleHome) -> None:
    assert everthread(sample.home, "memory", "list").stdout == (
        "USER.md: 13 of 4000 characters (0 % full)\n"
        f"  {sample.name}  is called Ana\n"
        "MEMORY.md: 12 of 8000 characters (0 % full)\n"
        f"  {sample.tea}  likes oolong\n"
    )
    told = printed(sample.home, "memory", "list")
    assert (told["user"]["chars"], told["user"]["chars_max"]) == (13, 4000)
    assert [(n["id"], n["version"], n["text"]) for n in told["memory"]["notes"]] == [(sample.tea, 2, "likes oolong")]


def test_list_includes_edits_of_the_files(sample: SampleHome) -> None:
    (sample.home / "memory" / "USER.md").write_text("is called Ana Lima\n")
    assert [n["text"] for n in printed(sample.home, "memory", "list")["user"]["notes"]] == ["is called Ana Lima"]


def test_reading_a_missing_home_does_not_create_it(tmp_path: Path) -> None:
    home = tmp_path / "none"
    assert printed(home, "memory", "log") == []
    assert printed(home, "memory", "list")["memory"]["notes"] == []
    [builtin] = printed(home, "memory", "status")["providers"]
    assert (builtin["provider"], builtin["loaded"], builtin["state"]) == ("builtin", False, "nothing yet")
    assert printed(home, "recall", "tea") == {"items": [], "missing": []}
    assert_refused(everthread(home, "memory", "undo"), 1, "no data in")
    assert not home.exists()


def test_show_prints_every_version_with_its_origin(sample: SampleHome) -> None:
    told = printed(sample.home, "memory", "show", "oolong")
    assert (told["id"], told["target"], told["live"]) == (sample.tea, "memory", True)
    newest, oldest = told["versions"]
    assert (newest["change"], newest["action"], newest["text"]) == (f"{sample.tea}:2", "replace", "likes oolong")
    assert (newest["before"], oldest["before"]) == ("likes green tea", None)
    assert (newest["by"], newest["session"], newest["title"], newest["turn"]) == ("agent", sample.session, "Tea", 1)
    shown = everthread(sample.home, "memory", "show", sample.tea).stdout
    assert 'by the agent, in turn 1 of "Tea"' in shown
    assert shown.index("likes oolong") < shown.index("likes green tea")
    assert_refused(everthread(sample.home, "memory", "show", "coffee"), 1, "there is no note", "memory list")


def test_log_is_newest_first_and_limited(sample: SampleHome) -> None:
    told = printed(sample.home, "memory", "log")
    assert [c["change"] for c in told] == [f"{sample.name}:1", f"{sample.tea}:2", f"{sample.tea}:1"]
    assert (told[0]["by"], told[0]["session"]) == ("user", None)
    assert printed(sample.home, "memory", "log", "--limit", "1") == told[:1]
    assert "likes green tea" in everthread(sample.home, "memory", "log").stdout


def test_undo_reverts_the_newest_change_or_a_given_one(sample: SampleHome) -> None:
    assert "Removed again" in everthread(sample.home, "memory", "undo").stdout
    assert printed(sample.home, "memory", "list")["user"]["notes"] == []
    told = printed(sample.home, "memory", "undo", f"{sample.tea}:2")
    assert told == {"undone": f"{sample.tea}:2", "version": f"{sample.tea}:3", "text": "likes green tea"}
    assert (sample.home / "memory" / "MEMORY.md").read_text() == "likes green tea\n"
    assert_refused(everthread(sample.home, "memory", "undo", f"{sample.tea}:1"), 2, f"{sample.tea}:3 first")
    assert_refused(everthread(sample.home, "memory", "undo", "nonsense"), 1, "memory log")


def test_edit_imports_the_text_and_prints_the_changes(sample: SampleHome, tmp_path: Path) -> None:
    change = editor(tmp_path, 'text = text.replace("oolong", "sencha") + "§\\nlives in Lisbon\\n"')
    done = everthread(sample.home, "memory", "edit", EDITOR=change)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "replace  likes sencha\nadd      lives in Lisbon\n"
    notes = printed(sample.home, "memory", "list")["memory"]["notes"]
    assert [note["text"] for note in notes] == ["likes sencha", "lives in Lisbon"]
    assert everthread(sample.home, "memory", "edit", EDITOR="true").stdout == "No changes.\n"
    emptied = printed(sample.home, "memory", "edit", "user", VISUAL=editor(tmp_path, 'text = ""'))
    assert [(c["action"], c["before"]) for c in emptied["changes"]] == [("remove", "is called Ana")]
    assert_refused(everthread(sample.home, "memory", "edit", EDITOR="false"), 1, "VISUAL or EDITOR")


def test_the_text_of_a_failing_editor_is_kept_beside_the_notes(sample: SampleHome, tmp_path: Path) -> None:
    failing = editor(tmp_path, 'path.write_text(text + "§\\nhalf a note"); sys.exit(3)')
    notes = printed(sample.home, "memory", "list")["memory"]["notes"]
    assert_refused(everthread(sample.home, "memory", "edit", EDITOR=failing), 1, "MEMORY.md.unsaved")
    assert printed(sample.home, "memory", "list")["memory"]["notes"] == notes
    [saved] = sample.home.glob("memory/**/MEMORY.md.unsaved")
    assert saved.read_text().endswith("half a note")
    assert saved.stat().st_mode & 0o777 == 0o600


def test_the_first_note_can_be_written_with_an_editor(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = everthread(home, "memory", "edit", "user", EDITOR=editor(tmp_path, 'text = "is called Ana"'))
    assert done.stdout == "add      is called Ana\n", done.stderr
    assert (home / "memory" / "USER.md").stat().st_mode & 0o777 == 0o600


def test_forget_removes_a_note_after_confirmation(sample: SampleHome) -> None:
    done = everthread(sample.home, "memory", "forget", "oolong")
    assert done.returncode == 1, "forget must fail without confirmation"
    assert "likes oolong" in everthread(sample.home, "memory", "list").stdout
    done = everthread(sample.home, "memory", "forget", "likes oolong", "--yes")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "Forgotten.")
    for command in ("memory list", "memory log", "recall oolong"):
        shown = everthread(sample.home, *command.split()).stdout
        assert "likes oolong" not in shown
        assert "green tea" not in shown
    assert "oolong" not in (sample.home / "memory" / "MEMORY.md").read_text()
    assert_refused(everthread(sample.home, "memory", "undo", sample.tea), 1, "forgotten")
