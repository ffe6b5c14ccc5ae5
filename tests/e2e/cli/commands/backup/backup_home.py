"""Fixtures of a home to back up."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from everthread.adapters.sqlite.connection import connect
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role, SessionKey
from everthread.lifecycle import NoteChange

KEY = SessionKey.parse("agent:main:cli:dm:1")


async def fill_home(home: Path) -> None:
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
    asyncio.run(fill_home(home))
    (home / "config.toml").write_text('owner = "me"\n')
    (home / ".env").write_text("OPENAI_API_KEY=sk-very-secret\n")
    (home / ".env").chmod(0o600)
    (home / "mcp.json").write_text('{"mcpServers": {}}\n')
    return home


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def background_writer(home: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.e2e.commit_worker", str(home)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "1\n"
        yield worker
    finally:
        worker.communicate("stop\n", timeout=15)


def rewritten(file: Path, target: Path, change: Any) -> Path:
    """Copy a backup with members changed by `change`; checksums in the manifest are not updated."""
    with tarfile.open(file) as archive, tarfile.open(target, "w:gz") as copy:
        for info in archive.getmembers():
            content = archive.extractfile(info)
            assert content is not None
            for name, data in change(info.name, content.read()):
                new = tarfile.TarInfo(name)
                new.size = len(data)
                copy.addfile(new, io.BytesIO(data))
    return target


def with_other_store(file: Path, target: Path, sql: str) -> Path:
    """Copy a backup with its store changed by SQL statements; the manifest is updated."""
    store = target.with_suffix(".db")
    with tarfile.open(file) as archive:
        content = archive.extractfile("everthread.db")
        assert content is not None
        store.write_bytes(content.read())
    database = connect(str(store))
    database.execute(sql)
    database.execute("PRAGMA journal_mode = DELETE")
    database.close()
    changed = store.read_bytes()

    def change(name: str, data: bytes) -> list[tuple[str, bytes]]:
        if name == "manifest.json":
            manifest = json.loads(data)
            manifest["files"][0] |= {"size": len(changed), "sha256": hashlib.sha256(changed).hexdigest()}
            data = json.dumps(manifest).encode()
        return [(name, changed if name == "everthread.db" else data)]

    return rewritten(file, target, change)
