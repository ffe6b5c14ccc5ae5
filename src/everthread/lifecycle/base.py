"""Dependencies of `Lifecycle`, the write context, and the decorator that makes a method one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from msgspec import Struct

from everthread.domain.clock_rules import ClockWatch
from everthread.domain.model import Lease
from everthread.domain.quota import Quotas
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.lifecycle.validation import INLINE_CHARS_MAX
from everthread.ports.clock import Clock
from everthread.store.unit_of_work import Store, UnitOfWork

if TYPE_CHECKING:
    from everthread.lifecycle.home_files import HomeFiles

T = TypeVar("T")
P = ParamSpec("P")


class WriteContext(Struct, frozen=True):
    """Time, ids, rules and actor of one transaction."""

    now: float
    new_id: Callable[[], str]
    holder: str
    """The process that writes."""
    policies: ResetPolicies
    hooks: frozenset[str]
    """The plugin hooks that have a listener; only these are queued."""
    actor: str = "user"
    before_inbox: int | None = None
    """A boundary that leaves the session sets aside the messages that were accepted before this inbox row."""
    review_every: int = 0
    """Number of turns after which a review is due; 0 turns reviews off."""
    command_id: int | None = None
    """The inbox row of the command that is carried out. A command is carried out only once."""
    quotas: Quotas | None = None
    """None if nobody has a quota."""
    operator: str | None = None
    """The owner of the installation, if there is one. Set for requests to forget only."""
    expiry_notice_platforms: frozenset[str] = frozenset()
    """Platforms on which users get a message when their conversation expires."""


class StoreOperations:
    """Base of the classes whose methods are transactions of one store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock


async def _no_note_files(owner: str) -> str:
    return ""


class LifecycleBase(StoreOperations):
    """Dependencies of every operation. Holds no state of any key or session."""

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
        expiry_notice_platforms: frozenset[str] = frozenset(),
        remove_file: Callable[[str], None] | None = None,
        home_files: Callable[[], HomeFiles] | None = None,
        sync_notes: Callable[[str], Awaitable[str]] = _no_note_files,
        forget_skills: Callable[[Collection[str]], Sequence[str]] | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """Create the operations of one process.

        `holder` names the process. For `hooks`, `review_every`, `quotas` and `expiry_notice_platforms` see
        `WriteContext`.
        `remove_file` deletes an attachment by its path in the media folder; the file may be missing. `home_files`
        returns what erases forgotten words from files. `sync_notes` synchronises the note files of an owner with the
        store and returns the problem, if any. `forget_skills` removes what some sessions wrote from the skills, and
        returns the problems.
        """
        super().__init__(store, clock)
        self._new_id = new_id
        self._holder = holder
        self._policies = policies or ResetPolicies(ResetPolicy())
        self._hooks = hooks
        self._review_every = review_every
        self._expiry_notice_platforms = expiry_notice_platforms
        self._remove_file = remove_file
        self._home_files = home_files
        self._sync_notes = sync_notes
        self._forget_skills = forget_skills
        self._quotas = quotas
        self._clock_watch = ClockWatch()
        self._watched_lease: Lease | None = None
        """The lease of the expiry lane since which the clock is watched."""

    def _context(self, actor: str, command_id: int | None = None) -> WriteContext:
        """Build the write context. Call it inside the transaction: a process that was suspended before it began would
        otherwise write an old time.
        """
        return WriteContext(
            self._clock.now(),
            self._new_id,
            self._holder,
            self._policies,
            self._hooks,
            actor,
            before_inbox=command_id,
            review_every=self._review_every,
            command_id=command_id,
            quotas=self._quotas,
            expiry_notice_platforms=self._expiry_notice_platforms,
        )

    async def _write_by_size(self, work: Callable[[UnitOfWork], T], chars: int) -> T:
        """Write small rows inline, and large ones in the writer thread."""
        return await (self._store.write_inline(work) if chars <= INLINE_CHARS_MAX else self._store.write(work))


L = TypeVar("L", bound=StoreOperations)


def transaction(
    work: Callable[Concatenate[L, UnitOfWork, P], T],
) -> Callable[Concatenate[L, P], Coroutine[Any, Any, T]]:
    """Make an async method of a plain one: its body runs in one write transaction and gets the unit of work."""

    @wraps(work)
    async def run(self: L, /, *args: P.args, **kwargs: P.kwargs) -> T:
        store = self._store  # pyright: ignore[reportPrivateUsage] - the wrapper is a method of the class
        return await store.write(lambda uow: work(self, uow, *args, **kwargs))

    return run
