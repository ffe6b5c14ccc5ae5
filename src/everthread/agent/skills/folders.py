"""Skill folders: read with size limits, written with a history of versions.

A file is read only from inside its skill's folder, and a project's skill only from inside the project's skill folder:
symbolic links in third-party files must not lead elsewhere. A file of a project is used only as it was approved.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from msgspec import Struct

from everthread.agent.skills.format import (
    FILE,
    FILE_CHARS_MAX,
    Skill,
    SkillText,
    description_problem,
    index,
    name_problem,
    parse,
    render,
)
from everthread.agent.skills.history import (
    LOG,
    VERSIONS_MAX,
    Origin,
    SkillChange,
    carry_out,
    encode,
    last,
    plan_repairs,
    read,
    without_sessions,
    write_atomically,
    write_or_remove,
)
from everthread.domain.errors import AlreadyExists, BadInput, BadSkill, NotFound
from everthread.domain.model import NoteAction
from everthread.domain.rights import Rights
from everthread.trust.decisions import TrustFile
from everthread.trust.project_skills import ProjectSkills, text_of

COUNT_MAX = 200
"""Limit for one directory of skills."""
FILES_SHOWN_MAX = 50
FOLDERS_SEEN_MAX = 100
"""Limit for one skill."""
OLD = ".old"
"""Subfolder of the user's skills with earlier versions, the change log and the lock."""


class FoundSkill(Struct, frozen=True):
    skill: Skill
    folder: Path


class SkillSet(Struct, frozen=True):
    """The usable skills, and one line for each problem with the others."""

    found: tuple[FoundSkill, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def skills(self) -> tuple[Skill, ...]:
        return tuple(each.skill for each in self.found)


class SkillFolders(Struct, frozen=True):
    """The user's skills in `own`, and those of `project`, the working directory, if there is one.

    A project's skills are used if `trust` has an approval of them; without `trust`, they are not. With `inspects`, they
    are read to be shown to the user, approved or not.
    """

    own: Path
    project: Path | None = None
    trust: TrustFile | None = None
    inspects: bool = False
    now: Callable[[], float] = time.time  # noqa: TID251 - the machine's time, as of every file, where there is no clock

    def read_all(self) -> SkillSet:
        """Read all skills. The user's own come first, and a project's skill cannot override one of them."""
        found: dict[str, FoundSkill] = {}
        problems: list[str] = []
        for place, source in self._places():
            if source is not None and self._is_unused(source, problems):
                continue
            for folder in _folders(place, problems):
                try:
                    skill = _read(folder, source)
                except BadSkill as error:
                    problems.append(str(error))
                    continue
                if skill.name in found:
                    problems.append(
                        f"{folder / FILE}:1: {skill.name!r} is already one of your skills; this one is not used"
                    )
                else:
                    found[skill.name] = FoundSkill(skill, folder)
        ordered = sorted(found.values(), key=lambda each: (each.skill.project, each.skill.name))
        return SkillSet(tuple(ordered), tuple(problems))

    def index(self, rights: Rights) -> str:
        """Render the index of the granted skills for the prompt."""
        if not rights.is_owner and not rights.skills:
            return ""
        return index([skill for skill in self.read_all().skills if rights.may_use_skill(skill.name)])

    def get(self, name: str) -> FoundSkill:
        skill_set = self.read_all()
        for each in skill_set.found:
            if each.skill.name == name:
                return each
        problem = next((problem for problem in skill_set.problems if f"/{name}/{FILE}:" in problem), "")
        known = ", ".join(each.name for each in skill_set.skills) or "none yet"
        raise NotFound(problem or f"there is no skill {name[:80]!r}; available: {known}")

    def text(self, found: FoundSkill, path: str = FILE) -> str:
        """Read a file of a skill. Raises `BadSkill` if it is outside the skill's folder or unreadable."""
        file = found.folder / path
        if "\0" in path or not _is_inside(file, found.folder):
            raise BadSkill(f"{path[:80]!r} is not inside the skill {found.skill.name}; give one of its files")
        source = self._source() if found.skill.project else None
        return _text(file, shown=path, source=source)

    def files(self, found: FoundSkill) -> tuple[str, ...]:
        """List the files in a skill's folder besides its `SKILL.md`."""
        paths: list[str] = []
        for folder, folders, files in islice(os.walk(found.folder), FOLDERS_SEEN_MAX):
            folders[:] = sorted(each for each in folders if not each.startswith("."))
            here = Path(folder).relative_to(found.folder)
            paths += [str(here / file) for file in sorted(files) if not file.startswith(".")]
            if len(paths) > FILES_SHOWN_MAX:
                break
        return tuple([file for file in paths if file != FILE][:FILES_SHOWN_MAX])

    # --- Writing -----------------------------------------------------------------------------------------------------

    def write(
        self,
        skill: SkillText,
        *,
        new: bool = False,
        origin: Origin | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> SkillChange:
        """Write or replace a skill of the user. The previous version is kept, and the change is logged.

        With `new`, raise `AlreadyExists` if the skill exists. `check` is called under the lock and may raise: words
        that are forgotten are erased from the skills under the same lock.
        """
        text = render(skill)
        if problem := name_problem(skill.name) or description_problem(skill.description):
            raise BadSkill(problem)
        parse(text, str(self.own / skill.name / FILE))
        with self._locked(skill.name) as changes:
            check()
            folder = self.own / skill.name
            if new and os.path.lexists(folder):
                raise AlreadyExists(f"{folder} already exists; choose another name, or edit it")
            return self._change(skill.name, text, changes, origin)

    def changes(self) -> list[SkillChange]:
        """Return the logged changes, newest first. Manual edits are not logged."""
        try:
            return read(self.own / OLD)[::-1]
        except OSError as error:
            raise BadSkill(f"{error.filename}: {error.strerror}; fix its permissions") from error

    def undo(self, skill: str, number: int) -> tuple[SkillChange, SkillChange]:
        """Undo the last change of a skill by a new change that restores the previous version. Return both."""
        known = next((change for change in self.changes() if (change.skill, change.number) == (skill, number)), None)
        if known is None:
            raise NotFound(f"there is no skill change {skill}:{number}")
        with self._locked(skill) as changes:
            newest = last(changes, skill)
            if newest is not None and newest.number != number:
                raise BadInput(f"the skill was changed again since; undo {newest.name} first")
            kept = self._read_version(skill, known.kept) if known.kept is not None else None
            # The restored text is still that of whoever wrote it.
            earlier = last([change for change in changes if change.number < number], skill)
            origin = earlier.origin if earlier is not None and kept is not None else None
            return known, self._change(skill, kept, changes, origin)

    def forget(self, sessions: Collection[str]) -> list[str]:
        """Remove what these sessions wrote from the skills, their earlier versions and the change log.

        A skill that they changed last returns to its text from before that, or is removed. A text that somebody else
        wrote later is kept. Return one line for each skill that may still repeat their text, and for each problem.
        """
        if not plan_repairs(self.changes()[::-1], sessions):
            return []
        problems: list[str] = []
        kept: list[str] = []
        try:
            with self._locked("") as changes:
                repairs = plan_repairs(changes, sessions)
                for repair in repairs:
                    try:
                        carry_out(repair, self.own / repair.skill / FILE, self.own / OLD / repair.skill)
                    except OSError as error:
                        problems.append(f"{error.filename} may contain forgotten text ({error.strerror}); remove it")
                if not problems:
                    # Last: if this process dies before, the log still names the skills to another request.
                    write_atomically(self.own / OLD / LOG, encode(without_sessions(changes, sessions)))
                    kept = [_may_repeat(repair.skill) for repair in repairs if repair.is_built_on]
        except BadSkill as error:
            problems.append(f"skills may contain forgotten text: {error}")
        return [*problems, *kept]

    def _change(self, name: str, text: str | None, changes: list[SkillChange], origin: Origin | None) -> SkillChange:
        """Replace the skill's file by the text, or remove the skill if the text is `None`."""
        folder = self.own / name
        file = folder / FILE
        if folder.is_symlink() or file.is_symlink():
            raise BadSkill(f"{folder} is a link; edit its target by hand")
        content = file.read_bytes() if file.exists() else None
        kept = self._save_version(name, content) if content is not None else None
        before = _description(content)
        action = NoteAction.REMOVE if text is None else NoteAction.ADD if content is None else NoteAction.REPLACE
        description = before if text is None else _description(text.encode())
        newest = last(changes, name)
        number = newest.number + 1 if newest is not None else 1
        change = SkillChange(name, number, action, self.now(), description, before, kept, origin)
        # Log before the file: a crash in between may log a change that was not made, but never misses one.
        log = self.own / OLD / LOG
        write_atomically(log, encode([*changes, change]))
        try:
            write_or_remove(file, text)
        except OSError:
            write_atomically(log, encode(changes))
            raise
        return change

    def _save_version(self, name: str, content: bytes) -> int:
        folder = self.own / OLD / name
        folder.mkdir(mode=0o700, exist_ok=True)
        versions = sorted(int(file.stem) for file in folder.glob("*.md") if file.stem.isdecimal())
        for version in versions[: -(VERSIONS_MAX - 1)]:
            (folder / f"{version}.md").unlink()
        version = versions[-1] + 1 if versions else 1
        write_atomically(self.old(name, version), content)
        return version

    def _read_version(self, name: str, version: int) -> str:
        file = self.old(name, version)
        try:
            return _text(file, shown=str(file))
        except BadSkill:
            raise NotFound(f"the previous version of the skill {name} is missing: {file} does not exist") from None

    def old(self, name: str, version: int) -> Path:
        """Path of an earlier version."""
        return self.own / OLD / name / f"{version}.md"

    @contextmanager
    def _locked(self, name: str) -> Generator[list[SkillChange]]:
        """Lock the user's skills and yield the change log. A concurrent write could lose a version."""
        try:
            (self.own / OLD).mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(self.own / OLD / "lock", os.O_RDWR | os.O_CREAT, 0o600), "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield read(self.own / OLD)
        except OSError as error:
            file = error.filename or self.own / name / FILE
            raise BadSkill(f"{file}: {error.strerror}; the skill was not written") from error

    def _places(self) -> Iterator[tuple[Path, _Source | None]]:
        yield self.own, None
        source = self._source()
        if source is not None and not _same(source.skills.folder, self.own) and source.skills.exist():
            yield source.skills.folder, source

    def _source(self) -> _Source | None:
        """Return the project's skills with the digests of their approved files."""
        if self.project is None or self.trust is None:
            return None
        skills = ProjectSkills(self.project, self.trust)
        return _Source(skills, None if self.inspects else skills.approved_files(), self.inspects)

    def _is_unused(self, source: _Source, problems: list[str]) -> bool:
        """Tell if the project's skills are not approved. The user is told unless they refused them."""
        if source.inspects or source.approved is not None:
            return False
        if not source.skills.is_refused():
            problems.append(not_approved(source.skills.folder))
        return True


class _Source(Struct, frozen=True):
    """A project's skills, and the digests of its approved files; None if they are not approved."""

    skills: ProjectSkills
    approved: Mapping[str, str] | None
    inspects: bool

    def check(self, file: Path, content: bytes) -> None:
        """Raise `BadSkill` unless the file was approved with this content."""
        if self.inspects:
            return
        path = text_of(file.resolve().relative_to(self.skills.folder.resolve()))
        if (self.approved or {}).get(path) != hashlib.sha256(content).hexdigest():
            raise BadSkill(
                f"{file}:1: was added or changed since the project's skills were approved; it is not used. "
                "To approve it, run: everthread skills trust"
            )


def _may_repeat(skill: str) -> str:
    return (
        f"the skill {skill} was changed later by somebody else, so its text is kept and may repeat forgotten text; "
        f"read it with everthread skills show {skill}"
    )


def not_approved(place: Path) -> str:
    return (
        f"{place}: these skills are not approved, so they are not used. "
        "Read them with everthread skills list and show; to approve them, run: everthread skills trust"
    )


def check(folder: Path) -> str:
    """Describe the problem with a skill's folder in one line; empty if it is valid."""
    try:
        _read(folder, None)
    except BadSkill as error:
        return str(error)
    return ""


def _folders(place: Path, problems: list[str]) -> list[Path]:
    try:
        with os.scandir(place) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        problems.append(f"{place}: {error.strerror}; fix its permissions, or its skills can't be used")
        return []
    if len(names) > COUNT_MAX:
        problems.append(f"{place}: has {len(names)} folders; only the first {COUNT_MAX} are read")
    return [place / name for name in names[:COUNT_MAX]]


def _read(folder: Path, source: _Source | None) -> Skill:
    file = folder / FILE
    if source is not None and not _is_inside(file, source.skills.folder):
        raise BadSkill(f"{file}:1: is a link out of the project; it is not used")
    parsed = parse(_text(file, shown=str(file), source=source), str(file))
    name = folder.resolve().name if folder.name in ("", ".", "..") else folder.name
    if parsed.name != name:
        raise BadSkill(f"{file}:2: its name is {parsed.name!r}, but its folder is {name!r}; rename one of them")
    return Skill(parsed.name, parsed.description, source is not None)


def _text(file: Path, *, shown: str, source: _Source | None = None) -> str:
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise BadSkill(f"{shown}:1: not a regular file")
        with open(descriptor, "rb") as opened:
            content = opened.read(4 * FILE_CHARS_MAX + 1)
    except FileNotFoundError:
        raise BadSkill(f"{shown}:1: no such file") from None
    except OSError as error:
        raise BadSkill(f"{shown}:1: {error.strerror}") from error
    if source is not None:
        source.check(file, content)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadSkill(f"{shown}:{line}: not UTF-8 text") from None
    if len(text) > FILE_CHARS_MAX:
        raise BadSkill(f"{shown}:1: has more than {FILE_CHARS_MAX:,} characters; split it")
    return text


def _description(content: bytes | None) -> str:
    """Read the description in a skill's file; empty if the file is invalid."""
    try:
        return parse((content or b"").decode(), "").description
    except (BadSkill, UnicodeDecodeError):
        return ""


def _is_inside(file: Path, folder: Path) -> bool:
    try:
        return file.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a loop of symbolic links
        return False


def _same(one: Path, other: Path) -> bool:
    return _is_inside(one, other) and _is_inside(other, one)
