"""What goes for good, and what comes in from elsewhere.

Removing old conversations from the store. What memory has learned from them stays, and so do notes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from everthread.domain.model import Session, SessionKey
from everthread.lifecycle.base import Units
from everthread.lifecycle.forget import Forgettable, forget
from everthread.lifecycle.validation import check_owner
from everthread.store.leases import Incident
from everthread.store.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from everthread.domain.export_format import NoteLine, SessionLine
    from everthread.lifecycle.session_import import Imported, Items


class ArchiveUnits(Units):
    """Forgetting, pruning, and taking in what was exported."""

    async def forget(self, what: Forgettable, *, owner: str, actor: str = "user") -> int:
        """Forget a session, a person or a fact; how many sessions or notes were concerned."""
        count = await self._store.write(lambda uow: forget(uow, what, owner, self._setting(actor)))
        await self._clear_traces()
        return count

    async def _clear_traces(self) -> None:
        """Take what was deleted out of the index and the write-ahead log for good, and its files with it."""
        await self.remove_files()
        # In slices, so that nobody waits while the index is worked over.
        more = await self._store.write(lambda uow: uow.search.purge(begin=True))
        while more:
            more = await self._store.write(lambda uow: uow.search.purge(begin=False))
        if not await self._store.tidy():
            await self._store.write(lambda uow: uow.leases.add_incident(self._untidy()))

    async def remove_files(self) -> None:
        """Remove the files of what was forgotten, also those that a process which is gone has left."""
        if self._remove_file is None:
            return
        for path in await self._store.read(lambda uow: uow.attachments.discarded()):
            try:
                await asyncio.to_thread(self._remove_file, path)
            except OSError as error:
                text = f"a file of what was forgotten could not be removed ({error.strerror}); remove media/{path}"
                incident = Incident(self._clock.now(), "forget", None, text)
                await self._store.write(lambda uow, incident=incident: uow.leases.add_incident(incident))
            else:
                await self._store.write(lambda uow, path=path: uow.attachments.removed(path))

    def _untidy(self) -> Incident:
        text = "what was forgotten stays in the write-ahead log until nobody reads there; stop the other programs once"
        return Incident(self._clock.now(), "forget", None, text)

    async def prune(
        self, session_ids: Sequence[str], *, before: float, advance: Callable[[int], None] = lambda _: None
    ) -> tuple[int, int]:
        """Remove those that ended before then and that nothing needs, in this order; how many, with how many turns."""
        removed = turns = 0
        for session_id in session_ids:
            gone = await self._store.write(lambda uow, s=session_id: prune(uow, s, before))
            removed += gone is not None
            turns += gone or 0
            advance(1)
        if removed:
            await self._clear_traces()
        return removed, turns

    async def import_session(
        self,
        line: SessionLine,
        items: Items,
        *,
        owner: str,
        before: Mapping[str, Imported],
        routed: frozenset[SessionKey] = frozenset(),
        dry_run: bool = False,
    ) -> Imported:
        """Take in what is new of an exported session. `before` says what became of those before it in the file,
        `routed` which keys its source has on it.
        """
        from everthread.lifecycle.session_import import Arrival, take_in  # noqa: PLC0415 - as with all that is rarely done

        check_owner(owner)
        arrival = Arrival(line, owner, before, routed)
        return await take_in(self._store, self._clock.now, arrival, items, dry_run=dry_run)

    async def import_note(self, line: NoteLine, *, owner: str, dry_run: bool = False) -> bool:
        """Take in an exported note; false if it is there already, or was forgotten."""
        from everthread.lifecycle.session_import import is_new_note, take_note  # noqa: PLC0415 - as above

        check_owner(owner)
        if dry_run:
            return await self._store.read(lambda uow: is_new_note(uow, line, owner))
        return await self._store.write(lambda uow: take_note(uow, line, owner, self._new_id(), self._clock.now()))


class Prunable(Struct, frozen=True):
    """What would go, children before their parents, and what stays although it is old enough."""

    sessions: tuple[Session, ...]
    needed: int = 0
    """A session that is not removed grew out of them, and shows their turns."""
    untold: int = 0
    """Memory has not been told all of them yet."""


def prunable(uow: UnitOfWork, before: float) -> Prunable:
    old = uow.archive.ended_before(before)
    untold = {session.id for session in old if uow.archive.untold(session.id)}
    told = [s for s in old if s.id not in untold and not uow.archive.holds_the_newest(s.id)]
    order = leaves_first({session.id for session in told}, uow.archive.children())
    by_id = {session.id: session for session in told}
    gone = tuple(by_id[session_id] for session_id in order)
    return Prunable(gone, needed=len(told) - len(gone), untold=len(untold))


def leaves_first(removable: set[str], children: Iterable[tuple[str, str]]) -> list[str]:
    """Those of which all that grew out of them goes too, in an order in which each can go."""
    parent_of: dict[str, str] = {}
    left: dict[str, int] = dict.fromkeys(removable, 0)
    for parent, child in children:
        parent_of[child] = parent
        if parent in left:
            left[parent] += 1
    order = sorted(session_id for session_id, count in left.items() if not count)
    for session_id in order:
        order += _freed(session_id, parent_of, left)
    return order


def _freed(session_id: str, parent_of: Mapping[str, str], left: dict[str, int]) -> list[str]:
    """The parent, if nothing but this one was left of its children."""
    parent = parent_of.get(session_id, "")
    if parent not in left:
        return []
    left[parent] -= 1
    return [parent] if not left[parent] else []


def prune(uow: UnitOfWork, session_id: str, before: float) -> int | None:
    """Remove one session, if it may still go: what was planned may have changed since."""
    if not uow.archive.ended_before(before, session_id) or uow.archive.children(session_id):
        return None
    if uow.archive.untold(session_id) or uow.archive.holds_the_newest(session_id):
        return None
    # What is taken out of the index must be in it: what comes to it later would bring the words back.
    uow.search.index()
    return uow.archive.remove(session_id)
