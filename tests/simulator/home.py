"""The home directory of a simulation: note files that people edit by hand, drafts of killed processes, and a skill."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from everthread.adapters.sqlite.connection import Connection
from everthread.domain.model import NoteTarget
from everthread.lifecycle.forget import ForgetFact, Forgettable
from everthread.lifecycle.home_files import HomeFiles
from everthread.memory.note_files import SEPARATOR, folder_for, parse, render
from everthread.store.notes import digest
from everthread.store.unit_of_work import UnitOfWork
from tests.simulator.reference_types import require

MINE = "ann"
"""Owner of the home directory."""
_MEMORY = "/dev/shm"


class Home:
    """Files, and the edits that the store must know after the next synchronisation."""

    def __init__(self, tables: UnitOfWork, database: Connection) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="sim-home-", dir=_MEMORY if os.path.isdir(_MEMORY) else None))
        self._tables = tables
        self._database = database
        self.added: dict[str, tuple[str, NoteTarget]] = {}
        """Entries that a person has added, with their owner and file."""
        self.removed: dict[str, tuple[str, NoteTarget]] = {}
        """Entries that a person has removed, and that the store knew to be in the file."""
        self.edited_at = -1.0

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def files(self) -> HomeFiles:
        return HomeFiles(self.path, MINE)

    def folder_of(self, owner: str) -> Path:
        return folder_for(self.path, owner, mine=MINE)

    def read(self, owner: str, target: NoteTarget) -> str:
        path = self.folder_of(owner) / f"{target.name}.md"
        return path.read_text() if path.exists() else ""

    # A person ---------------------------------------------------------------------------------------------------------

    def edit(self, owner: str, target: NoteTarget, dice: random.Random, word: str, opened: str, now: float) -> str:
        """Save a file that a person had opened: with another entry, without one, or with one changed."""
        entries = list(parse(opened))
        kind = dice.choice(("add", "add", "remove", "change")) if entries else "add"
        if kind != "add":
            gone = entries.pop(dice.randrange(len(entries)))
            known = (self._tables.notes.file_digest(owner, target) or "").split()[1:]
            if digest(gone) in known:
                self.removed[gone] = (owner, target)
        if kind != "remove":
            entries.append(word)
            self.added[word] = (owner, target)
        self._write(self.folder_of(owner) / f"{target.name}.md", SEPARATOR.join(entries) + "\n")
        # A copy that was opened earlier lacks what was added since, and has what was removed since.
        for entry, place in list(self.added.items()):
            if place == (owner, target) and entry not in entries:
                del self.added[entry]
        for entry in entries:
            self.removed.pop(entry, None)
        self.edited_at = now
        return kind

    def leave_draft(self, owner: str, target: NoteTarget) -> None:
        """Leave what a process that was killed while it wrote the file leaves."""
        notes = self._tables.notes.current(owner, target)
        self._write(self.folder_of(owner) / f"{target.name}.md.0a1b2c3d.new", render(notes))

    def write_skill(self, fact: str) -> None:
        self._write(self.path / "skills" / "chess" / "SKILL.md", f"When they play: {fact}\n")

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def forgot(self, what: Forgettable, owner: str, texts: list[str]) -> None:
        """Expect no entries any more that a request to forget may have removed."""
        for entry, (whose, _) in list(self.added.items()):
            # A session takes the notes along that were derived from its own.
            if whose == owner and (not isinstance(what, ForgetFact) or entry in texts):
                del self.added[entry]

    # Checks -----------------------------------------------------------------------------------------------------------

    def synchronised(self, owner: str) -> None:
        """Check a synchronisation right after its commit: the file and the store say the same."""
        for target in NoteTarget:
            notes = self._tables.notes.current(owner, target)
            texts = [note.content for note in notes]
            if self.read(owner, target) != render(notes):
                # The other file of the owner is synchronised by another transaction.
                continue
            for entry, place in list(self.removed.items()):
                if place == (owner, target):
                    require(entry not in texts, f"{owner} has removed {entry!r} from the file, and it is noted still")
                    del self.removed[entry]

    def check(self, forgotten: Callable[[str], set[str]], owners: tuple[str, ...]) -> None:
        """Check the files after the last synchronisation."""
        for owner in owners:
            notes = {target: self._tables.notes.current(owner, target) for target in NoteTarget}
            for target, some in notes.items():
                found = self.read(owner, target)
                require(
                    found == render(some), f"{target.name}.md of {owner} is {found!r}, the notes are {render(some)!r}"
                )
            texts = [note.content for some in notes.values() for note in some]
            for entry in [entry for entry, (whose, _) in self.added.items() if whose == owner]:
                count = texts.count(entry)
                require(count == 1, f"{owner} has written {entry!r} into the file, and it is noted {count} times")
            self.check_forgotten(owner, forgotten(owner))

    def check_forgotten(self, owner: str, words: set[str]) -> None:
        """Check that no file contains words that an owner has forgotten. The skill belongs to the home's owner."""
        for path in sorted(self.path.rglob("*")):
            if path.is_file() and (owner == MINE or self.folder_of(owner) in path.parents):
                text = path.read_text()
                known = [word for word in words if word in text]
                require(not known, f"{path.relative_to(self.path)} contains {known}, which {owner} has forgotten")
