"""The backup file format: invalid, hostile and oversized archives, and installation."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cli.commands.backup.backup_home import files, rewritten
from tests.e2e.commands import everthread, printed, refused

from everthread.adapters.sqlite.connection import connect
from everthread.adapters.sqlite.maintenance import exclusive_access
from everthread.cli.commands.backup.archive import install, unpack
from everthread.domain.errors import StoreCorrupt, StoreUnwritable


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


def _reordered_name(name: str, data: bytes) -> list[tuple[str, bytes]]:
    """Name a note with an invisible character that reorders the name."""
    bad = "memory/\u202edm.RESU.md"
    if name == "manifest.json":
        manifest = json.loads(data)
        for entry in manifest["files"]:
            entry["name"] = entry["name"].replace("memory/USER.md", bad)
        data = json.dumps(manifest).encode()
    return [(name.replace("memory/USER.md", bad), data)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_flip, 78),
        (_outside, 78),
        (_reordered_name, 78),
        (_manifest(version=2), 78),
        (_manifest(format="something"), 78),
        (_manifest(files=[]), 78),
        (lambda name, data: [(name, data)] if name != "config.toml" else [], 78),
        (lambda name, data: [(name, data), ("evil.md", b"x")] if name == "config.toml" else [(name, data)], 78),
        (lambda name, data: [(name, data)] if name != "manifest.json" else [], 78),
    ],
)
def test_an_archive_that_differs_from_its_manifest_is_refused_before_any_change(
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


def test_a_file_that_is_not_a_backup_is_refused(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.tar.gz"
    printed(home, "backup", str(file))
    whole = file.read_bytes()
    for name, content in {"cut": whole[: len(whole) // 2], "text": b"hello", "empty": b""}.items():
        (tmp_path / name).write_bytes(content)
        refused(everthread(tmp_path / "new", "restore", str(tmp_path / name)), 78, name)
    refused(everthread(tmp_path / "new", "restore", str(tmp_path / "none")), 1, "no such file")
    assert not (tmp_path / "new").exists()


def _archive(file: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(file, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file


@pytest.mark.parametrize("first", [True, False])
def test_huge_headers_are_not_read_into_memory(home: Path, tmp_path: Path, first: bool) -> None:
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


def test_a_backup_larger_than_the_disk_is_refused_before_unpacking(home: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("store", ["intact", "overwritten", "removed"])
def test_files_beside_the_old_store_do_not_stay_with_the_new_one(home: Path, tmp_path: Path, store: str) -> None:
    folder, new, aside = tmp_path / "folder", tmp_path / "new", tmp_path / "aside"
    folder.mkdir()
    shutil.copy(home / "everthread.db", folder)
    path = home / "everthread.db"
    writer = connect(str(path))
    writer.execute("UPDATE sessions SET title = 'after the backup'")
    # As a killed process leaves them.
    shutil.copytree(home, new)
    writer.close()
    if store == "overwritten":
        (new / "everthread.db").write_bytes(b"x" * 4096)
    elif store == "removed":
        (new / "everthread.db").unlink()
    with exclusive_access(new / "everthread.db"):
        moved = install(folder, new, new / "config.toml", aside)
    beside = {"everthread.db-wal", "everthread.db-shm", "everthread.db.sentinel"}
    assert beside <= set(moved)
    assert beside <= {path.name for path in aside.iterdir()}
    assert not beside & {path.name for path in new.iterdir()}
    with closing(connect(str(new / "everthread.db"))) as restored:
        assert [title for (title,) in restored.execute("SELECT title FROM sessions WHERE kind = 'chat'")] == ["Bees"]


def test_a_failed_installation_is_rolled_back(home: Path, tmp_path: Path) -> None:
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


def test_a_failed_rollback_names_the_folder_of_the_old_store(
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
