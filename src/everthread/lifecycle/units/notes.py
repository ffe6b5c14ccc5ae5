"""Notes and the reviews that write them."""

from __future__ import annotations

from everthread.domain.model import NoteVersion, SessionRef
from everthread.domain.review import Review
from everthread.lifecycle import turn
from everthread.lifecycle.checks import check_owner
from everthread.lifecycle.notes import NoteChange, Rewriting, rewrite_notes, undo_note, write_note
from everthread.lifecycle.reviewing import held, take_review
from everthread.lifecycle.units import Units
from everthread.ports.store import UnitOfWork


class NoteUnits(Units):
    """Changes of notes, each under whoever asks for it."""

    async def write_note(
        self, change: NoteChange, *, owner: str, ref: SessionRef | None = None, review: Review | None = None
    ) -> NoteVersion:
        """Carry the change out. Raises `Fenced` for one of a `review` that is not to be carried out any more."""
        check_owner(owner)

        def write(uow: UnitOfWork) -> NoteVersion:
            if review is not None:
                held(uow, review, owner)
            return write_note(uow, change, owner=owner, ref=ref, new_id=self._new_id(), now=self._clock.now())

        return await self._store.write(write)

    async def rewrite_notes(
        self, rewriting: Rewriting, *, owner: str, ref: SessionRef, review: Review
    ) -> tuple[NoteVersion, ...]:
        """Put what a review has condensed in the place of a whole collection, all at once or not at all.

        Raises `NotCondensed` if the notes were changed meanwhile, `Fenced` as `write_note` does.
        """
        check_owner(owner)

        def write(uow: UnitOfWork) -> tuple[NoteVersion, ...]:
            held(uow, review, owner)
            return rewrite_notes(uow, rewriting, owner=owner, ref=ref, now=self._clock.now())

        return await self._store.write(write)

    async def undo_note(self, note_id: str, version: int, *, owner: str) -> NoteVersion:
        """Take back a note's last change; raises `BadInput` if the one that is named is not the last any more."""
        return await self._store.write(lambda uow: undo_note(uow, note_id, version, owner=owner, now=self._clock.now()))

    async def take_review(self) -> tuple[Review, SessionRef] | None:
        """The next review that is due, for this process alone, and the session that it is about."""

        def take(uow: UnitOfWork) -> tuple[Review, SessionRef] | None:
            now = self._clock.now()
            uow.lanes.keep_alive(self._holder, now, turn.PROCESS_TTL_S)
            return take_review(uow, self._holder, now)

        return await self._store.write(take)
