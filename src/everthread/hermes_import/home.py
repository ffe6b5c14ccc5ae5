"""Read the files of a Hermes home, with size limits. Never writes there.

Follows symbolic links as Hermes does, except inside skills, which may come from third parties.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from everthread.config import dotenv
from everthread.domain.errors import BadConfig, BadInput, NotFound
from everthread.domain.model import NoteTarget
from everthread.hermes_import.allowlist import is_about_access

DATABASE = "state.db"
BYTES_MAX = 64 << 20
_SKILL_DEPTH = 4
_FOLDERS_MAX = 5000
_SKILL = "SKILL.md"


class SkillFolder(Struct, frozen=True):
    folder: Path
    bundled: bool
    """True if the skill is bundled with Hermes."""


class HermesHome:
    """A folder that was checked to be a Hermes home."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_dir():
            raise NotFound(f"{path}: no such folder; give the home folder of Hermes")
        if not (self.database.exists() or (path / "sessions").is_dir() or (path / "memories").is_dir()):
            raise BadInput(f"{path}: not a home of Hermes (it has no {DATABASE}); give another folder")

    @property
    def database(self) -> Path:
        return self.path / DATABASE

    def routing(self) -> dict[str, object]:
        """Return the entries of `sessions.json`."""
        return _json(self.path / "sessions" / "sessions.json")

    def notes(self, target: NoteTarget) -> str:
        """Return the text of MEMORY.md or USER.md; empty if there is none."""
        return _text(self.path / "memories" / f"{target.name}.md") or ""

    def access_variables(self) -> dict[str, str]:
        """Return the variables of `.env` that control access, and no others."""
        file = self.path / ".env"
        found: dict[str, str] = {}
        for line in (_text(file) or "").split("\n"):
            try:
                found |= {name: value for name, value in dotenv.parse(file, line).items() if is_about_access(name)}
            except BadConfig:
                continue
        return found

    def approved(self) -> dict[str, dict[str, object]]:
        """Return the users approved by pairing code, by platform."""
        found: dict[str, dict[str, object]] = {}
        for folder in (self.path / "pairing", self.path / "platforms" / "pairing"):
            for file in sorted(folder.glob("*-approved.json"))[:100]:
                found.setdefault(file.name.removesuffix("-approved.json"), {}).update(_json(file))
        return found

    def skills(self) -> Iterator[SkillFolder]:
        """Find folders with a SKILL.md below `skills`."""
        top = self.path / "skills"
        bundled = {line.partition(":")[0].strip() for line in (_text(top / ".bundled_manifest") or "").splitlines()}
        for seen, (folder, folders, files) in enumerate(os.walk(top)):
            here = Path(folder)
            depth = len(here.relative_to(top).parts)
            folders[:] = sorted(each for each in folders if not each.startswith(".")) if depth < _SKILL_DEPTH else []
            if _SKILL in files and depth:
                folders[:] = []
                yield SkillFolder(here, here.name in bundled)
            if seen >= _FOLDERS_MAX:
                return

    def other_profiles(self) -> list[str]:
        """Return the names of other profiles."""
        folder = self.path / "profiles"
        return sorted(each.name for each in folder.iterdir() if each.is_dir())[:100] if folder.is_dir() else []

    def existing(self, *names: str) -> list[str]:
        """Return those of the names that exist and are not empty folders."""
        paths = [(name, self.path / name) for name in names]
        return [name for name, path in paths if path.is_file() or (path.is_dir() and any(path.iterdir()))]


def _json(path: Path) -> dict[str, object]:
    text = _text(path)
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise BadInput(f"{path}: Invalid JSON. Fix or move the file, then import again") from None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _text(path: Path) -> str | None:
    """Return the text of a regular file; None if there is none."""
    try:
        # Do not block on a named pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; check its permissions") from None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        if found.st_size > BYTES_MAX:
            raise BadInput(f"{path}: has more than {BYTES_MAX >> 20} MB, too much for a file of Hermes")
        return file.read(BYTES_MAX).decode(errors="replace")
