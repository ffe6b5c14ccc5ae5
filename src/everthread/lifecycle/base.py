"""Each method of the lifecycle is one unit of work; the modules here have them by subject."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.lifecycle.validation import JOTTED_CHARS_MAX
from everthread.ports.clock import Clock
from everthread.store.unit_of_work import Store, UnitOfWork

T = TypeVar("T")


class WriteContext(Struct, frozen=True):
    """What a crossing is told from outside: time, ids and rules are arguments."""

    now: float
    new_id: Callable[[], str]
    holder: str
    policies: ResetPolicies
    hooks: frozenset[str]
    actor: str = "user"
    before_inbox: int | None = None
    """Messages that came in before this one are set aside by a boundary that leaves the session."""
    review_every: int = 0
    """After so many turns they are to be reviewed; 0 is never."""
    order: int | None = None
    """The command in the inbox that is carried out by this: it is never carried out twice."""
    told_of_expiry: frozenset[str] = frozenset()
    """The platforms on which people are told that a conversation has ended by itself."""


class Units:
    """What every unit of work is carried out with. Nothing of any key is kept here."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        new_id: Callable[[], str],
        *,
        holder: str,
        policies: ResetPolicies | None = None,
        hooks: frozenset[str] = frozenset(),
        review_every: int = 0,
        told_of_expiry: frozenset[str] = frozenset(),
        remove_file: Callable[[str], None] | None = None,
    ) -> None:
        """After `review_every` turns of a chat, and when it is closed, they are noted to be reviewed; 0 is never.

        On the platforms `told_of_expiry` people are told when a conversation has ended by itself. `remove_file` removes
        one that came with a message, by its path in their folder; it may be gone already.
        """
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._holder = holder
        self._policies = policies or ResetPolicies(ResetPolicy())
        self._hooks = hooks
        self._review_every = review_every
        self._told_of_expiry = told_of_expiry
        self._remove_file = remove_file

    async def _jot_if_short(self, work: Callable[[UnitOfWork], T], chars: int) -> T:
        """Write on the spot what is short."""
        return await (self._store.write_inline(work) if chars <= JOTTED_CHARS_MAX else self._store.write(work))

    def _setting(self, actor: str, order: int | None = None) -> WriteContext:
        """To be called inside a unit of work: a process stopped before it would write the time of long ago."""
        return WriteContext(
            self._clock.now(),
            self._new_id,
            self._holder,
            self._policies,
            self._hooks,
            actor,
            before_inbox=order,
            review_every=self._review_every,
            order=order,
            told_of_expiry=self._told_of_expiry,
        )
