"""`everthread backup` and `restore`: real processes, real files, somebody writing meanwhile."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tarfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.commands import everthread, printed, problems, refused

from everthread.adapters.sqlite.connection import connect
from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText
from everthread.bootstrap.runtime import Runtime
from everthread.cli.commands.backup.archive import install, unpack
from everthread.config.settings import Settings
from everthread.domain.boundary import New
from everthread.domain.errors import StoreCorrupt, StoreUnwritable
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role, SessionKey
from everthread.lifecycle import NoteChange
from everthread.testing.recording_provider import RecordingProvider

KEY = SessionKey.parse("agent:main:cli:dm:1")


async def _live(home: Path) -> None:
    async with Runtime(Settings(home)) as runtime:
        await runtime.start()
        await runtime.lifecycle.cross(KEY, New("Bees"), owner="me")
        for number in range(3):
            await runtime.lifecycle.accept(Inbound(KEY, "me", f"hive {number}"))
            ticket = await runtime.lifecycle.begin_turn(KEY)
            assert ticket is not None
            said = [Message(Role.USER, f"hive {number}"), Message(Role.ASSISTANT, "noted")]
            await runtime.lifecycle.commit_turn(ticket, said, "noted")
        await runtime.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "keeps bees"), owner="me")
        await runtime.sync_notes("me")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    asyncio.run(_live(home))
    (home / "config.toml").write_text('owner = "me"\n')
    (home / ".env").write_text("OPENAI_API_KEY=sk-very-secret\n")
    (home / ".env").chmod(0o600)
    (home / "mcp.json").write_text('{"mcpServers": {}}\n')
    return home


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def somebody_writing(home: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.e2e.commit_worker", str(home)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "1\n"
        yield worker
    finally:
        worker.communicate("stop\n", timeout=15)


def test_a_backup_and_its_restoration_are_the_same_home_without_secrets(home: Path, tmp_path: Path) -> None:
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
    assert sorted(path.name for path in other.iterdir()) == ["config.toml", "everthread.db", "memory"]
    assert (other / "memory" / "USER.md").read_text() == "keeps bees\n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in other.rglob("*") if path.is_file()} == {0o600}
    assert stat.S_IMODE(other.stat().st_mode) == 0o700
    assert problems(other) == []
    assert printed(other, "sessions", "show", "Bees") == printed(home, "sessions", "show", "Bees")
    assert [path.name for path in home.iterdir() if path.name.startswith(".backup")] == []


def test_skills_and_standing_rules_are_in_a_backup_and_come_back(home: Path, tmp_path: Path) -> None:
    folders = SkillFolders(home / "skills")
    folders.write(SkillText("knots", "How to tie knots.", "Over."))
    folders.write(SkillText("knots", "How to tie knots.", "Over, under."))
    (home / "skills/knots/scripts").mkdir()
    (home / "skills/knots/scripts/tie.sh").write_text("tie\n")
    (home / "skills/linked").symlink_to(tmp_path)
    (home / "AGENTS.md").write_text("Never speak of whales.\n")
    printed(home, "backup", str(tmp_path / "b.tar.gz"))
    new = tmp_path / "new"
    printed(new, "restore", str(tmp_path / "b.tar.gz"))
    assert (new / "AGENTS.md").read_text() == "Never speak of whales.\n"
    skills = {name: content for name, content in files(home / "skills").items() if name != ".old/lock"}
    assert files(new / "skills") == skills
    assert len(skills) == 4
    again = SkillFolders(new / "skills")
    again.take_back("knots", 2)
    assert "Over.\n" in again.text(again.get("knots"))


def test_a_backup_without_skills_leaves_those_there_are(home: Path, tmp_path: Path) -> None:
    printed(home, "backup", str(tmp_path / "b.tar.gz"))
    SkillFolders(home / "skills").write(SkillText("knots", "How to tie knots.", "Over."))
    printed(home, "restore", "--force", str(tmp_path / "b.tar.gz"))
    assert SkillFolders(home / "skills").get("knots")


def test_without_a_name_a_new_file_is_made_here_and_none_is_overwritten(home: Path, tmp_path: Path) -> None:
    done = everthread(home, "backup", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ".env" in done.stdout, "what is not in it is said"
    [made] = tmp_path.glob("everthread-*.tar.gz")
    before = made.read_bytes()
    refused(everthread(home, "backup", str(made)), 1, "already")
    assert made.read_bytes() == before
    refused(everthread(home, "backup", str(tmp_path / "no" / "such" / "folder.tar.gz")), 78, "folder")
    refused(everthread(tmp_path / "empty", "backup", str(tmp_path / "x.tar.gz")), 1, "empty yet")
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name or path.name == "x.tar.gz"] == []


def test_a_backup_while_somebody_writes_is_consistent_and_holds_nobody_up(home: Path, tmp_path: Path) -> None:
    with somebody_writing(home) as worker:
        for number in range(2):
            done = printed(home, "backup", str(tmp_path / f"{number}.tar.gz"))
            assert done["turns"] > 3
        assert worker.stdout is not None
        assert worker.poll() is None, "the writer goes on"
        written = int(worker.stdout.readline())
    assert written > 0
    counts = []
    for number in range(2):
        other = tmp_path / f"other{number}"
        counts.append(printed(other, "restore", str(tmp_path / f"{number}.tar.gz"))["turns"])
        assert problems(other) == []
    assert counts[0] < counts[1], "and what was committed in between is in the later one"


def test_a_home_with_something_in_it_is_overwritten_only_by_force_and_kept_aside(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))
    before = files(home)
    refused(everthread(home, "restore", str(file)), 1, "--force")
    assert files(home) == before
    done = printed(home, "restore", str(file), "--force")
    aside = Path(done["aside"])
    assert aside.parent == home
    assert (aside / "everthread.db").read_bytes()[:6] == b"SQLite"
    assert (aside / "config.toml").read_bytes() == before["config.toml"]
    assert (aside / "memory" / "USER.md").read_bytes() == before["memory/USER.md"]
    assert (home / ".env").read_text() == "OPENAI_API_KEY=sk-very-secret\n", "keys stay"
    assert problems(home) == []
    assert problems(aside) == []
    assert len(printed(home, "sessions", "list")) == 1


def test_a_home_that_somebody_has_open_is_left_alone(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))
    with somebody_writing(home) as worker:
        refused(everthread(home, "restore", str(file), "--force"), 75, "Another program has the file open")
        assert worker.poll() is None
    assert printed(home, "restore", str(file), "--force")["turns"] == 3


def test_a_damaged_store_can_be_replaced(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))
    (home / "everthread.db").write_bytes(b"this was a database once " * 1000)
    assert printed(home, "restore", str(file), "--force")["turns"] == 3


def rewritten(file: Path, target: Path, change: Any) -> Path:
    """The same backup with some members changed; the manifest's checksums stay as they were, unless changed too."""
    with tarfile.open(file) as archive, tarfile.open(target, "w:gz") as copy:
        for info in archive.getmembers():
            content = archive.extractfile(info)
            assert content is not None
            for name, data in change(info.name, content.read()):
                new = tarfile.TarInfo(name)
                new.size = len(data)
                copy.addfile(new, io.BytesIO(data))
    return target


def _flip(name: str, data: bytes) -> list[tuple[str, bytes]]:
    middle = len(data) // 2
    changed = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return [(name, changed if name == "everthread.db" else data)]


def _manifest(**changes: Any) -> Any:
    def change(name: str, data: bytes) -> list[tuple[str, bytes]]:
        return [(name, json.dumps(json.loads(data) | changes).encode() if name == "manifest.json" else data)]

    return change


def _outside(name: str, data: bytes) -> list[tuple[str, bytes]]:
    if name == "manifest.json":
        manifest = json.loads(data)
        manifest["files"][-1]["name"] = "memory/../../outside.md"
        data = json.dumps(manifest).encode()
    return [(name.replace("memory/USER.md", "memory/../../outside.md"), data)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_flip, 78),
        (_outside, 78),
        (_manifest(version=2), 78),
        (_manifest(format="something"), 78),
        (_manifest(files=[]), 78),
        (lambda name, data: [(name, data)] if name != "config.toml" else [], 78),
        (lambda name, data: [(name, data), ("evil.md", b"x")] if name == "config.toml" else [(name, data)], 78),
        (lambda name, data: [(name, data)] if name != "manifest.json" else [], 78),
    ],
)
def test_a_backup_that_is_not_what_it_says_is_refused_before_anything_is_touched(
    home: Path, tmp_path: Path, change: Any, code: int
) -> None:
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))
    bad = rewritten(file, tmp_path / "bad.tar.gz", change)
    before = files(home)
    refused(everthread(home, "restore", str(bad), "--force"), code, "bad.tar.gz")
    assert files(home) == before
    refused(everthread(tmp_path / "new", "restore", str(bad)), code)
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "outside.md").exists()


def test_what_is_no_backup_at_all_is_refused(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))
    whole = file.read_bytes()
    for name, content in {"cut": whole[: len(whole) // 2], "text": b"hello", "empty": b""}.items():
        (tmp_path / name).write_bytes(content)
        refused(everthread(tmp_path / "new", "restore", str(tmp_path / name)), 78, name)
    refused(everthread(tmp_path / "new", "restore", str(tmp_path / "none")), 1, "no such file")
    assert not (tmp_path / "new").exists()


def test_a_store_of_a_newer_program_is_refused(home: Path, tmp_path: Path) -> None:
    file, stray = tmp_path / "it.tar.gz", tmp_path / "stray.db"
    printed(home, "backup", str(file))

    def newer(name: str, data: bytes) -> list[tuple[str, bytes]]:
        if name == "manifest.json":
            manifest = json.loads(data)
            import hashlib

            with tarfile.open(file) as archive:
                content = archive.extractfile("everthread.db")
                assert content is not None
                stray.write_bytes(content.read())
            database = connect(str(stray))
            database.execute("INSERT INTO migrations VALUES (9999, 'from_the_future', 'x')")
            database.execute("PRAGMA journal_mode = DELETE")
            database.close()
            manifest["files"][0] |= {
                "size": stray.stat().st_size,
                "sha256": hashlib.sha256(stray.read_bytes()).hexdigest(),
            }
            data = json.dumps(manifest).encode()
        return [(name, stray.read_bytes() if name == "everthread.db" else data)]

    bad = rewritten(file, tmp_path / "newer.tar.gz", newer)
    refused(everthread(tmp_path / "new", "restore", str(bad)), 78, "9999", "Upgrade")
    assert not (tmp_path / "new").exists()


async def _say_and_note(home: Path, provider: RecordingProvider, text: str) -> None:
    async with Runtime(Settings(home), providers=[provider]) as runtime:
        await runtime.start()
        await runtime.lifecycle.accept(Inbound(KEY, "me", text))
        ticket = await runtime.lifecycle.begin_turn(KEY)
        assert ticket is not None
        await runtime.lifecycle.commit_turn(ticket, [Message(Role.USER, text)], None)
        for owner in ("me", "you"):
            change = NoteChange(NoteAction.ADD, NoteTarget.USER, f"{text}, {owner}")
            await runtime.lifecycle.write_note(change, owner=owner)
        assert await runtime.drain()


def test_what_is_said_after_a_restoration_reaches_providers_that_drop_what_they_have_seen(
    home: Path, tmp_path: Path
) -> None:
    file, provider = tmp_path / "it.tar.gz", RecordingProvider()
    asyncio.run(_say_and_note(home, provider, "before the backup"))
    printed(home, "backup", str(file))
    late = RecordingProvider("late")
    for text in ("after the backup", "after a restoration", "after another"):
        for one in (provider, late):
            asyncio.run(_say_and_note(home, one, f"{text} {one.name}"))
            told = "\n".join(effect.text for effect in one.effects())
            for part in ("", ", me", ", you"):
                assert f"{text} {one.name}{part}" in told
        printed(home, "restore", str(file), "--force")
        time.sleep(1.1)  # no two restorations are made within a second
    assert "\n".join(effect.text for effect in provider.effects()).count("before the backup, me") == 1
    assert problems(home) == []


def test_notes_that_no_backup_can_hold_are_passed_over_and_named(home: Path, tmp_path: Path) -> None:
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


def _archive(file: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(file, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file


@pytest.mark.parametrize("first", [True, False])
def test_a_backup_that_describes_a_file_at_great_length_is_not_read_into_memory(
    home: Path, tmp_path: Path, first: bool
) -> None:
    file, folder = tmp_path / "it.tar.gz", tmp_path / "unpacked"
    printed(home, "backup", str(file))
    with tarfile.open(file) as archive:
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        content = manifest.read()
    huge = tarfile.TarInfo("everthread.db" if not first else "manifest.json")
    huge.pax_headers = {"comment": "x" * 50_000_000}
    bad = _archive(
        tmp_path / "bad.tar.gz", *([] if first else [(tarfile.TarInfo("manifest.json"), content)]), (huge, b"")
    )
    tracemalloc.start()
    try:
        with pytest.raises(StoreCorrupt, match="larger than its manifest allows"):
            unpack(bad, folder, lambda _: None)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_a_backup_that_does_not_fit_on_the_disk_is_refused_before_it_is_unpacked(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))

    def large(name: str, data: bytes) -> list[tuple[str, bytes]]:
        if name == "manifest.json":
            manifest = json.loads(data)
            manifest["files"][0]["size"] = 10**17
            data = json.dumps(manifest).encode()
        return [(name, data)]

    bad = rewritten(file, tmp_path / "large.tar.gz", large)
    refused(everthread(tmp_path / "new", "restore", str(bad)), 75, "free some space")
    assert not (tmp_path / "new").exists()


def test_a_backup_that_is_told_to_end_leaves_nothing_behind(home: Path, tmp_path: Path) -> None:
    with sqlite3.connect(home / "everthread.db") as database:
        database.execute("CREATE TABLE ballast (content)")
        database.executemany("INSERT INTO ballast VALUES (randomblob(1000000))", [()] * 60)
    database.close()
    command = [sys.executable, "-m", "everthread", "--home", str(home), "backup", str(tmp_path / "it.tar.gz")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 15
        while not list(tmp_path.glob(".it*.part")) or not list(home.glob(".backup-*")):
            assert process.poll() is None, "it was too quick"
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


def test_what_a_killed_backup_has_left_is_removed_by_the_next(home: Path, tmp_path: Path) -> None:
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


def test_a_restoration_that_fails_half_way_leaves_everything_where_it_was(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    (folder / "memory").mkdir(parents=True)
    (folder / "everthread.db").write_text("new")
    (folder / "config.toml").write_text("new")
    before = files(home)
    away = tmp_path / "file"
    away.write_text("no folder")
    with pytest.raises(OSError, match="file"):
        install(folder, home, away / "config.toml", home / "aside")
    assert files(home) == before
    assert not (home / "aside").exists()
    assert (folder / "everthread.db").read_text() == "new"


def test_if_nothing_can_be_moved_back_the_place_of_the_old_store_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unpacked").mkdir()
    (tmp_path / "unpacked" / "everthread.db").write_text("new")
    move, moves = shutil.move, iter(range(99))

    def failing(old: Path, new: Path) -> None:
        if next(moves) > 0:
            raise OSError(5, "Input/output error")
        move(old, new)

    monkeypatch.setattr(shutil, "move", failing)
    with pytest.raises(StoreUnwritable, match="the previous files are in .*aside"):
        install(tmp_path / "unpacked", home, home / "config.toml", home / "aside")


def test_what_was_forgotten_since_the_backup_is_named(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))
    [session] = printed(home, "sessions", "list")
    assert everthread(home, "forget", session["id"], "--yes").returncode == 0
    done = everthread(home, "restore", str(file), "--force")
    assert done.returncode == 0, done.stderr
    assert f"session {session['id']}" in done.stdout
    assert "everthread forget" in done.stdout
