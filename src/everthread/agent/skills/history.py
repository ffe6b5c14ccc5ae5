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
from msgspec.structs import replace

from everthread.domain.model import NoteAction

LOG = "log"
VERSIONS_MAX = 20
"""Earlier versions kept for each skill."""
LINES_MAX = 1_000
"""The oldest lines are dropped first; the versions they refer to were deleted long before."""
PREFIX = "skill/"
_UNNUMBERED = 2**62
"""The number of a version whose file has another name: after all others."""


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
    restores: bool
    """Their change is the newest: it is taken back. Otherwise the newest text is somebody else's and stays."""
    restore: int | None
    """The kept version from before their newest changes; with `restores`, `None` removes the skill."""
    is_built_on: bool
    """A change by somebody else came after one of theirs and stays. It may repeat their text."""
    versions: tuple[tuple[int, int | None], ...]
    """Numbers of earlier versions that may contain their text: above the first, up to the second or to the last."""

    def may_contain(self, version: int) -> bool:
        return any(above < version and (last is None or version <= last) for above, last in self.versions)


def plan_repairs(changes: Sequence[SkillChange], sessions: Collection[str]) -> tuple[SkillRepair, ...]:
    """Return what removes the text of these sessions from the skills. `changes` are the oldest first.

    The changes of others stay, and so does the text of the newest one: whoever writes a skill must not be able to
    destroy what somebody else writes into it later, by forgetting the session.
    """
    kept_max: dict[str, int] = {}
    runs: dict[str, tuple[SkillChange, int]] = {}
    """Their newest changes of a skill, without another one since: the first of them, and the last version before it."""
    ended: dict[str, list[tuple[int, int | None]]] = {}
    for change in changes:
        name = change.skill
        # A change keeps the text of the change before.
        kept_max[name] = max(kept_max.get(name, 0), change.kept or 0)
        if _is_by(change, sessions):
            runs.setdefault(name, (change, kept_max[name]))
        elif name in runs:
            _, above = runs.pop(name)
            ended.setdefault(name, []).append((above, change.kept or above))
    repairs: list[SkillRepair] = []
    for name in sorted({*runs, *ended}):
        versions, is_built_on = ended.get(name, []), name in ended
        restore = None
        if name in runs:
            first, above = runs[name]
            restore, versions = first.kept, [*versions, (above, None)]
        repairs.append(SkillRepair(name, name in runs, restore, is_built_on, tuple(versions)))
    return tuple(repairs)


def without_sessions(changes: Sequence[SkillChange], sessions: Collection[str]) -> list[SkillChange]:
    """Return the changes without those of the sessions. A change after theirs is joined to the one before."""
    left: list[SkillChange] = []
    runs: dict[str, SkillChange] = {}
    for change in changes:
        if _is_by(change, sessions):
            runs.setdefault(change.skill, change)
            continue
        first = runs.pop(change.skill, None)
        joined = change if first is None else _joined(first, change)
        if joined is not None:
            left.append(joined)
    return left


def _is_by(change: SkillChange, sessions: Collection[str]) -> bool:
    return change.origin is not None and change.origin.session_id in sessions


def _joined(first: SkillChange, change: SkillChange) -> SkillChange | None:
    """Return a change as it would be without those from `first` on; `None` if nothing would have changed."""
    change = replace(change, kept=first.kept, before=first.before)
    if change.action is NoteAction.REMOVE:
        return replace(change, description=first.before) if first.kept is not None else None
    return change if first.kept is not None else replace(change, action=NoteAction.ADD)


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
    """Restore, remove or leave the file of a skill, and delete the versions that may contain the text."""
    if repair.restores:
        text: bytes | None = None
        if repair.restore is not None:
            with suppress(FileNotFoundError):
                text = (versions / f"{repair.restore}.md").read_bytes()
        if file.parent.is_symlink() or file.is_symlink():
            raise OSError(errno.ELOOP, "is a link; edit its target by hand", str(file))
        write_or_remove(file, text.decode(errors="surrogateescape") if text is not None else None)
    for version in list(versions.glob("*.md")):
        if repair.may_contain(int(version.stem) if version.stem.isdecimal() else _UNNUMBERED):
            version.unlink()
    if versions.exists() and not any(versions.iterdir()):
        versions.rmdir()
