"""Backups and exports that write outside the home, or more than the machine can hold."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw

from tests.attacks.attempts import Attempts
from tests.attacks.target import Target

_BAD_NAMES = (
    "../planted", "../../planted", "/tmp/everthread-planted", "skills/../../planted", "memory/../../planted.md",
    "skills/x/../../../planted", ".env", "mcp.json", "./.env", "skills\\..\\planted", "memory/\x00.md", "local-token",
    "everthread.db-wal", "everthread.db-shm", "logs/planted", "plugins/planted.py", "skills/a/b/c/d/e/f/g/h/i/planted",
    "config.toml/x", "memory/" + "a" * 300 + ".md", "memory/\u202e.md", "AGENTS.md ", "SKILLS/planted", "~/planted",
    "skills/.old/../../../planted", "processes/planted", "media/../../planted", "run.lock", "models/local/planted",
)  # fmt: skip


async def attack(target: Target, folder: Path) -> Attempts:
    attempts = Attempts("archives and exports")
    await asyncio.to_thread(folder.mkdir)
    genuine = folder / "genuine.tar.gz"
    result = await target.run("backup", str(genuine))
    assert result.returncode == 0, result.stderr
    for number, (name, archive) in enumerate(_bad_archives(genuine)):
        home = folder / f"restored-{number}"
        file = folder / f"bad-{number}.tar.gz"
        file.write_bytes(archive)
        before = _outside(folder, home)
        result = await _run_in(target, home, "restore", str(file))
        attempts.record(f"restore: {name}", _judge(result.returncode, before, _outside(folder, home), result.stderr))
    for number, (name, lines) in enumerate(_bad_exports(target)):
        home = folder / f"imported-{number}"
        file = folder / f"bad-{number}.jsonl"
        file.write_text(lines)
        before = _outside(folder, home)
        result = await _run_in(target, home, "sessions", "import", str(file))
        # A valid export may be imported; it must change nothing outside the home.
        changed = before != _outside(folder, home)
        bad = "Traceback" in result.stderr
        attempts.record(f"import: {name}", "a file outside the home" if changed else "a traceback" if bad else "")
    return attempts


async def _run_in(target: Target, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(lambda: target.cli(*arguments, home=home))


def _judge(code: int, before: list[str], after: list[str], error: str) -> str:
    if before != after:
        return f"changed {sorted(set(after) ^ set(before))[:3]}"
    if code == 0:
        return "restored without an error"
    return "a traceback" if "Traceback" in error else ""


def _outside(folder: Path, home: Path) -> list[str]:
    """List every file of the test folder outside the restored home."""
    planted = Path("/tmp/everthread-planted")
    found = [str(path) for path in folder.rglob("*") if home not in path.parents and path != home]
    return sorted(found) + ([str(planted)] if planted.exists() else [])


def _bad_archives(genuine: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(genuine) as archive:
        files = [(member, archive.extractfile(member).read()) for member in archive.getmembers()]  # pyright: ignore[reportOptionalMemberAccess]
    manifest = json.loads(files[0][1])
    for name in _BAD_NAMES:
        yield f"a file named {name!r}", _pack(manifest, files, [(name, b"planted", {})])
    for kind, label in ((tarfile.SYMTYPE, "symlink"), (tarfile.LNKTYPE, "hard link"), (tarfile.CHRTYPE, "device"),
                        (tarfile.FIFOTYPE, "pipe"), (tarfile.DIRTYPE, "folder")):  # fmt: skip
        for link in ("/etc/passwd", "../../planted", "everthread.db"):
            extra = {"type": kind, "linkname": link}
            yield f"a {label} to {link}", _pack(manifest, files, [("memory/link.md", b"", extra)])
            through = [("memory/link.md", b"", extra), ("memory/link.md/planted.md", b"x", {})]
            yield f"a file through a {label} to {link}", _pack(manifest, files, through)
    yield "the manifest twice", _pack(manifest, files, [("manifest.json", b"{}", {})])
    yield "the store twice", _pack(manifest, files, [("everthread.db", b"x", {})])
    yield "a wrong digest", _pack(_with(manifest, 0, sha256="0" * 64), files, [])
    yield "a size too small", _pack(_with(manifest, 0, size=1), files, [])
    yield "a size too large", _pack(_with(manifest, 0, size=10**15), files, [])
    yield "a negative size", _pack(_with(manifest, 0, size=-1), files, [])
    yield "another format", _pack({**manifest, "format": "other"}, files, [])
    yield "a later version", _pack({**manifest, "version": 99}, files, [])
    yield "a store of a later version", _with_later_store(manifest, files)
    yield "no files", _pack({**manifest, "files": []}, files[:1], [])
    whole = genuine.read_bytes()
    for share in (0.1, 0.5, 0.9, 0.99):
        yield f"cut at {share:.0%}", whole[: int(len(whole) * share)]
    yield "not an archive", b"PK\x03\x04" + b"\0" * 1000
    yield "empty", b""
    yield "a gzip bomb", gzip.compress(b"\0" * 200_000_000)


def _with(manifest: dict, place: int, **changes: object) -> dict:
    files = [dict(one) for one in manifest["files"]]
    files[place] |= changes
    return {**manifest, "files": files}


def _with_later_store(manifest: dict, files: list) -> bytes:
    """Pack a store that says that a later program wrote it."""
    [(member, content)] = [pair for pair in files if pair[0].name == "everthread.db"]
    with tempfile.NamedTemporaryFile(suffix=".db") as file:
        file.write(content)
        file.flush()
        connection = apsw.Connection(file.name)
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("INSERT INTO migrations (number, name, checksum) VALUES (1000000, 'later', '')")
        connection.close()
        changed = Path(file.name).read_bytes()
    digest = hashlib.sha256(changed).hexdigest()
    place = next(n for n, one in enumerate(manifest["files"]) if one["name"] == "everthread.db")
    others = [(m, changed if m is member else c) for m, c in files]
    return _pack(_with(manifest, place, sha256=digest), others, [])


def _pack(manifest: dict, files: list, extra: list) -> bytes:
    """Pack an archive whose manifest lists the extra files too."""
    listed = [*manifest["files"]]
    for name, content, fields in extra:
        if not fields:
            listed.append({"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        text = json.dumps({**manifest, "files": listed}).encode()
        _add(archive, "manifest.json", text, {})
        for member, content in files[1:]:
            _add(archive, member.name, content, {})
        for name, content, fields in extra:
            _add(archive, name, content, fields)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, fields: dict) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(content))


def _bad_exports(target: Target) -> Iterator[tuple[str, str]]:
    head = {"type": "everthread-export", "version": 1, "exported_at": 1.0, "program": "0.1.0"}
    session = {
        "type": "session",
        "id": "a",
        "owner": "me",
        "key": "agent:main:cli:dm:1",
        "opened_at": 1.0,
        "active_at": 1.0,
    }
    end = {"type": "end"}
    bad: dict[str, object] = {
        "id": "../../planted", "owner": "telegram:7", "key": "agent:main:telegram:dm:1", "title": "\x1b[2J",
        "parent": "a", "kind": "cron", "cause": "x" * 1000, "generation": -1, "floor": 10**18,
        "summary": "x" * 1_000_000, "opened_at": 1e308,
    }  # fmt: skip
    for field, value in bad.items():
        lines = [head, {**session, field: value}, end]
        yield f"{field} = {str(value)[:30]!r}", "\n".join(map(json.dumps, lines)) + "\n"
    yield "no end", json.dumps(head) + "\n"
    yield "a later version", json.dumps({**head, "version": 2}) + "\n"
    yield "not JSON", "{" * 100_000
    yield "a line of 50 MB", json.dumps(head) + "\n" + '{"type": "session", "id": "' + "x" * 50_000_000 + '"}\n'
