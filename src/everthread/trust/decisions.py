"""Decisions of the user about plugins and projects' skills: `trust.json` in the home.

A decision holds for exact content, by its digest. It is made again when the content changes. A file that cannot be
read, or that others can write to, approves nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct

from everthread.domain.errors import StoreUnwritable

if TYPE_CHECKING:
    from everthread.config.schema import Settings

FILE = "trust.json"
BYTES_MAX = 20_000_000
COUNT_MAX = 500
"""Limit for the remembered plugins, and for the remembered folders. The oldest decisions are dropped."""

T = TypeVar("T")


class Trust(Enum):
    """The state of a plugin, or of a project's skills."""

    APPROVED = "approved"
    REFUSED = "refused"
    NEW = "not approved yet"
    CHANGED = "changed since it was approved or refused"


class PluginDecision(Struct, frozen=True):
    approved: bool
    digest: str


class FolderDecision(Struct, frozen=True):
    approved: bool
    files: dict[str, str]
    """SHA-256 of each file, by its path in the folder."""


class Decisions(Struct, frozen=True):
    plugins: dict[str, PluginDecision] = {}
    skills: dict[str, FolderDecision] = {}
    """By the path of the project."""


class TrustFile(Struct, frozen=True):
    """The decisions of one home."""

    path: Path

    def read(self) -> Decisions:
        """Read the decisions; none if there are no valid ones. `problem` says why."""
        return self._read()[0]

    def problem(self) -> str:
        """Describe in one line why the file is not used; empty if it is used, or does not exist."""
        return self._read()[1]

    def decide_plugin(self, name: str, decision: PluginDecision | None) -> None:
        """Store a decision; None forgets it."""
        with self._changing() as decisions:
            _put(decisions.plugins, name, decision)

    def decide_skills(self, project: str, decision: FolderDecision | None) -> None:
        """Store a decision; None forgets it."""
        with self._changing() as decisions:
            _put(decisions.skills, project, decision)

    def _read(self) -> tuple[Decisions, str]:
        try:
            with open(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read(BYTES_MAX + 1)
        except (FileNotFoundError, NotADirectoryError):
            return Decisions(), ""
        except OSError as error:
            return Decisions(), f"{self.path}: {error.strerror}; nothing is approved. Fix or remove the file"
        if mode & 0o022:
            return Decisions(), f"{self.path}: others can write to it; nothing is approved. Run: chmod 600 {self.path}"
        if len(content) > BYTES_MAX:
            return Decisions(), f"{self.path}: is too large; nothing is approved. Remove the file"
        try:
            return msgspec.json.decode(content, type=Decisions), ""
        except msgspec.DecodeError as error:
            return Decisions(), f"{self.path}: Invalid JSON ({error}); nothing is approved. Fix or remove the file"

    @contextmanager
    def _changing(self) -> Generator[Decisions]:
        """Yield the decisions to change, and write them. Processes take turns by a lock on the home."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                decisions = self.read()
                yield decisions
                self._write(msgspec.json.format(msgspec.json.encode(decisions)))
            finally:
                os.close(lock)
        except OSError as error:
            raise StoreUnwritable(
                f"{self.path}: {error.strerror}; the decision was not stored. Make the folder writable"
            ) from error

    def _write(self, content: bytes) -> None:
        new = self.path.with_name(f"{FILE}.new")
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)


def trust_file(settings: Settings) -> TrustFile:
    return TrustFile(settings.home / FILE)


def state_of(approved: bool | None, is_same: Callable[[], bool]) -> Trust:
    """Return the state for a decision, None if there is none, about content that `is_same` compares."""
    if approved is None:
        return Trust.NEW
    if not is_same():
        return Trust.CHANGED
    return Trust.APPROVED if approved else Trust.REFUSED


def _put(table: dict[str, T], name: str, decision: T | None) -> None:
    table.pop(name, None)
    if decision is not None:
        table[name] = decision
    for oldest in list(table)[:-COUNT_MAX]:
        del table[oldest]
