"""The change log of the user's skills: a JSON Lines file beside the earlier versions.

It is a file, so that a copy of the skill folder includes it. An invalid line is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from everthread.domain.model import NoteAction

LOG = "log"
VERSIONS_MAX = 20
"""Earlier versions kept for each skill."""
LINES_MAX = 1_000
"""The oldest lines are dropped first; the versions they refer to were deleted long before."""
PREFIX = "skill/"


class Origin(msgspec.Struct, frozen=True):
    """The turn or review that wrote a skill."""

    session_id: str
    turn_id: str


class SkillChange(msgspec.Struct, frozen=True):
    """One change of a skill made through this program."""

    skill: str
    number: int
    """Sequence number among the changes of the skill."""
    action: NoteAction
    at: float
    description: str
    """The description after the change; for a removal, the one before."""
    before: str = ""
    """The description before the change; empty for a new skill."""
    kept: int | None = None
    """Number of the kept previous version; `None` if there was none."""
    origin: Origin | None = None
    """`None` if the user wrote it."""

    @property
    def name(self) -> str:
        """Identifier for `undo`. The prefix distinguishes it from the ids of notes."""
        return f"{PREFIX}{self.skill}:{self.number}"


def read(folder: Path) -> list[SkillChange]:
    """Read the log, oldest change first."""
    try:
        content = (folder / LOG).read_bytes()
    except FileNotFoundError:
        return []
    changes: list[SkillChange] = []
    for line in content.splitlines()[-LINES_MAX:]:
        try:
            changes.append(msgspec.json.decode(line, type=SkillChange))
        except msgspec.DecodeError:
            continue
    return changes


def last(changes: Sequence[SkillChange], skill: str) -> SkillChange | None:
    return next((change for change in reversed(changes) if change.skill == skill), None)


def encode(changes: Sequence[SkillChange]) -> bytes:
    return b"".join(msgspec.json.encode(change) + b"\n" for change in changes[-LINES_MAX:])


def write_atomically(file: Path, content: bytes) -> None:
    """Write a file atomically: fsync a temporary file, then rename it."""
    passing = file.with_name(f".{file.name}.{os.getpid()}")
    with open(os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(passing, file)
