"""What goes for good, and what comes in from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from everthread.domain.model import SessionKey
from everthread.lifecycle.checks import check_owner
from everthread.lifecycle.forget import Forgettable, forget
from everthread.lifecycle.units import Units
from everthread.ports.store import Incident

if TYPE_CHECKING:
    from everthread.domain.exchange import NoteLine, SessionLine
    from everthread.lifecycle.importing import Imported
    from everthread.lifecycle.taking_in import Items


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
        more = await self._store.write(lambda uow: uow.forgetting.purge(begin=True))
        while more:
            more = await self._store.write(lambda uow: uow.forgetting.purge(begin=False))
        if not await self._store.tidy():
            await self._store.write(lambda uow: uow.lanes.add_incident(self._untidy()))

    async def remove_files(self) -> None:
        """Remove the files of what was forgotten, also those that a process which is gone has left."""
        if self._remove_file is None:
            return
        for path in await self._store.read(lambda uow: uow.forgetting.discarded()):
            try:
                await asyncio.to_thread(self._remove_file, path)
            except OSError as error:
                text = f"a file of what was forgotten could not be removed ({error.strerror}); remove media/{path}"
                incident = Incident(self._clock.now(), "forget", None, text)
                await self._store.write(lambda uow, incident=incident: uow.lanes.add_incident(incident))
            else:
                await self._store.write(lambda uow, path=path: uow.forgetting.removed(path))

    def _untidy(self) -> Incident:
        text = "what was forgotten stays in the write-ahead log until nobody reads there; stop the other programs once"
        return Incident(self._clock.now(), "forget", None, text)

    async def prune(
        self, session_ids: Sequence[str], *, before: float, advance: Callable[[int], None] = lambda _: None
    ) -> tuple[int, int]:
        """Remove those that ended before then and that nothing needs, in this order; how many, with how many turns."""
        from everthread.lifecycle.pruning import prune  # noqa: PLC0415 - as above

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
        from everthread.lifecycle.taking_in import Arrival, take_in  # noqa: PLC0415 - as with all that is rarely done

        check_owner(owner)
        arrival = Arrival(line, owner, before, routed)
        return await take_in(self._store, self._clock.now, arrival, items, dry_run=dry_run)

    async def import_note(self, line: NoteLine, *, owner: str, dry_run: bool = False) -> bool:
        """Take in an exported note; false if it is there already, or was forgotten."""
        from everthread.lifecycle.importing import is_new_note, take_note  # noqa: PLC0415 - as above

        check_owner(owner)
        if dry_run:
            return await self._store.read(lambda uow: is_new_note(uow, line, owner))
        return await self._store.write(lambda uow: take_note(uow, line, owner, self._new_id(), self._clock.now()))
