"""The change log of the user's skills: a JSON Lines file beside the earlier versions.

It is a file, so that a copy of the skill folder includes it. An invalid line is skipped.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
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


class SkillRepair(msgspec.Struct, frozen=True):
    """The change that forgetting some sessions makes to a skill that one of them wrote."""

    skill: str
    restore: int | None
    """The kept version from before their first change; `None` removes the skill."""
    kept_max: int
    """Earlier versions with a higher number may contain their text."""


def plan_repairs(changes: Sequence[SkillChange], sessions: Collection[str]) -> tuple[SkillRepair, ...]:
    """Return what removes the text of these sessions from the skills. `changes` are the oldest first.

    Every later change of the same skill may build on their text, so it is taken back too.
    """
    repairs: dict[str, SkillRepair] = {}
    kept_max: dict[str, int] = {}
    for change in changes:
        name = change.skill
        if change.kept is not None and name not in repairs:
            # Its content was written by the change before.
            kept_max[name] = max(kept_max.get(name, 0), change.kept)
        if change.origin is not None and change.origin.session_id in sessions and name not in repairs:
            repairs[name] = SkillRepair(name, change.kept, kept_max.get(name, 0))
    return tuple(repairs[name] for name in sorted(repairs))


def without_repaired(
    changes: Sequence[SkillChange], repairs: Sequence[SkillRepair], sessions: Collection[str]
) -> list[SkillChange]:
    """Return the changes without those of the repaired skills since the first of these sessions."""
    left: list[SkillChange] = []
    gone: set[str] = set()
    names = {repair.skill for repair in repairs}
    for change in changes:
        if change.skill in names and change.origin is not None and change.origin.session_id in sessions:
            gone.add(change.skill)
        if change.skill not in gone:
            left.append(change)
    return left


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


def write_or_remove(file: Path, text: str | None) -> None:
    """Write the file of a skill or, if the text is `None`, remove it. Other files in the folder are kept."""
    if text is not None:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(file, text.encode(errors="surrogateescape"))
        return
    file.unlink(missing_ok=True)
    if file.parent.exists() and not any(file.parent.iterdir()):
        file.parent.rmdir()


def carry_out(repair: SkillRepair, file: Path, versions: Path) -> None:
    """Restore or remove the file of a skill, and delete the versions that may contain the text."""
    text: bytes | None = None
    if repair.restore is not None:
        with suppress(FileNotFoundError):
            text = (versions / f"{repair.restore}.md").read_bytes()
    if file.parent.is_symlink() or file.is_symlink():
        raise OSError(errno.ELOOP, "is a link; edit its target by hand", str(file))
    write_or_remove(file, text.decode(errors="surrogateescape") if text is not None else None)
    for version in list(versions.glob("*.md")):
        if not version.stem.isdecimal() or int(version.stem) > repair.kept_max:
            version.unlink()
    if versions.exists() and not any(versions.iterdir()):
        versions.rmdir()
