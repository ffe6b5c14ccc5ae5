"""The skill files of a project, and their approval.

A project comes from somebody else, and its skills are instructions that the agent follows. So they are used only after
the user has approved exactly these files. Each file is compared again when it is read.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from everthread.domain.errors import BadSkill
from everthread.trust.decisions import FolderDecision, Trust, TrustFile, state_of

FOLDER = Path(".everthread") / "skills"
FILES_MAX = 2_000
BYTES_MAX = 20_000_000
SEEN_MAX = 10_000
"""Limit for the entries of all folders."""


class ProjectSkills(Struct, frozen=True):
    """The skills in a project. `key` names it in the decisions."""

    project: Path
    trust: TrustFile

    @property
    def folder(self) -> Path:
        return self.project / FOLDER

    @property
    def key(self) -> str:
        return text_of(self.project.resolve())

    def exist(self) -> bool:
        """Tell if there is at least one folder that may be a skill."""
        try:
            with os.scandir(self.folder) as entries:
                return any(not entry.name.startswith(".") and entry.is_dir() for entry in entries)
        except OSError:
            return False

    def approved_files(self) -> Mapping[str, str] | None:
        """Return the digests of the approved files; None if the skills are not approved."""
        decision = self.trust.read().skills.get(self.key)
        return decision.files if decision is not None and decision.approved else None

    def is_refused(self) -> bool:
        decision = self.trust.read().skills.get(self.key)
        return decision is not None and not decision.approved

    def state(self) -> Trust:
        """Compare all files with the decision. Raises `BadSkill` if there are too many to compare."""
        decision = self.trust.read().skills.get(self.key)
        return state_of(decision.approved if decision else None, lambda: bool(decision) and self._same(decision))

    def _same(self, decision: FolderDecision) -> bool:
        return digests(self.folder) == decision.files

    def decide(self, approved: bool | None, files: Mapping[str, str] | None = None) -> None:
        """Approve or refuse the files with these digests; None forgets the decision.

        Without digests, the present files are meant: not for a question, as they may change until it is answered.
        Raises `BadSkill` as `state` does.
        """
        if approved is None:
            self.trust.decide_skills(self.key, None)
            return
        decided = dict(files) if files is not None else digests(self.folder)
        self.trust.decide_skills(self.key, FolderDecision(approved, decided))


def digests(root: Path) -> dict[str, str]:
    """Return the SHA-256 of each regular file, by its path. Raises `BadSkill` if they exceed the limits."""
    found: dict[str, str] = {}
    left = BYTES_MAX
    try:
        for path in _files(root):
            content = _content(path, left)
            if content is None:
                continue
            left -= len(content)
            if left < 0 or len(found) >= FILES_MAX:
                limit = f"{FILES_MAX:,} files or {BYTES_MAX // 1_000_000} MB"
                raise BadSkill(
                    f"{root}: has more than {limit}, too much to check; the skills are not used. Remove other files"
                )
            found[text_of(path.relative_to(root))] = hashlib.sha256(content).hexdigest()
    except OSError as error:
        raise BadSkill(f"{error.filename or root}: {error.strerror}; the skills are not used") from error
    return found


def _files(root: Path) -> Iterator[Path]:
    seen = 0
    for folder, folders, names in os.walk(root):
        seen += len(folders) + len(names)
        if seen > SEEN_MAX:
            raise BadSkill(f"{root}: has more than {SEEN_MAX:,} entries, too many to check; the skills are not used")
        for name in names:
            yield Path(folder) / name


def _content(path: Path, left: int) -> bytes | None:
    """Return the content, cut after one byte more than is allowed; None if it is no regular file of its own."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        # A link, a socket or an unreadable file: it has no digest, so it is never read.
        return None
    with open(descriptor, "rb") as file:
        return file.read(left + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def text_of(path: Path) -> str:
    """Return a path as text that JSON can hold."""
    return os.fsencode(path).decode(errors="backslashreplace")
