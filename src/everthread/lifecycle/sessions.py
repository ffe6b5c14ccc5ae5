"""Properties of one session: current binding, model, title, prefix and delegated results."""

from __future__ import annotations

from everthread.domain import titles
from everthread.domain.errors import TitleTaken
from everthread.domain.events import EntryKind
from everthread.domain.model import Prefix, SessionKey, SessionRef
from everthread.lifecycle.base import LifecycleBase, transaction
from everthread.lifecycle.boundaries import append, close_if_left
from everthread.lifecycle.boundary_state import owned_session
from everthread.lifecycle.turns import without_forgotten
from everthread.lifecycle.validation import check_size
from everthread.store.unit_of_work import UnitOfWork


class SessionOperations(LifecycleBase):
    """Read and change one session without a boundary."""

    async def current(self, key: SessionKey) -> SessionRef | None:
        """Return the session that a key is on now."""
        return await self._store.read_inline(lambda uow: uow.sessions.ref(key))

    @transaction
    def choose_model(self, uow: UnitOfWork, key: SessionKey, model: str, *, owner: str) -> None:
        """Answer at the key with this model from now on; an empty name restores the default."""
        uow.sessions.choose_model(key, owner, model)

    @transaction
    def rename(
        self, uow: UnitOfWork, session_id: str, title: str, *, owner: str, forget_count: int | None = None
    ) -> str:
        """Set a session's title and return it. Raises `TitleTaken` if another session of the owner has it.

        `forget_count` is for a generated title: the owner's count when its source was read. It replaces no title,
        and raises `Outdated` if the number has changed.
        """
        title = titles.clean(title)
        session = owned_session(uow, session_id, owner)
        if forget_count is not None and session.title:
            return session.title
        used = {titles.fold(s.title or ""): s.id for s in uow.sessions.titled(owner, title)}
        if used.get(titles.fold(title), session.id) != session.id:
            free = titles.next_title(title, used)
            raise TitleTaken(f"another session is already called {title!r}; choose another title, such as {free!r}")
        if forget_count is None:
            uow.sessions.set_title(session.id, title)
        else:
            uow.derived.set_title(session, title, forget_count)
        return title

    @transaction
    def put_prefix(self, uow: UnitOfWork, ref: SessionRef, content: bytes, forget_count: int) -> Prefix:
        """Store the session's next prefix under the next number.

        Raises `Outdated` if the owner's forget count has changed since the prefix was built.
        """
        session = owned_session(uow, ref.session_id, ref.owner)
        prefix = Prefix(session.id, uow.turns.prefix_number(session.id) + 1, content, self._clock.now())
        uow.derived.put_prefix(prefix, session.owner, forget_count)
        return prefix

    @transaction
    def record_delegation(
        self, uow: UnitOfWork, ref: SessionRef, task: str, result: str, child_session_id: str
    ) -> None:
        """Log the result of delegated work in the parent session, once per child session."""
        check_size("delegated work", task, result)
        now = self._clock.now()
        session = owned_session(uow, ref.session_id, ref.owner)
        entries = uow.log.of_kind(session.id, EntryKind.DELEGATION)
        if any(entry.detail and entry.detail.get("child") == child_session_id for entry in entries):
            return
        for slot in uow.slots.of_session(session.id):
            task, result = without_forgotten(uow, slot, task), without_forgotten(uow, slot, result)
        detail: dict[str, object] = {"task": task, "result": result, "child": child_session_id}
        session = append(uow, session, ref, EntryKind.DELEGATION, now, detail=detail)
        uow.sessions.save(close_if_left(uow, session, ref, now))
