"""Forget, prune and import. Pruning removes old conversations; notes and the data of memory providers stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.errors import StoreError
from everthread.domain.model import Session, SessionKey
from everthread.lifecycle.base import LifecycleBase
from everthread.lifecycle.forget import (
    Forgettable,
    forget,
    forgotten_lines,
    forgotten_sessions,
    forgotten_texts,
)
from everthread.lifecycle.validation import check_owner
from everthread.log_erasure import LineFilter
from everthread.store.incidents import Incident
from everthread.store.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from everthread.domain.export_format import NoteLine, SessionLine
    from everthread.lifecycle.import_match import ImportedSession
    from everthread.lifecycle.session_import import Items


class Prunable(Struct, frozen=True):
    """The sessions that can be removed, children before parents, and counts of those that must stay."""

    sessions: tuple[Session, ...]
    needed: int = 0
    """Number of sessions whose turns are shown by a session that stays."""
    undelivered: int = 0
    """Number of sessions whose log entries were not all delivered to every memory provider."""


class ArchiveOperations(LifecycleBase):
    """Erase, prune and import sessions."""

    async def forget(self, what: Forgettable, *, owner: str, actor: str = "user", quoted: bool = False) -> int:
        """Forget a session, a person or a fact. Returns the number of sessions or notes that were erased.

        With `quoted`, the answers in other sessions that may quote it are erased too: see `quoting_turns`.
        """
        # Import edits of the note files first, so that they are erased as versions of their notes.
        await self._sync_notes(owner)
        texts = await self._store.read(lambda uow: forgotten_texts(uow, what, owner))
        attachments = await self._attachments_with(owner, texts)
        sessions = await self._store.read(lambda uow: forgotten_sessions(uow, what, owner))
        problems = await self._forget_skills_of(sessions)
        # Skills before the store: if this process dies in between, the store still has the words for another request.
        if self._home_files is not None:
            await asyncio.to_thread(self._home_files().replace, owner, texts)

        lines = LineFilter()

        def forget_all(uow: UnitOfWork) -> int:
            nonlocal texts, lines
            texts = forgotten_texts(uow, what, owner)
            uow.attachments.discard(owner, attachments)
            operator = self._home_files().owner if self._home_files is not None else None
            context = replace(self._context(actor), operator=operator)
            count = forget(uow, what, owner, context, quoted=quoted)
            lines = forgotten_lines(uow, what, owner)
            return count

        # In batches: `forget` indexes the rest in its own transaction.
        await self._store.index()
        count = await self._store.write(forget_all)
        # Search again: a skill or an attachment may have been written meanwhile. From now on, such skills are refused.
        if attachments := await self._attachments_with(owner, texts):
            await self._store.write(lambda uow: uow.attachments.discard(owner, attachments))
        problems = [*problems, *await self._forget_skills_of(sessions)]
        problems += [*await self._erase_files(owner, texts, lines), await self._sync_notes(owner)]
        for problem in dict.fromkeys(problems):
            await self._report(problem)
        await self._purge()
        return count

    async def _attachments_with(self, owner: str, texts: Sequence[str]) -> tuple[str, ...]:
        if self._home_files is None or not texts:
            return ()
        paths = await self._store.read(lambda uow: uow.attachments.paths(owner))
        return await asyncio.to_thread(self._home_files().attachments_with, texts, paths)

    async def _forget_skills_of(self, sessions: Sequence[str]) -> Sequence[str]:
        if self._forget_skills is None or not sessions:
            return ()
        return await asyncio.to_thread(self._forget_skills, sessions)

    async def _erase_files(self, owner: str, texts: Sequence[str], lines: LineFilter) -> Sequence[str]:
        if self._home_files is None:
            return ()
        files = self._home_files()
        if not texts:
            await asyncio.to_thread(files.list_forgotten, lines)
        return await asyncio.to_thread(files.erase, owner, texts, lines)

    async def _purge(self) -> None:
        """Remove deleted text from the search index, the write-ahead log and the media folder."""
        await self.remove_files()
        # The text is erased already: an error would make the user repeat a request that finds nothing any more.
        problem = await self._purge_index()
        if not await self._store.tidy():
            await self._report(
                "forgotten text stays in the write-ahead log while another program reads it; "
                "stop all programs that use the store: the last one removes it"
            )
        await self._report(problem)

    async def _purge_index(self) -> str:
        """Remove deleted words from the search index. Return the problem if that failed."""
        try:
            # In short transactions, so that no other writer waits for the whole index.
            more = await self._store.write(lambda uow: uow.search.purge(begin=True))
            while more:
                more = await self._store.write(lambda uow: uow.search.purge(begin=False))
        except StoreError as error:
            return f"forgotten words may stay in the search index ({error}); everthread sessions reindex removes them"
        return ""

    async def _report(self, problem: str) -> None:
        """Record an incident unless the text is empty."""
        if problem:
            incident = Incident(self._clock.now(), "forget", None, problem)
            await self._store.write(lambda uow: uow.incidents.add(incident))

    async def rebuild_search_index(self) -> int:
        """Empty the search index and index every message again, in batches. Returns the number of messages."""
        await self._store.write(lambda uow: uow.search.clear())
        await self._store.index()
        return await self._store.read(lambda uow: uow.search.count())

    async def remove_files(self) -> None:
        """Delete the files of forgotten messages, including those left over by a process that died."""
        if self._remove_file is None:
            return
        for path in await self._store.read(lambda uow: uow.attachments.discarded()):
            try:
                await asyncio.to_thread(self._remove_file, path)
            except OSError as error:
                await self._report(f"a forgotten file could not be removed ({error.strerror}); remove media/{path}")
            else:
                await self._store.write(lambda uow, path=path: uow.attachments.mark_removed(path))

    async def prune(
        self, session_ids: Sequence[str], *, before: float, advance: Callable[[int], None] = lambda _: None
    ) -> tuple[int, int]:
        """Remove the sessions, in this order, that ended earlier than `before` and can still be removed.

        Returns the number of sessions removed and of their turns.
        """
        removed = turns = 0
        # In batches: `_prune` indexes the rest in its own transaction.
        await self._store.index()
        for session_id in session_ids:
            count = await self._store.write(lambda uow, s=session_id: _prune(uow, s, before))
            removed += count is not None
            turns += count or 0
            advance(1)
        if removed:
            await self._purge()
        return removed, turns

    async def import_session(
        self,
        line: SessionLine,
        items: Items,
        *,
        owner: str,
        before: Mapping[str, ImportedSession],
        routed: frozenset[SessionKey] = frozenset(),
        dry_run: bool = False,
    ) -> ImportedSession:
        """Import the new part of an exported session.

        `before` has the results of the sessions before it in the file, `routed` the keys that its source has on it.
        """
        from everthread.lifecycle.session_import import ImportRequest, import_session  # noqa: PLC0415 - imports are rare

        check_owner(owner)
        arrival = ImportRequest(line, owner, before, routed)
        return await import_session(self._store, self._clock.now, arrival, items, dry_run=dry_run)

    async def import_note(self, line: NoteLine, *, owner: str, dry_run: bool = False) -> bool:
        """Import a note. Returns False if it exists already or was forgotten."""
        from everthread.lifecycle.session_import import import_note, is_new_note  # noqa: PLC0415 - imports are rare

        check_owner(owner)
        if dry_run:
            return await self._store.read(lambda uow: is_new_note(uow, line, owner))
        return await self._store.write(lambda uow: import_note(uow, line, owner, self._new_id(), self._clock.now()))


def prunable(uow: UnitOfWork, before: float) -> Prunable:
    """List the sessions that ended earlier than `before` and can be removed."""
    old = uow.archive.ended_before(before)
    undelivered = {session.id for session in old if uow.archive.has_undelivered(session.id)}
    delivered = [s for s in old if s.id not in undelivered and not uow.archive.holds_the_newest(s.id)]
    order = leaves_first({session.id for session in delivered}, uow.archive.children())
    by_id = {session.id: session for session in delivered}
    removable = tuple(by_id[session_id] for session_id in order)
    return Prunable(removable, needed=len(delivered) - len(removable), undelivered=len(undelivered))


def leaves_first(removable: set[str], children: Iterable[tuple[str, str]]) -> list[str]:
    """Return the sessions all of whose descendants are removable too, children before parents."""
    parent_of: dict[str, str] = {}
    left: dict[str, int] = dict.fromkeys(removable, 0)
    for parent, child in children:
        parent_of[child] = parent
        if parent in left:
            left[parent] += 1
    order = sorted(session_id for session_id, count in left.items() if not count)
    # The list grows while it is read: a parent follows its last child.
    for session_id in order:
        parent = parent_of.get(session_id, "")
        if parent in left:
            left[parent] -= 1
            if not left[parent]:
                order.append(parent)
    return order


def _prune(uow: UnitOfWork, session_id: str, before: float) -> int | None:
    """Remove one session and return the number of its turns; None if it can't be removed any more."""
    if not uow.archive.ended_before(before, session_id) or uow.archive.children(session_id):
        return None
    if uow.archive.has_undelivered(session_id) or uow.archive.holds_the_newest(session_id):
        return None
    # Index everything first: text that is indexed after its removal would come back.
    uow.search.index()
    return uow.archive.remove(session_id)
