"""The format of a backup file: a compressed tar archive whose first member is a manifest.

manifest.json     format, version, time, program, counts of the store; name, size and SHA-256 of each file
everthread.db     a consistent copy of the store
config.toml       the settings, if any
AGENTS.md ...     the standing rules, if any (also GUESTS.md and SOUL.md)
memory/...        the note files
skills/...        the skills of the user, with their old versions
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, cast

import msgspec

from everthread.domain.errors import BadInput, DiskFull, StoreCorrupt, StoreTooNew, StoreUnwritable

FORMAT = "everthread-backup"
VERSION = 1
STORE = "everthread.db"
CONFIG = "config.toml"
_BESIDE_STORE = (f"{STORE}-wal", f"{STORE}-shm", f"{STORE}.sentinel")
"""Files of the store that a backup does not have, and that must not stay when it is replaced."""
NOTES = "memory"
SKILLS = "skills"
RULES = ("AGENTS.md", "GUESTS.md", "SOUL.md")
MANIFEST = "manifest.json"
_MANIFEST_BYTES_MAX = 10_000_000
_SMALL_BYTES_MAX = 10_000_000
"""Maximum size of a file other than the store."""
_HEAD_BYTES_MAX = 1_000_000
"""Maximum size of the tar headers of a file."""
_DEPTH_MAX = 4
_SKILL_DEPTH_MAX = 8
_NO_CONTENT = f"{SKILLS}/.old/lock"
_CHUNK_BYTES = 1 << 20

Advance = Callable[[int], None]


class BackupEntry(msgspec.Struct, frozen=True):
    """One file of a backup."""

    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    format: str
    version: int
    created_at: float
    program: str
    schema: int
    counts: dict[str, int]
    files: tuple[BackupEntry, ...]


class Source(NamedTuple):
    """A file to pack, and its name in the archive."""

    name: str
    path: Path


class Sources(NamedTuple):
    files: tuple[Source, ...]
    skipped: tuple[str, ...]
    """Names of notes and skill files that do not fit into a backup."""


def list_sources(store: Path, config: Path, home: Path) -> Sources:
    """List the files of a backup. Symbolic links are skipped: their targets are not part of the home."""
    files = [Source(STORE, store)]
    if config.is_file():
        files.append(Source(CONFIG, config))
    rules = (home / name for name in RULES)
    skipped: list[str] = []
    for path in (*rules, *sorted((home / NOTES).rglob("*.md")), *sorted((home / SKILLS).rglob("*"))):
        source = Source(path.relative_to(home).as_posix(), path)
        if path.is_symlink() or not path.is_file() or source.name == _NO_CONTENT:
            continue
        if _is_allowed(source.name, path.stat().st_size):
            files.append(source)
        else:
            skipped.append(source.name)
    return Sources(tuple(files), tuple(skipped))


def make_entry(source: Source) -> BackupEntry:
    with source.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return BackupEntry(source.name, file.tell(), digest.hexdigest())


def pack(file: BinaryIO, manifest: Manifest, files: Sequence[Source], advance: Advance) -> None:
    """Write the archive. Raises `BadInput` if a file has changed since the manifest was made."""
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6, format=tarfile.PAX_FORMAT) as archive:
        text = msgspec.json.format(msgspec.json.encode(manifest))
        archive.addfile(_info(MANIFEST, len(text), manifest.created_at), io.BytesIO(text))
        for source, entry in zip(files, manifest.files, strict=True):
            info = _info(source.name, entry.size, manifest.created_at)
            with source.path.open("rb") as content:
                reading = _HashingReader(content, entry, advance)
                archive.addfile(info, reading)  # pyright: ignore[reportArgumentType] - only `read` is used
                reading.check()


def _info(name: str, size: int, at: float) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, int(at)
    return info


class _HashingReader:
    """Read a file and compute its digest, to detect a change since the manifest was made."""

    def __init__(self, file: BinaryIO, entry: BackupEntry, advance: Advance) -> None:
        self._file = file
        self._entry = entry
        self._advance = advance
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self._digest.update(content)
        self._advance(len(content))
        return content

    def check(self) -> None:
        if self._digest.hexdigest() != self._entry.sha256:
            raise BadInput(f"{self._entry.name} changed during the backup; back up again")


class _LimitedReader:
    """Read a compressed file up to an allowed size, as protection against decompression bombs."""

    def __init__(self, file: gzip.GzipFile, path: Path) -> None:
        self._file = file
        self._path = path
        self._left = 0

    def allow(self, size: int) -> None:
        self._left = size

    def read(self, size: int) -> bytes:
        if size < 0 or size > self._left:
            raise StoreCorrupt(f"{self._path}: larger than its manifest allows; use another backup")
        content = self._file.read(size)
        self._left -= len(content)
        return content

    def seek(self, position: int) -> int:
        return self._file.seek(position)

    def tell(self) -> int:
        return self._file.tell()


def unpack(path: Path, folder: Path, advance: Advance) -> Manifest:
    """Unpack a backup into an empty folder. Raises `StoreCorrupt` unless every file matches the manifest."""
    try:
        with gzip.open(path) as compressed:
            return _unpack(_LimitedReader(compressed, path), path, folder, advance)
    except (tarfile.TarError, zlib.error, EOFError, ValueError, RecursionError) as error:
        raise StoreCorrupt(f"{path}: not a backup, or damaged ({error}); use another one") from error
    except OSError as error:
        # gzip reports damage as an OSError without errno.
        if error.errno is None:
            raise StoreCorrupt(f"{path}: not a backup, or damaged ({error}); use another one") from error
        raise


def _unpack(source: _LimitedReader, path: Path, folder: Path, advance: Advance) -> Manifest:
    source.allow(_HEAD_BYTES_MAX)
    with tarfile.open(fileobj=cast(BinaryIO, source), mode="r:") as archive:
        manifest = _manifest(archive, source, path)
        _check_space(path, folder.parent, sum(entry.size for entry in manifest.files))
        wanted = {entry.name: entry for entry in manifest.files}
        while (info := _next(archive, source)) is not None:
            entry = wanted.pop(info.name, None)
            content = archive.extractfile(info) if entry is not None and info.isreg() and not info.issparse() else None
            if entry is None or content is None or info.size != entry.size:
                raise StoreCorrupt(f"{path}: {info.name[:100]!r} is not in its manifest; use another backup")
            source.allow(entry.size)
            _unpack_one(path, folder, entry, content, advance)
        if wanted:
            raise StoreCorrupt(f"{path}: {next(iter(wanted))[:100]!r} is missing; use another backup")
        return manifest


def _next(archive: tarfile.TarFile, source: _LimitedReader) -> tarfile.TarInfo | None:
    source.allow(_HEAD_BYTES_MAX)
    return archive.next()


def _check_space(archive: Path, folder: Path, wanted: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise DiskFull(
            f"{folder}: {archive.name} needs {wanted / 1e6:,.0f} MB, but {free / 1e6:,.0f} MB are free; "
            "free some space, or choose another home with --home"
        )


def _manifest(archive: tarfile.TarFile, source: _LimitedReader, path: Path) -> Manifest:
    first = _next(archive, source)
    content = archive.extractfile(first) if first is not None and first.isreg() else None
    if first is None or content is None or first.name != MANIFEST or first.size > _MANIFEST_BYTES_MAX:
        raise StoreCorrupt(f"{path}: not a backup of Everthread; choose another file")
    source.allow(first.size)
    try:
        manifest = msgspec.json.decode(content.read(), type=Manifest)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"{path}: its manifest can't be read ({error}); use another backup") from error
    if manifest.format != FORMAT:
        raise StoreCorrupt(f"{path}: not a backup of Everthread; choose another file")
    if manifest.version > VERSION:
        raise StoreTooNew(f"{path}: written by a newer Everthread ({manifest.program[:40]}); upgrade this one")
    names = [entry.name for entry in manifest.files]
    if (
        len(set(names)) != len(names)
        or STORE not in names
        or not all(_is_allowed(entry.name, entry.size) for entry in manifest.files)
    ):
        raise StoreCorrupt(f"{path}: its manifest lists files that a backup can't have; use another backup")
    return manifest


def _is_allowed(name: str, size: int) -> bool:
    """Allow only files of a backup, below its folder."""
    if name == STORE:
        return size >= 0
    parts = PurePosixPath(name).parts
    is_note = bool(parts) and parts[0] == NOTES and 2 <= len(parts) <= _DEPTH_MAX and name.endswith(".md")
    is_skill = bool(parts) and parts[0] == SKILLS and 2 <= len(parts) <= _SKILL_DEPTH_MAX
    plain = "/".join(parts) == name and not {"..", "."} & set(parts) and name.isprintable()
    return plain and (is_note or is_skill or name in (CONFIG, *RULES)) and 0 <= size <= _SMALL_BYTES_MAX


def _unpack_one(path: Path, folder: Path, entry: BackupEntry, content: object, advance: Advance) -> None:
    target = folder / entry.name
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.sha256()
    read = getattr(content, "read")  # noqa: B009 - untyped in tarfile
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        while chunk := read(_CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
            advance(len(chunk))
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != entry.sha256:
        raise StoreCorrupt(f"{path}: {entry.name!r} is damaged; use another backup")


def install(folder: Path, home: Path, config: Path, aside: Path) -> list[str]:
    """Move unpacked files to the home and existing ones to `aside`; return the names moved aside.

    On failure, everything is moved back. Raises `StoreUnwritable` if even that fails; the message names `aside`.
    """
    moved: list[str] = []
    moves: list[tuple[Path, Path]] = []
    paths = {name: home / name for name in (STORE, *_BESIDE_STORE, NOTES)} | {CONFIG: config}
    # Files written by hand are replaced only if the backup has them.
    paths |= {name: home / name for name in (SKILLS, *RULES) if (folder / name).exists()}
    try:
        for name, path in paths.items():
            if path.exists() or path.is_symlink():
                aside.mkdir(parents=True, exist_ok=True, mode=0o700)
                _move(path, aside / name, moves)
                moved.append(name)
        for name, path in paths.items():
            if (folder / name).exists():
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                _move(folder / name, path, moves)
    except BaseException as error:
        try:
            for old, new in reversed(moves):
                shutil.move(new, old)
            if aside.exists():
                aside.rmdir()
        except OSError as worse:
            raise StoreUnwritable(
                f"{home}: the restore failed ({error}) and could not be rolled back ({worse}); the previous files are "
                f"in {aside}, move them back by hand"
            ) from error
        raise
    return moved


def _move(old: Path, new: Path, moves: list[tuple[Path, Path]]) -> None:
    shutil.move(old, new)
    moves.append((old, new))
