"""`everthread restore`."""

from __future__ import annotations

import asyncio
import json
import tarfile
import time
from pathlib import Path

from tests.e2e.cli.commands.backup.backup_home import KEY, background_writer, files, rewritten
from tests.e2e.commands import everthread, printed, problems, refused

from everthread.adapters.sqlite.connection import connect
from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role
from everthread.lifecycle import NoteChange
from everthread.testing.recording_provider import RecordingProvider


def test_a_backup_without_skills_keeps_the_existing_ones(home: Path, tmp_path: Path) -> None:
    printed(home, "backup", str(tmp_path / "b.tar.gz"))
    SkillFolders(home / "skills").write(SkillText("knots", "How to tie knots.", "Over."))
    printed(home, "restore", "--force", str(tmp_path / "b.tar.gz"))
    assert SkillFolders(home / "skills").get("knots")


def test_an_existing_home_is_replaced_only_with_force_and_moved_aside(home: Path, tmp_path: Path) -> None:
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
    assert (home / ".env").read_text() == "OPENAI_API_KEY=sk-very-secret\n", "API keys must be kept"
    assert problems(home) == []
    assert problems(aside) == []
    assert len(printed(home, "sessions", "list")) == 1


def test_a_home_in_use_is_not_replaced(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))
    with background_writer(home) as worker:
        refused(everthread(home, "restore", str(file), "--force"), 75, "Another program has the file open")
        assert worker.poll() is None
    assert printed(home, "restore", str(file), "--force")["turns"] == 3


def test_a_damaged_store_can_be_replaced(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))
    (home / "everthread.db").write_bytes(b"this was a database once " * 1000)
    assert printed(home, "restore", str(file), "--force")["turns"] == 3


def test_a_store_of_a_newer_version_is_refused(home: Path, tmp_path: Path) -> None:
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


def test_turns_after_a_restore_reach_providers_that_drop_duplicates(home: Path, tmp_path: Path) -> None:
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
        time.sleep(1.1)  # restores must be at least a second apart
    assert "\n".join(effect.text for effect in provider.effects()).count("before the backup, me") == 1
    assert problems(home) == []


def test_data_forgotten_since_the_backup_is_listed(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))
    [session] = printed(home, "sessions", "list")
    assert everthread(home, "forget", session["id"], "--yes").returncode == 0
    done = everthread(home, "restore", str(file), "--force")
    assert done.returncode == 0, done.stderr
    assert f"session {session['id']}" in done.stdout
    assert "everthread forget" in done.stdout
