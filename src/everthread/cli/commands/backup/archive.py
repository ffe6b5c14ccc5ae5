"""The file that a backup is: a compressed tar archive whose first member says what is in it.

manifest.json     format, version, when, by which program, what the store holds; name, size and SHA-256 of each file
everthread.db     the store, as of one moment
config.toml       the settings, if there are any
AGENTS.md ...     the standing rules, if there are any
memory/...        the files of notes
skills/...        the skills of the user's own, with the versions that are kept of them
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
from everthread.domain.model import whole

FORMAT = "everthread-backup"
VERSION = 1
STORE = "everthread.db"
CONFIG = "config.toml"
NOTES = "memory"
SKILLS = "skills"
RULES = ("AGENTS.md", "SOUL.md")
MANIFEST = "manifest.json"
_MANIFEST_BYTES_MAX = 10_000_000
_SMALL_BYTES_MAX = 10_000_000
"""No file but the store is larger."""
_HEAD_BYTES_MAX = 1_000_000
"""What may stand before a file to describe it."""
_FILES_MAX = 100_000
_DEPTH_MAX = 4
_SKILL_DEPTH_MAX = 8
_NO_CONTENT = f"{SKILLS}/.old/lock"
_AT_ONCE = 1 << 20

Advance = Callable[[int], None]


class Kept(msgspec.Struct, frozen=True):
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
    files: tuple[Kept, ...]


class Source(NamedTuple):
    """A file that goes in, and under which name."""

    name: str
    path: Path


class Sources(NamedTuple):
    files: tuple[Source, ...]
    passed_over: tuple[str, ...]
    """Notes and files of skills that no backup can hold, by their names."""


def sources(store: Path, config: Path, home: Path) -> Sources:
    """What a backup is made of. Links are passed over: what they lead to is not the home's."""
    files = [Source(STORE, store)]
    if config.is_file():
        files.append(Source(CONFIG, config))
    rules = (home / name for name in RULES)
    passed_over: list[str] = []
    for path in (*rules, *sorted((home / NOTES).rglob("*.md")), *sorted((home / SKILLS).rglob("*"))):
        source = Source(path.relative_to(home).as_posix(), path)
        if path.is_symlink() or not path.is_file() or source.name == _NO_CONTENT:
            continue
        if _is_allowed(source.name, path.stat().st_size):
            files.append(source)
        else:
            passed_over.append(source.name)
    return Sources(tuple(files), tuple(passed_over))


def kept(source: Source) -> Kept:
    with source.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return Kept(source.name, file.tell(), digest.hexdigest())


def pack(file: BinaryIO, manifest: Manifest, files: Sequence[Source], advance: Advance) -> None:
    """Write the archive. Raises `BadInput` if a file has changed since the manifest was made."""
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6, format=tarfile.PAX_FORMAT) as archive:
        _add(archive, MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)), manifest.created_at)
        for source, entry in zip(files, manifest.files, strict=True):
            info = _info(source.name, entry.size, manifest.created_at)
            with source.path.open("rb") as content:
                reading = _Measured(content, entry, advance)
                archive.addfile(info, reading)  # pyright: ignore[reportArgumentType] - all it asks for is `read`
                reading.check()


def _add(archive: tarfile.TarFile, name: str, content: bytes, at: float) -> None:
    archive.addfile(_info(name, len(content), at), io.BytesIO(content))


def _info(name: str, size: int, at: float) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, int(at)
    return info


class _Measured:
    """Reads a file, and knows in the end whether it was the one that was meant."""

    def __init__(self, file: BinaryIO, entry: Kept, advance: Advance) -> None:
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
            raise BadInput(f"{self._entry.name} was changed meanwhile; back up again")


class _Bounded:
    """What comes out of a compressed file, as far as it is wanted: a few bytes may stand for any number of them."""

    def __init__(self, file: gzip.GzipFile, path: Path) -> None:
        self._file = file
        self._path = path
        self._left = 0

    def allow(self, size: int) -> None:
        self._left = size

    def read(self, size: int) -> bytes:
        if size < 0 or size > self._left:
            raise StoreCorrupt(f"{self._path}: holds more than a backup does; take another one")
        content = self._file.read(size)
        self._left -= len(content)
        return content

    def seek(self, position: int) -> int:
        return self._file.seek(position)

    def tell(self) -> int:
        return self._file.tell()


def unpack(path: Path, folder: Path, advance: Advance) -> Manifest:
    """Take a backup apart into an empty folder. Raises `StoreCorrupt` unless every file in it is what it should be."""
    try:
        with gzip.open(path) as compressed:
            return _unpack(_Bounded(compressed, path), path, folder, advance)
    except (tarfile.TarError, zlib.error, EOFError, ValueError, RecursionError) as error:
        raise StoreCorrupt(f"{path}: is no backup, or a damaged one ({error}); take another one") from error
    except OSError as error:
        # What gzip says of damage is an OSError without a number.
        if error.errno is None:
            raise StoreCorrupt(f"{path}: is no backup, or a damaged one ({error}); take another one") from error
        raise


def _unpack(source: _Bounded, path: Path, folder: Path, advance: Advance) -> Manifest:
    source.allow(_HEAD_BYTES_MAX)
    with tarfile.open(fileobj=cast(BinaryIO, source), mode="r:") as archive:
        manifest = _manifest(archive, source, path)
        _see_to_room(path, folder.parent, sum(entry.size for entry in manifest.files))
        wanted = {entry.name: entry for entry in manifest.files}
        while (info := _next(archive, source)) is not None:
            entry = wanted.pop(info.name, None)
            content = archive.extractfile(info) if entry is not None and info.isreg() and not info.issparse() else None
            if entry is None or content is None or info.size != entry.size:
                raise StoreCorrupt(f"{path}: {info.name[:100]!r} should not be in it; take another backup")
            source.allow(entry.size)
            _unpack_one(path, folder, entry, content, advance)
        if wanted:
            raise StoreCorrupt(f"{path}: {next(iter(wanted))[:100]!r} is missing from it; take another backup")
        return manifest


def _next(archive: tarfile.TarFile, source: _Bounded) -> tarfile.TarInfo | None:
    source.allow(_HEAD_BYTES_MAX)
    return archive.next()


def _see_to_room(path: Path, place: Path, wanted: int) -> None:
    free = shutil.disk_usage(place).free
    if free < wanted:
        raise DiskFull(
            f"{place}: {wanted / 1e6:,.0f} MB are in {path.name}, and {free / 1e6:,.0f} MB are free; "
            "free some space, or choose another home with --home"
        )


def _manifest(archive: tarfile.TarFile, source: _Bounded, path: Path) -> Manifest:
    first = _next(archive, source)
    content = archive.extractfile(first) if first is not None and first.isreg() else None
    if first is None or content is None or first.name != MANIFEST or first.size > _MANIFEST_BYTES_MAX:
        raise StoreCorrupt(f"{path}: is no backup of Everthread's; choose another file")
    source.allow(first.size)
    try:
        manifest = msgspec.json.decode(content.read(), type=Manifest)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"{path}: its manifest can't be read ({error}); take another backup") from error
    if manifest.format != FORMAT:
        raise StoreCorrupt(f"{path}: is no backup of Everthread's; choose another file")
    if manifest.version > VERSION:
        raise StoreTooNew(f"{path}: written by a newer Everthread ({manifest.program[:40]}); upgrade this one")
    names = [entry.name for entry in manifest.files]
    if (
        len(set(names)) != len(names)
        or STORE not in names
        or not all(_is_allowed(entry.name, entry.size) for entry in manifest.files)
    ):
        raise StoreCorrupt(f"{path}: its manifest names files that no backup has; take another backup")
    return manifest


def _is_allowed(name: str, size: int) -> bool:
    """Only what a backup is made of is taken or written, and nowhere but below its folder."""
    if name == STORE:
        return size >= 0
    parts = PurePosixPath(name).parts
    is_note = bool(parts) and parts[0] == NOTES and 2 <= len(parts) <= _DEPTH_MAX and name.endswith(".md")
    is_skill = bool(parts) and parts[0] == SKILLS and 2 <= len(parts) <= _SKILL_DEPTH_MAX
    plain = "/".join(parts) == name and not {"..", "."} & set(parts) and "\0" not in name and whole(name) == name
    return plain and (is_note or is_skill or name in (CONFIG, *RULES)) and 0 <= size <= _SMALL_BYTES_MAX


def _unpack_one(path: Path, folder: Path, entry: Kept, content: object, advance: Advance) -> None:
    target = folder / entry.name
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.sha256()
    read = getattr(content, "read")  # noqa: B009 - what tarfile hands out has no type of its own
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        while some := read(_AT_ONCE):
            digest.update(some)
            file.write(some)
            advance(len(some))
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != entry.sha256:
        raise StoreCorrupt(f"{path}: {entry.name!r} is damaged; take another backup")


def put_in_place(folder: Path, home: Path, config: Path, aside: Path) -> list[str]:
    """Move what was unpacked to where it belongs, and what was there aside; the names of what was moved aside.

    If that fails, everything is where it was. Raises `StoreUnwritable`, with the place of what was there, if even that
    can't be done.
    """
    moved: list[str] = []
    moves: list[tuple[Path, Path]] = []
    places = {name: home / name for name in (STORE, f"{STORE}-wal", f"{STORE}-shm", NOTES)} | {CONFIG: config}
    # What people write by hand stays, unless there is another in its place.
    places |= {name: home / name for name in (SKILLS, *RULES) if (folder / name).exists()}
    try:
        for name, place in places.items():
            if place.exists() or place.is_symlink():
                aside.mkdir(parents=True, exist_ok=True, mode=0o700)
                _move(place, aside / name, moves)
                moved.append(name)
        for name, place in places.items():
            if (folder / name).exists():
                place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                _move(folder / name, place, moves)
    except BaseException as error:
        try:
            for old, new in reversed(moves):
                shutil.move(new, old)
            if aside.exists():
                aside.rmdir()
        except OSError as worse:
            raise StoreUnwritable(
                f"{home}: can't be restored ({error}), nor left as it was ({worse}); what was there is in {aside}, "
                "move it back by hand"
            ) from error
        raise
    return moved


def _move(old: Path, new: Path, moves: list[tuple[Path, Path]]) -> None:
    shutil.move(old, new)
    moves.append((old, new))
