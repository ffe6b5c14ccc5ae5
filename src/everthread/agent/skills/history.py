"""What was written of the user's skills, when, and in which turns: a file of lines beside the versions that are kept.

It is a file because skills are: whoever copies the folder has it with them. A line that can't be read is passed over.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from everthread.domain.model import NoteAction

LOG = "log"
LINES_MAX = 1_000
"""The oldest go first; versions of those were let go of long before."""
PREFIX = "skill/"


class Origin(msgspec.Struct, frozen=True):
    """The turn, or the review, that a skill is written in."""

    session_id: str
    turn_id: str


class SkillChange(msgspec.Struct, frozen=True):
    """One change of a skill, by whomever it was made through this program."""

    skill: str
    number: int
    """Of the changes of that skill."""
    action: NoteAction
    at: float
    description: str
    """What the skill is for since then or, of a removal, was for."""
    before: str = ""
    """What it was for until then; empty if it was new."""
    kept: int | None = None
    """The version before; none if there was none."""
    origin: Origin | None = None
    """None if a person wrote it."""

    @property
    def name(self) -> str:
        """What to call it by: `undo` takes it. No note's id is written so."""
        return f"{PREFIX}{self.skill}:{self.number}"


def read(folder: Path) -> list[SkillChange]:
    """All that is known, the oldest first."""
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


def written(changes: Sequence[SkillChange]) -> bytes:
    return b"".join(msgspec.json.encode(change) + b"\n" for change in changes[-LINES_MAX:])


def write_whole(file: Path, content: bytes) -> None:
    """The whole file or none of it, also after a crash."""
    passing = file.with_name(f".{file.name}.{os.getpid()}")
    with open(os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(passing, file)
