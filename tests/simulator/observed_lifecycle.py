"""Lifecycle that reports every operation to the reference model and can be interrupted at each step.

Agents call the lifecycle themselves, so the callers of an agent cannot report its operations.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from everthread.domain.boundary import Boundary, Suspend
from everthread.domain.model import (
    SUBAGENT_PLATFORM,
    Inbound,
    InboxRow,
    Message,
    NoteVersion,
    Prefix,
    SessionKey,
    SessionRef,
)
from everthread.domain.review_window import Review, ReviewState
from everthread.domain.spend import SpendEntry
from everthread.lifecycle import BoundaryResult, CommittedTurn, Lifecycle, NoteChange, NoteRewrite, TurnClaim
from everthread.lifecycle.forget import Forgettable
from everthread.store.recalled import RecalledItem
from everthread.store.unit_of_work import UnitOfWork
from tests.simulator import operations as asked
from tests.simulator.environment import OPERATION

T = TypeVar("T")

Passes = Callable[[str], None]
"""Called with the name of a step. May raise to kill the process there."""


class ObservedLifecycle(Lifecycle):
    """The real lifecycle. It calls `passes` before and after each operation."""

    def __init__(self, *given: Any, holder: str, passes: Passes, **named: Any) -> None:
        super().__init__(*given, holder=holder, **named)
        self._name = holder
        self._passes = passes

    async def _as(self, operation: object, work: Coroutine[Any, Any, T], name: str = "") -> T:
        name = name or type(operation).__name__
        token = OPERATION.set(operation)
        try:
            self._passes(f"before {name}")
            done = await work
            self._passes(f"after {name}")
            return done
        finally:
            OPERATION.reset(token)
            # Also close a coroutine that never started.
            work.close()

    async def accept(self, inbound: Inbound, *, only_into: str = "") -> tuple[InboxRow, bool]:
        work = super().accept(inbound, only_into=only_into)
        operation = asked.Accept(inbound.key, inbound.text, inbound.owner)
        return await self._as(operation, work, _of_work("Accept", inbound.key))

    async def cross(
        self,
        key: SessionKey,
        boundary: Boundary,
        *,
        owner: str,
        actor: str = "user",
        command_id: int | None = None,
    ) -> BoundaryResult:
        work = super().cross(key, boundary, owner=owner, actor=actor, command_id=command_id)
        name = f"{type(boundary).__name__} by {actor}"
        if isinstance(boundary, Suspend):
            return await self._as(asked.Stop(self._name, boundary.close_memory), work, name)
        return await self._as(asked.Cross(key, boundary), work, name)

    async def begin_turn(self, key: SessionKey) -> TurnClaim | None:
        return await self._as(asked.Begin(key), super().begin_turn(key), _of_work("Begin", key))

    async def commit_turn(
        self,
        claim: TurnClaim,
        messages: Sequence[Message],
        reply: str | None,
        *,
        interrupted: bool = False,
        spent: Sequence[SpendEntry] = (),
        recalled: Sequence[RecalledItem] = (),
    ) -> CommittedTurn:
        work = super().commit_turn(claim, messages, reply, interrupted=interrupted, spent=spent, recalled=recalled)
        return await self._as(asked.Commit(claim, interrupted), work)

    async def abandon_turn(self, claim: TurnClaim) -> None:
        await self._as(asked.Abandon(claim), super().abandon_turn(claim))

    async def recover(self) -> tuple[str, ...]:
        return await self._as(asked.Recover(), super().recover())

    async def resume_turn(self, turn_id: str) -> TurnClaim | None:
        return await self._as(asked.TakeOver(), super().resume_turn(turn_id))

    async def record_delegation(self, ref: SessionRef, task: str, result: str, child_session_id: str) -> None:
        work = super().record_delegation(ref, task, result, child_session_id)
        await self._as(asked.Delegate(ref, task, child_session_id), work)

    async def write_note(
        self, change: NoteChange, *, owner: str, ref: SessionRef | None = None, review: Review | None = None
    ) -> NoteVersion:
        work = super().write_note(change, owner=owner, ref=ref, review=review)
        operation = asked.Note(ref, owner, change, review, self._name)
        return await self._as(operation, work, "Note by review" if review else "")

    async def rewrite_notes(
        self, rewriting: NoteRewrite, *, owner: str, ref: SessionRef, review: Review
    ) -> tuple[NoteVersion, ...]:
        work = super().rewrite_notes(rewriting, owner=owner, ref=ref, review=review)
        return await self._as(asked.Rewrite(ref, owner, rewriting, review, self._name), work)

    async def forget(self, what: Forgettable, *, owner: str, actor: str = "user", quoted: bool = False) -> int:
        work = super().forget(what, owner=owner, actor=actor, quoted=quoted)
        return await self._as(asked.ForgetOperation(what, owner), work)

    async def put_prefix(self, ref: SessionRef, content: bytes, forget_count: int) -> Prefix:
        work = super().put_prefix(ref, content, forget_count)
        return await self._as(asked.PutPrefix(ref.owner), work, "Prefix")

    async def claim_next_review(self) -> tuple[Review, SessionRef] | None:
        return await self._as(asked.TakeReview(self._name), super().claim_next_review())

    async def end_review(
        self,
        review: Review,
        state: ReviewState,
        due_at: float = 0.0,
        *,
        ref: SessionRef,
        write_result: Callable[[UnitOfWork], None] = lambda uow: None,
    ) -> bool:
        work = super().end_review(review, state, due_at, ref=ref, write_result=write_result)
        return await self._as(asked.EndReview(review, ref, state), work)


def _of_work(name: str, key: SessionKey) -> str:
    """Name an operation on delegated work differently."""
    return f"{name} of work" if key.platform == SUBAGENT_PLATFORM else name
