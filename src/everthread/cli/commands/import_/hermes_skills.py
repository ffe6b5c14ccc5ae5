"""Import the skills of a Hermes home."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from msgspec import Struct, field

from everthread.agent.skills.folders import COUNT_MAX, SkillFolders
from everthread.agent.skills.format import FILE, FILE_CHARS_MAX, SkillText, parse
from everthread.domain.errors import AlreadyExists, BadSkill
from everthread.hermes_import.allowlist import Skipped
from everthread.hermes_import.home import HermesHome

FILES_MAX = 50
FILE_BYTES_MAX = 1 << 20


class ImportedSkills(Struct):
    names: list[str] = field(default_factory=list[str])
    skipped: list[Skipped] = field(default_factory=list[Skipped])


def import_skills(home: HermesHome, folders: SkillFolders, before: Collection[str], *, dry_run: bool) -> ImportedSkills:
    """Copy skills that do not exist here. Skills of earlier imports are left as the user changed them since."""
    imported = ImportedSkills()
    bundled = 0
    here = {path.name for path in folders.own.iterdir()} if folders.own.is_dir() else set[str]()
    for found in home.skills():
        if found.bundled:
            bundled += 1
            continue
        try:
            skill = _read(found.folder)
            if skill.name in before:
                continue
            _check(skill.name, {*here, *imported.names})
            left = 0
            if not dry_run:
                folders.write(skill, new=True)
                left = _copy_rest(found.folder, folders.own / skill.name)
        except (AlreadyExists, BadSkill) as error:
            imported.skipped.append(Skipped(f"skill {found.folder.name}", str(error)))
            continue
        imported.names.append(skill.name)
        if left:
            why = f"are not regular files, too many, or larger than {FILE_BYTES_MAX >> 20} MB"
            imported.skipped.append(Skipped(f"files of skill {skill.name}", why, left))
    if bundled:
        imported.skipped.append(
            Skipped("skills", "are bundled with Hermes; copy the ones you changed by hand", bundled)
        )
    return imported


def _check(name: str, here: Collection[str]) -> None:
    if name in here:
        raise AlreadyExists("a skill of that name exists here")
    if len(here) >= COUNT_MAX:
        raise AlreadyExists(f"there are {COUNT_MAX} skills here, the maximum")


def _read(folder: Path) -> SkillText:
    content = _bytes(folder / FILE, 4 * FILE_CHARS_MAX)
    if content is None:
        raise BadSkill(f"{folder / FILE}:1: not a regular file, or too long")
    return parse(content.decode(errors="replace"), str(folder / FILE))


def _copy_rest(source: Path, target: Path) -> int:
    """Copy the other files of a skill; return the number of files skipped."""
    copied = left = 0
    for file in _files(source):
        if file == source / FILE:
            continue
        content = _bytes(file, FILE_BYTES_MAX) if copied < FILES_MAX else None
        if content is None:
            left += 1
            continue
        path = target / file.relative_to(source)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(content)
        copied += 1
    return left


def _files(source: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(source):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        yield from (Path(folder) / name for name in sorted(files) if not name.startswith("."))
        if Path(folder) == source:
            folders[:] = folders[:FILES_MAX]


def _bytes(file: Path, limit: int) -> bytes | None:
    """Read a regular file; None for a link, a pipe, or a file above the limit."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    with open(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        content = opened.read(limit + 1)
    return content if len(content) <= limit else None
