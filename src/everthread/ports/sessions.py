"""Sessions, where keys are, and the boundaries that were crossed, as the store keeps them."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from everthread.domain.model import Binding, Session, SessionKey, SessionRef
from everthread.ports.news import BoundaryRow


class Whereabouts(Struct, frozen=True):
    """Where a key is, who else is there, and what waits."""

    binding: Binding | None = None
    session: Session | None = None
    other_keys: tuple[SessionKey, ...] = ()
    """Which other keys are on the session."""
    running: SessionKey | None = None
    """The key whose turn runs in the session."""
    awaited: bool = True
    """False if no message waits at the key."""
    armed: bool = False
    """The timer that was asked about is set."""


class Sessions(Protocol):
    def get(self, session_id: str) -> Session | None: ...
    def add(self, session: Session, summary: str | None = None) -> None: ...
    def save(self, session: Session) -> None:
        """Store what has changed of a session; for the generation, see `renew`."""
        ...

    def renew(self, session: Session) -> None:
        """The same for one whose generation has grown: every key on it must show that, unless it is bound anew."""
        ...

    def tip(self, session_id: str) -> Session | None:
        """The newest continuation of a session that is not forgotten: itself, if it was never compressed."""
        ...

    def titled(self, owner: str | None, title: str) -> tuple[Session, ...]:
        """The owner's (or everybody's) sessions whose titles begin like `title`, lowest lineage number first."""
        ...

    def named(self, owner: str | None, beginning: str, limit: int) -> tuple[Session, ...]:
        """The owner's (or everybody's) sessions whose titles begin so, by title; of no beginning, the last opened.

        Of those it looks at the newest only, so that it is fast however many there are.
        """
        ...

    def matching(self, id_prefix: str, limit: int, owner: str | None = None) -> tuple[Session, ...]: ...
    def recent(self, *, owner: str | None, limit: int, kind: str | None = None) -> tuple[Session, ...]: ...
    def conversations(self, limit: int, *, delegated: bool = False) -> tuple[Session, ...]:
        """What people have to do with, the last active first: nothing forgotten, and no session that only has notes.

        Work that was delegated or scheduled is left out, unless it is asked for.
        """
        ...

    def page(self, owner: str, limit: int, before: tuple[float, str] | None = None) -> tuple[Session, ...]:
        """The owner's conversations, the last active first, behind the one that was active then and has that id."""
        ...

    def of_owner(self, owner: str) -> tuple[Session, ...]: ...
    def descendants(self, session_id: str) -> tuple[Session, ...]: ...
    def binding(self, key: SessionKey) -> Binding | None: ...
    def at(self, key: SessionKey) -> tuple[Binding | None, Session | None]:
        """A key's binding, and the session it is on."""
        ...

    def whereabouts(self, key: SessionKey, timer: str = "") -> Whereabouts:
        """The same with who else is there and what waits, at once: what every boundary has to know."""
        ...

    def ref(self, key: SessionKey) -> SessionRef | None:
        """Where a key is now."""
        ...

    def bind(self, binding: Binding, *, same_owner: bool = False) -> None:
        """Put a key on a session or on none. `same_owner`: it was seen to be nobody else's before."""
        ...

    def keys_on(self, session_id: str) -> tuple[SessionKey, ...]: ...
    def keys_of(self, owner: str) -> tuple[SessionKey, ...]:
        """Where the owner has been, the last active first."""
        ...

    def add_boundary(self, row: BoundaryRow) -> None: ...
    def last_boundary(self) -> int:
        """The number of the one that was added last."""
        ...

    def boundary(self, boundary_id: int) -> BoundaryRow | None: ...
    def boundaries(
        self, *, limit: int, session_id: str | None = None, kind: str | None = None
    ) -> tuple[BoundaryRow, ...]: ...
    def serve(self, holder: str, session_id: str, key: SessionKey) -> None: ...
    def is_served(self, holder: str, session_id: str) -> bool: ...
    def served(self, holder: str) -> tuple[tuple[str, SessionKey], ...]: ...
    def finalized(self, session_id: str) -> None: ...
    def serving_moved(self, from_session: str, to_session: str) -> None: ...
    def set_title(self, session_id: str, title: str | None) -> None: ...
    def chosen_model(self, key: SessionKey) -> str:
        """The model that was chosen at the key; empty if it is the usual one."""
        ...

    def choose_model(self, key: SessionKey, owner: str, model: str) -> None: ...
