"""`everthread backup`."""

from __future__ import annotations

import gzip
import os
import sqlite3
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from tests.e2e.cli.commands.backup.backup_home import background_writer, files
from tests.e2e.commands import everthread, printed, problems, refused

from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText


def test_a_restored_backup_equals_the_home_without_secrets(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.tar.gz"
    done = printed(home, "backup", str(file))
    assert (done["sessions"], done["turns"], done["messages"], done["notes"]) == (1, 3, 6, 1)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as archive:
        assert archive.getnames() == ["manifest.json", "everthread.db", "config.toml", "memory/USER.md"]
    assert b"sk-very-secret" not in gzip.decompress(file.read_bytes())
    other = tmp_path / "other"
    told = everthread(other, "restore", str(file))
    assert (told.returncode, told.stderr) == (0, "")
    assert "1 session, 3 turns" in told.stdout
    names = ["config.toml", "everthread.db", "everthread.db.sentinel", "everthread.db.sentinel.lock", "memory"]
    assert sorted(path.name for path in other.iterdir()) == names
    assert (other / "memory" / "USER.md").read_text() == "keeps bees\n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in other.rglob("*") if path.is_file()} == {0o600}
    assert stat.S_IMODE(other.stat().st_mode) == 0o700
    assert problems(other) == []
    assert printed(other, "sessions", "show", "Bees") == printed(home, "sessions", "show", "Bees")
    assert [path.name for path in home.iterdir() if path.name.startswith(".backup")] == []


def test_skills_and_rules_are_backed_up_and_restored(home: Path, tmp_path: Path) -> None:
    folders = SkillFolders(home / "skills")
    folders.write(SkillText("knots", "How to tie knots.", "Over."))
    folders.write(SkillText("knots", "How to tie knots.", "Over, under."))
    (home / "skills/knots/scripts").mkdir()
    (home / "skills/knots/scripts/tie.sh").write_text("tie\n")
    (home / "skills/linked").symlink_to(tmp_path)
    (home / "AGENTS.md").write_text("Never speak of whales.\n")
    (home / "GUESTS.md").write_text("Be polite to visitors.\n")
    printed(home, "backup", str(tmp_path / "b.tar.gz"))
    new = tmp_path / "new"
    printed(new, "restore", str(tmp_path / "b.tar.gz"))
    assert (new / "AGENTS.md").read_text() == "Never speak of whales.\n"
    assert (new / "GUESTS.md").read_text() == "Be polite to visitors.\n"
    skills = {name: content for name, content in files(home / "skills").items() if name != ".old/lock"}
    assert files(new / "skills") == skills
    assert len(skills) == 4
    again = SkillFolders(new / "skills")
    again.undo("knots", 2)
    assert "Over.\n" in again.text(again.get("knots"))


def test_without_a_name_a_new_file_is_created_here(home: Path, tmp_path: Path) -> None:
    done = everthread(home, "backup", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ".env" in done.stdout, "omitted files must be listed"
    [made] = tmp_path.glob("everthread-*.tar.gz")
    before = made.read_bytes()
    refused(everthread(home, "backup", str(made)), 1, "already")
    assert made.read_bytes() == before
    refused(everthread(home, "backup", str(tmp_path / "no" / "such" / "folder.tar.gz")), 78, "folder")
    refused(everthread(tmp_path / "empty", "backup", str(tmp_path / "x.tar.gz")), 1, "empty yet")
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name or path.name == "x.tar.gz"] == []


def test_a_backup_during_writes_is_consistent_and_blocks_no_writer(home: Path, tmp_path: Path) -> None:
    with background_writer(home) as worker:
        for number in range(2):
            done = printed(home, "backup", str(tmp_path / f"{number}.tar.gz"))
            assert done["turns"] > 3
        assert worker.stdout is not None
        assert worker.poll() is None, "the writer must keep running"
        written = int(worker.stdout.readline())
    assert written > 0
    counts = []
    for number in range(2):
        other = tmp_path / f"other{number}"
        counts.append(printed(other, "restore", str(tmp_path / f"{number}.tar.gz"))["turns"])
        assert problems(other) == []
    assert counts[0] < counts[1], "the later backup must contain the later commits"


def test_notes_that_do_not_fit_are_skipped_and_listed(home: Path, tmp_path: Path) -> None:
    deep = home / "memory" / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    (deep / "deep.md").write_text("deep")
    (home / "memory" / "a" / "here.md").write_text("kept")
    odd = os.fsencode(home / "memory") + b"/odd\xff.md"
    with open(odd, "wb") as file:
        file.write(b"odd")
    with (home / "memory" / "large.md").open("wb") as file:
        file.truncate(10_000_001)
    done = everthread(home, "backup", str(tmp_path / "it.tar.gz"))
    assert done.returncode == 0, done.stderr
    for name in ("memory/a/b/c/d/deep.md", "memory/odd", "memory/large.md"):
        assert name in done.stdout
    assert len(printed(home, "backup", str(tmp_path / "again.tar.gz"))["passed_over"]) == 3
    other = tmp_path / "other"
    printed(other, "restore", str(tmp_path / "it.tar.gz"))
    assert sorted(path.name for path in (other / "memory").rglob("*.md")) == ["USER.md", "here.md"]


def test_a_terminated_backup_leaves_no_files(home: Path, tmp_path: Path) -> None:
    with sqlite3.connect(home / "everthread.db") as database:
        database.execute("CREATE TABLE ballast (content)")
        database.executemany("INSERT INTO ballast VALUES (randomblob(1000000))", [()] * 60)
    database.close()
    command = [sys.executable, "-m", "everthread", "--home", str(home), "backup", str(tmp_path / "it.tar.gz")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 15
        while not list(tmp_path.glob(".it*.part")) or not list(home.glob(".backup-*")):
            assert process.poll() is None, "the backup ended before it could be terminated"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.terminate()
        process.communicate(timeout=15)
    finally:
        process.kill()
    assert process.returncode == 130
    assert [
        path.name for path in (*tmp_path.iterdir(), *home.iterdir()) if path.name[:3] in (".ba", ".it", "it.")
    ] == []


def test_files_of_a_killed_backup_are_removed_by_the_next(home: Path, tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ours = [home / f".backup-{gone.pid}-abc", tmp_path / f".it.tar.gz.{gone.pid}.part"]
    others = [home / f".backup-{os.getpid()}-abc", tmp_path / f".it.tar.gz.{os.getpid()}.part"]
    others += [tmp_path / f".something.{gone.pid}.part", tmp_path / f".it.tar.gz.{gone.pid}.part.mine"]
    for path in ours + others:
        path.mkdir() if path.parent == home else path.write_text("x")
        os.utime(path, (1, 1))
    printed(home, "backup", str(tmp_path / "it.tar.gz"))
    assert [path for path in ours if path.exists()] == []
    assert [path for path in others if not path.exists()] == []
