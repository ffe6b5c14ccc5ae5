"""`everthread restore`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.damaged_files import damage_table
from tests.e2e.cli.commands.backup.backup_home import KEY, background_writer, files, fill_home, with_other_store
from tests.e2e.commands import everthread, printed, problems, refused

from everthread.adapters.sqlite.connection import connect
from everthread.adapters.sqlite.migrate import Migration, known_migrations, migrate
from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.api_key import make_token
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role
from everthread.lifecycle import NoteChange
from everthread.lifecycle.local_token import LocalToken
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
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))
    newer = "INSERT INTO migrations VALUES (9999, 'from_the_future', 'x')"
    bad = with_other_store(file, tmp_path / "newer.tar.gz", newer)
    refused(everthread(tmp_path / "new", "restore", str(bad)), 78, "9999", "Upgrade")
    assert not (tmp_path / "new").exists()


def undo_migrations(after: int) -> str:
    """Return statements that turn a store of today into one with the schema of that migration."""

    def objects(migrations: tuple[Migration, ...]) -> tuple[dict[str, set[str]], set[tuple[str, str]]]:
        connection = connect(":memory:")
        migrate(connection, ":memory:", migrations)
        named = {"table": set[str](), "index": set[str](), "trigger": set[str]()}
        for kind, name in connection.execute("SELECT type, name FROM sqlite_schema WHERE sql IS NOT NULL"):
            named.setdefault(kind, set()).add(name)
        columns = {
            (table, row[0])
            for table in named["table"]
            for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
        }
        connection.close()
        return named, columns

    named, columns = objects(known_migrations()[:after])
    new_named, new_columns = objects(known_migrations())
    # Triggers first: without their tables, the statements after them fail.
    statements = [
        f"DROP {kind} {name}"
        for kind in ("trigger", "index", "table")
        for name in sorted(new_named[kind] - named[kind])
    ]
    statements += [
        f"ALTER TABLE {table} DROP COLUMN {column}"
        for table, column in sorted(new_columns - columns)
        if table in named["table"]
    ]
    return "; ".join([*statements, f"DELETE FROM migrations WHERE number > {after}"])


def test_a_backup_of_an_older_schema_is_restored_and_migrated(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))
    old = with_other_store(file, tmp_path / "older.tar.gz", undo_migrations(14))
    assert printed(home, "restore", str(old), "--force")["turns"] == 3
    for _ in range(2):
        # The first migrates it and gives it an id; the second compares the id with the sentinel.
        assert len(printed(home, "sessions", "list")) == 1
    assert problems(home) == []


def test_the_log_of_a_killed_process_does_not_change_the_restored_store(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))
    with background_writer(home) as worker:
        worker.kill()
        worker.wait()
    assert (home / "everthread.db-wal").stat().st_size
    (home / "everthread.db").unlink()
    aside = Path(printed(home, "restore", str(file), "--force")["aside"])
    assert (aside / "everthread.db-wal").stat().st_size
    assert [session["title"] for session in printed(home, "sessions", "list")] == ["Bees"]
    assert problems(home) == []


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


@pytest.mark.parametrize("lost", ["cut", "removed"])
def test_a_lost_database_is_refused_and_the_named_backup_restores_it(home: Path, tmp_path: Path, lost: str) -> None:
    old, new = tmp_path / "old.tar.gz", tmp_path / "new.tar.gz"
    printed(home, "backup", str(old))
    printed(home, "backup", str(new))
    if lost == "cut":
        (home / "everthread.db").write_bytes(b"")
    else:
        (home / "everthread.db").unlink()
    for command in (["sessions", "list"], ["-p", "hello"], ["memory", "list"]):
        refused(everthread(home, *command), 78, f"everthread restore {new} --force")
    assert printed(home, "restore", str(new), "--force")["turns"] == 3
    assert len(printed(home, "sessions", "list")) == 1
    assert problems(home) == []
    # The restored database is known with its backups.
    (home / "everthread.db").write_bytes(b"")
    refused(everthread(home, "sessions", "list"), 78, f"everthread restore {new} --force")


def test_a_backup_of_another_home_can_be_restored(home: Path, tmp_path: Path) -> None:
    other, file = tmp_path / "other", tmp_path / "it.tar.gz"
    asyncio.run(fill_home(other))
    printed(other, "backup", str(file))
    assert printed(home, "restore", str(file), "--force")["turns"] == 3
    assert len(printed(home, "sessions", "list")) == 1


def test_a_damaged_database_is_read_but_not_written_until_it_is_restored(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))
    damage_table(home / "everthread.db", "note_versions")
    listed = everthread(home, "memory", "list")
    assert listed.returncode == 78
    assert "Nothing more is written" in listed.stderr
    assert f"everthread restore {file} --force" in listed.stderr
    # Now even a command that touches only intact tables is refused.
    refused(everthread(home, "sessions", "rename", "Bees", "Wasps"), 78, "Nothing more is written")
    exported = everthread(home, "sessions", "export", "--all", "-o", str(tmp_path / "rescued.jsonl"))
    assert (exported.returncode, exported.stderr) == (0, "")
    assert "hive 2" in (tmp_path / "rescued.jsonl").read_text()
    assert printed(home, "restore", str(file), "--force")["turns"] == 3
    assert everthread(home, "memory", "list").returncode == 0
    assert problems(home) == []


def start_gateway_once(home: Path, letter: str = "a") -> str | None:
    """Create the automatic token as the start of a gateway does. Return the text that opens the home."""

    async def create() -> str | None:
        async with Runtime(Settings(home)) as runtime:
            local = LocalToken(runtime.store, runtime.clock, runtime.settings.local_token_path)
            await local.create_first(make_token(letter * 43), "me")
            return await local.text()

    return asyncio.run(create())


def token_names(home: Path) -> list[str]:
    return [token["name"] for token in printed(home, "tokens", "list")]


def test_a_restored_home_gets_a_token_that_its_user_can_read(home: Path, tmp_path: Path) -> None:
    file, new = tmp_path / "it.tar.gz", tmp_path / "new"
    start_gateway_once(home)
    printed(home, "backup", str(file))
    done = everthread(new, "restore", str(file))
    assert "The automatic API token is not restored" in done.stdout
    assert "everthread tokens show" in done.stdout
    assert token_names(new) == []
    assert start_gateway_once(new, "b") == make_token("b" * 43)
    assert token_names(new) == ["local"]


def test_the_automatic_token_stays_valid_if_its_text_is_in_the_home(home: Path, tmp_path: Path) -> None:
    token = start_gateway_once(home)
    printed(home, "backup", str(tmp_path / "it.tar.gz"))
    assert not printed(home, "restore", str(tmp_path / "it.tar.gz"), "--force")["dropped_token"]
    assert start_gateway_once(home, "b") == token


def test_a_restore_does_not_bring_back_a_revoked_automatic_token(home: Path, tmp_path: Path) -> None:
    start_gateway_once(home)
    everthread(home, "tokens", "new", "phone")
    printed(home, "backup", str(tmp_path / "it.tar.gz"))
    everthread(home, "tokens", "revoke", "local")
    assert printed(home, "restore", str(tmp_path / "it.tar.gz"), "--force")["dropped_token"]
    assert start_gateway_once(home, "b") is None, "another token exists"
    assert token_names(home) == ["phone"]


def test_a_restored_home_whose_tokens_were_all_revoked_stays_locked(home: Path, tmp_path: Path) -> None:
    file, new = tmp_path / "it.tar.gz", tmp_path / "new"
    start_gateway_once(home)
    everthread(home, "tokens", "revoke", "local")
    printed(home, "backup", str(file))
    assert not printed(new, "restore", str(file))["dropped_token"]
    assert start_gateway_once(new, "b") is None
    assert token_names(new) == []
