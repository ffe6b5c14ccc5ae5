"""Erase forgotten words from the files of a home directory, as `FILES` of the text registry declares."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from everthread.domain.forgotten_words import bytes_contain_words, contains_words, erase_words
from everthread.log_erasure import LineFilter, is_line_of, list_forgotten, remove_lines
from everthread.store.scrubber import stored_forms
from everthread.store.text_registry import FILES, FileMethod, HomeFile

GATEWAY_OUTPUT = "gateway.out"
_START_MESSAGES = (b"Serving ", b'{"pid":')
_ROTATIONS_MAX = 10


class HomeFiles(Struct, frozen=True):
    """The files of one home directory. Its skills belong to `owner`."""

    home: Path
    owner: str

    def replace(self, owner: str, texts: Sequence[str]) -> list[str]:
        """Replace the owner's forgotten words in skills. Returns a message per file that can't be changed."""
        return self._run({FileMethod.REPLACE}, owner, texts)

    def erase(self, owner: str, texts: Sequence[str], lines: LineFilter) -> list[str]:
        """Erase the owner's forgotten words, and remove log lines.

        Removed are `lines`, or with words those of them that contain the words. Returns a message for each file that
        could not be changed, and for each user's file that contains the words.
        """
        return [*self._run({FileMethod.REPLACE, FileMethod.KEEP}, owner, texts), *self._erase_logs(owner, texts, lines)]

    def list_forgotten(self, lines: LineFilter) -> None:
        """Have every process that appends to the log drop these lines from now on."""
        if (self.home / "logs").is_dir():
            list_forgotten(self.home / "logs", lines)

    def attachments_with(self, texts: Sequence[str], paths: Iterable[str]) -> tuple[str, ...]:
        """Return those of the attachments at `paths` that contain the words."""
        forms = _forms(texts)
        return tuple(path for path in paths if contains(self.home / "media" / path, forms))

    def find(self, text: str) -> tuple[str, ...]:
        """Return the paths of all files that contain the text, or have it in their name."""
        forms = _forms((text,))
        return tuple(
            self._name(path)
            for path in sorted(self.home.rglob("*"))
            if contains_words(path.name, forms) or (path.is_file() and contains(path, forms))
        )

    def _run(self, methods: Collection[FileMethod], owner: str, texts: Sequence[str]) -> list[str]:
        problems: list[str] = []
        forms = _forms(texts)
        for entry in FILES:
            if entry.method not in methods:
                continue
            try:
                with _locked(self.home / entry.lock if entry.lock else None):
                    for path in self._files(entry):
                        problems += self._erase_file(entry, path, owner, forms)
            except OSError as error:
                # Without the lock, no file is changed.
                kept = (path for path in self._files(entry) if owner == self.owner and contains(path, forms))
                problems += (self._problem(path, error) for path in kept)
        return problems

    def _erase_file(self, entry: HomeFile, path: Path, owner: str, forms: Sequence[str]) -> list[str]:
        try:
            return self._apply_method(entry, path, owner, forms)
        except FileNotFoundError:
            return []
        except OSError as error:
            return [self._problem(path, error)]

    def _apply_method(self, entry: HomeFile, path: Path, owner: str, forms: Sequence[str]) -> list[str]:
        match entry.method:
            case FileMethod.REPLACE if owner == self.owner:
                _replace(path, forms)
            case FileMethod.KEEP if contains(path, forms):
                return [f"{self._name(path)} is yours and still contains the forgotten words; edit or remove it"]
            case _:
                pass
        return []

    def _erase_logs(self, owner: str, texts: Sequence[str], lines: LineFilter) -> list[str]:
        """Remove lines of all log files. Other processes may append to them and rotate them meanwhile."""
        forms, names = _forms(texts), _forms(tuple(lines.names))

        def has_words(line: bytes) -> bool:
            return bytes_contain_words(line, forms)

        def may_quote(line: bytes) -> bool:
            # Others must not be able to remove what the user of this machine needs to find a fault.
            return owner == self.owner or bytes_contain_words(line, names)

        def is_removed(line: bytes) -> bool:
            # The user of this machine may have words removed wherever they are; others only from their own lines.
            if texts and owner == self.owner and has_words(line):
                return True
            return is_line_of(line, lines, has_words=has_words if texts else None, may_quote=may_quote)

        def is_removed_output(line: bytes) -> bool:
            return _is_foreign_output(line) and may_quote(line)

        problems: dict[Path, str] = {}
        seen: set[int] = set()
        for path in self._log_files(seen):
            try:
                with _opened(path) as file:
                    seen.add(os.fstat(file).st_ino)
                    is_output = path.name == GATEWAY_OUTPUT
                    remove_lines(path.parent, file, is_removed_output if is_output else is_removed)
            except FileNotFoundError:
                continue
            except OSError as error:
                problems[path] = self._problem(path, error)
        return list(problems.values())

    def _log_files(self, seen: set[int]) -> Iterator[Path]:
        """Yield the log files, and again those that a rotation has moved meanwhile."""
        entries = [entry for entry in FILES if entry.method is FileMethod.REMOVE_LINES]
        for _ in range(_ROTATIONS_MAX):
            paths = [path for entry in entries for path in self._files(entry)]
            new = [path for path in paths if _inode(path) not in seen]
            yield from new
            if not new:
                return

    def _problem(self, path: Path, error: OSError) -> str:
        return f"{self._name(path)} may still contain forgotten words ({error.strerror}); remove it"

    def _files(self, entry: HomeFile) -> Iterator[Path]:
        for path in sorted(self.home.glob(entry.pattern)):
            if path.is_file() and not path.is_symlink() and entry_for(self._name(path)) is entry:
                yield path

    def _name(self, path: Path) -> str:
        return path.relative_to(self.home).as_posix()


def _is_foreign_output(line: bytes) -> bool:
    """Return whether the gateway itself did not write a line of its output: it may quote anybody."""
    return not line.startswith(_START_MESSAGES)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


@contextmanager
def _opened(path: Path) -> Generator[int]:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield file
    finally:
        os.close(file)


def entry_for(path: str) -> HomeFile | None:
    """Return the first entry of the registry for a path within a home."""
    return next((entry for entry in FILES if _pattern(entry.pattern).fullmatch(path)), None)


def contains(path: Path, forms: Sequence[str]) -> bool:
    """Return whether the file contains one of the forms. False if it can't be read."""
    if not forms:
        return False
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return bytes_contain_words(content, forms)
    except OSError:
        return False


def _forms(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the forms in which the texts may be written to a file, which can't hold lone surrogates."""
    return tuple(form.encode(errors="replace").decode() for text in texts for form in stored_forms(text))


@lru_cache
def _pattern(text: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*)", text)
    return re.compile("".join({"**/": "(?:.*/)?", "*": "[^/]*"}.get(part, re.escape(part)) for part in parts))


def _replace(path: Path, forms: Sequence[str]) -> None:
    """Replace the words atomically, and keep the mode of the file."""
    content = path.read_bytes()
    text = content.decode(errors="surrogateescape")
    erased = erase_words(text, forms).encode(errors="surrogateescape")
    if erased == content:
        return
    draft = path.with_name(f"{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, path.stat().st_mode & 0o777)
    with os.fdopen(descriptor, "wb") as file:
        file.write(erased)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


@contextmanager
def _locked(path: Path | None) -> Generator[None]:
    """Hold the lock of the writers of these files, if their folder exists."""
    if path is None or not path.parent.is_dir():
        yield
        return
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
