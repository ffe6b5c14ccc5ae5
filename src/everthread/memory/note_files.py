"""Curated notes as files that people may edit. The store is authoritative; a file is a projection of it.

A changed digest reveals an edit, which is imported as new versions before the file is written again. Digests of the
entries as last written are kept, so that notes added to the store since do not count as deleted in the file.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Protocol
from urllib.parse import quote

from msgspec import Struct

from everthread.domain.errors import Outdated, TooLarge
from everthread.domain.model import NoteAction, NoteTarget, NoteVersion, count_chars
from everthread.store.unit_of_work import Store, UnitOfWork

SEPARATOR = "\n§\n"
FILE_CHARS_MAX = 1_000_000
CHARS_MAX: Mapping[NoteTarget, int] = MappingProxyType({NoteTarget.MEMORY: 8_000, NoteTarget.USER: 4_000})
"""Size limits of the collections; every prompt contains them in full."""
_NAME_CHARS_MAX = 200
_HEADINGS = {NoteTarget.MEMORY: "MEMORY (what you noted)", NoteTarget.USER: "USER (what you know of the user)"}


class WriteNote(Protocol):
    """Writes a change of a note."""

    def __call__(
        self, action: NoteAction, target: NoteTarget, content: str, note_id: str, owner: str
    ) -> Awaitable[NoteVersion]: ...


class Change(Struct, frozen=True):
    action: NoteAction
    content: str
    note_id: str = ""


def render(notes: tuple[NoteVersion, ...]) -> str:
    return SEPARATOR.join(note.content.strip() for note in notes) + "\n" if notes else ""


def usage(target: NoteTarget, notes: Sequence[NoteVersion], limits: Mapping[NoteTarget, int] = CHARS_MAX) -> str:
    """Return the heading of a collection and its size."""
    return f"{_HEADINGS[target]} {count_chars(notes):,}/{limits[target]:,} characters"


def snapshot(notes: Mapping[NoteTarget, Sequence[NoteVersion]], limits: Mapping[NoteTarget, int] = CHARS_MAX) -> str:
    """Render both collections for a prompt. The same notes give the same text."""
    collections = [(usage(target, notes.get(target, ()), limits), notes.get(target, ())) for target in NoteTarget]
    return "\n\n".join(f"{heading}\n{render_list(some) or '(nothing yet)'}" for heading, some in collections)


def render_list(notes: Sequence[NoteVersion]) -> str:
    """Render notes as a list; further lines of a note are indented, so that no note looks like two."""
    return "\n".join("- " + "\n  ".join(note.content.strip().splitlines()) for note in notes)


def parse(text: str) -> tuple[str, ...]:
    entries = re.split(r"(?m)^§$", text.replace("\r\n", "\n"))
    return tuple(entry.strip() for entry in entries if entry.strip())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def changes(notes: tuple[NoteVersion, ...], entries: tuple[str, ...], last: Collection[str]) -> tuple[Change, ...]:
    """Return the changes that turn the stored notes into the file's entries. Equal texts stay; others pair in order.

    `last` has the digests of the entries that were last written to the file. A note that is not among them was added to
    the store since and stays; an entry that is among them but no note any more was removed from the store since.
    """
    left_over = list(notes)
    new: list[str] = []
    for entry in entries:
        same = next((note for note in left_over if note.content.strip() == entry), None)
        if same is not None:
            left_over.remove(same)
        elif digest(entry) not in last:
            new.append(entry)
    edited = [note for note in left_over if digest(note.content.strip()) in last]
    replaced = list(zip(edited, new, strict=False))
    return (
        *(Change(NoteAction.REPLACE, entry, note.note_id) for note, entry in replaced),
        *(Change(NoteAction.REMOVE, "", note.note_id) for note in edited[len(replaced) :]),
        *(Change(NoteAction.ADD, entry) for entry in new[len(replaced) :]),
    )


def folder_for(home: Path, owner: str, *, mine: str) -> Path:
    """Return the folder of an owner's files: `memory` for the owner of this home, a subfolder for others."""
    if owner == mine:
        return home / "memory"
    # Quoted, so that the name is a single path component, not a file of ours, and not too long.
    name = quote(owner, safe="").replace(".", "%2E")
    return home / "memory" / (name if len(name) <= _NAME_CHARS_MAX else hashlib.sha256(owner.encode()).hexdigest())


class NoteFiles:
    """Synchronises the files of an owner with the stored notes."""

    def __init__(
        self,
        store: Store,
        write_note: WriteNote,
        folder_of: Callable[[str], Path],
        is_forgotten: Callable[[str, str], Awaitable[bool]],
    ) -> None:
        self._store = store
        self._write_note = write_note
        self._folder_of = folder_of
        self._is_forgotten = is_forgotten
        self._syncing = asyncio.Lock()

    async def sync(self, owner: str) -> int:
        """Import edits, then write changed files. Returns the number of imported changes."""
        # Serialised: two runs that see the same edit would both import it.
        async with self._syncing:
            return sum([await self._sync_until_current(owner, target) for target in NoteTarget])

    async def _sync_until_current(self, owner: str, target: NoteTarget) -> int:
        while True:
            # Each repetition needs another request to forget.
            with suppress(Outdated):
                return await self._sync(owner, target)

    def path(self, owner: str, target: NoteTarget) -> Path:
        """Return the path of a collection's file; it may not exist."""
        return self._folder_of(owner) / f"{target.name}.md"

    async def unsynced(self, owner: str) -> tuple[Path, ...]:
        """Return the files that differ from the store: edited, or not writable. Changes nothing."""
        found: list[Path] = []
        for target in NoteTarget:
            path = self.path(owner, target)
            notes = await self._store.read(lambda uow, target=target: uow.notes.current(owner, target))
            if (await asyncio.to_thread(_read, path) or "") != render(notes):
                found.append(path)
        return tuple(found)

    async def _sync(self, owner: str, target: NoteTarget) -> int:
        path = self.path(owner, target)
        text = await asyncio.to_thread(_read, path)
        file_digest = await self._store.read(lambda uow: uow.notes.file_digest(owner, target)) or ""
        whole, *last = file_digest.split() or [""]
        imported = 0
        if text is not None and digest(text) != whole:
            if len(text) > FILE_CHARS_MAX:
                raise TooLarge(f"{path}: has more than {FILE_CHARS_MAX} characters; shorten it, or undo the edit")
            imported = await self._import(owner, target, text, last)
        notes, tombstones = await self._store.read(
            lambda uow: (uow.notes.current(owner, target), uow.erasure.tombstones(owner))
        )
        content = render(notes)
        written = " ".join(digest(part) for part in (content, *parse(content)))

        def save(uow: UnitOfWork) -> None:
            # A note may have been forgotten, and its file erased, before this process wrote the file.
            uow.derived.check(owner, tombstones)
            uow.notes.set_file_digest(owner, target, written)

        if content != (text or ""):
            await asyncio.to_thread(_write, path, content)
            await self._store.write(save)
        elif written != file_digest:
            await self._store.write(save)
        return imported

    async def _import(self, owner: str, target: NoteTarget, text: str, last: Collection[str]) -> int:
        notes = await self._store.read(lambda uow: uow.notes.current(owner, target))
        known = {note.content.strip() for note in notes}
        # A file may still contain forgotten text; it is not imported, unless it was noted again.
        entries = [entry for entry in parse(text) if entry in known or not await self._is_forgotten(owner, entry)]
        found = changes(notes, tuple(entries), frozenset(last))
        for change in found:
            await self._write_note(change.action, target, change.content, change.note_id, owner)
        return len(found)


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return None


def _write(path: Path, content: str) -> None:
    """Write atomically, readable by the owner only."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(".md.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
