"""One turn: the message, what is remembered of it, the model, its tools, the commit.

Whatever ends a turn early - the user, a newer boundary, a limit, an endpoint that is down - it is committed with what
it has, once, into the session it began in. Only a process that dies, or is told to stop at once, leaves it for another
process to go on with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from everthread.agent.asking import Asker, Choice, Progress
from everthread.agent.events import (
    Approve,
    Listen,
    Recalled,
    Steered,
    TurnBegan,
    TurnEnded,
    nobody_approves,
)
from everthread.agent.prepared import Prepared, Preparer
from everthread.agent.titles import Titler
from everthread.agent.tools import Toolbox, ToolRunner
from everthread.agent.transcript import STOPPED, answered, recovered, with_own_ids
from everthread.domain.errors import EverthreadError, Fenced, StoreError, TurnTooLong
from everthread.domain.model import Message, Role, SessionKey, Turn, TurnStatus
from everthread.lifecycle import Committed, Lifecycle, Ticket
from everthread.memory import MemoryManager
from everthread.memory.recall import fenced, plainly
from everthread.ports import Clock
from everthread.ports.model import Finish, Request

log = logging.getLogger("everthread.agent")

QUERY_CHARS_MAX = 2_000
"""A question is in the first lines; the rest of a long paste only blurs it."""


@dataclass(frozen=True, slots=True)
class TurnLimits:
    iterations: int = 50
    turn_s: float = 600.0
    output_tokens: int = 8192
    recall_s: float = 2.0
    recall_tokens: int = 1500


@dataclass(frozen=True, slots=True)
class Manner:
    """How one turn is run: with which models, best first, who hears of it, who approves, whether it has an outbox."""

    choices: Sequence[Choice]
    listen: Listen = lambda event: None
    approve: Approve = nobody_approves
    outbox: bool = False


@dataclass(slots=True)
class _Running:
    ticket: Ticket
    progress: Progress
    work: asyncio.Task[str] | None = None
    stopped: str = ""
    """Why it was stopped, if it was."""
    steering: list[int] = field(default_factory=list[int])
    note: str = ""
    """What the user should know about an answer that is there."""
    prepared: tuple[Prepared, Choice] | None = None

    def stop(self, why: str) -> None:
        if self.work is not None and not self.stopped:
            self.stopped = why
            self.work.cancel()


class Agent:
    """Runs turns, any number at once. It knows the turns that run here, and nothing of where anybody is."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        memory: MemoryManager,
        preparer: Preparer,
        asker: Asker,
        runner: ToolRunner,
        toolbox: Callable[[], Toolbox],
        clock: Clock,
        *,
        titler: Titler | None = None,
        limits: TurnLimits | None = None,
    ) -> None:
        self._lifecycle = lifecycle
        self._memory = memory
        self._preparer = preparer
        self._asker = asker
        self._runner = runner
        self._toolbox = toolbox
        self._clock = clock
        self._titler = titler
        self._limits = limits or TurnLimits()
        self._running: dict[str, _Running] = {}

    async def answer(self, key: SessionKey, manner: Manner) -> TurnEnded | None:
        """Take up the key's next message and see it through. `None` if no message waits."""
        ticket = await self._lifecycle.begin_turn(key)
        return None if ticket is None else await self._see_through(ticket, manner)

    async def go_on(self, turn_id: str, manner: Manner) -> TurnEnded | None:
        """Finish a turn that another process left behind. `None` if somebody else does."""
        ticket = await self._lifecycle.resume_turn(turn_id)
        return None if ticket is None else await self._see_through(ticket, manner, recovering=True)

    def stop(self, session_id: str, why: str = "stopped") -> bool:
        """Stop what runs here for a session: what it has is committed. False if nothing does."""
        found = [running for running in self._running.values() if running.ticket.ref.session_id == session_id]
        for running in found:
            running.stop(why)
        return bool(found)

    def steer(self, session_id: str, inbox_id: int) -> bool:
        """Have a running turn take up a message that waits, at its next step. False if nothing runs here.

        If the turn ends before that, the message simply is the next one.
        """
        for running in self._running.values():
            if running.ticket.ref.session_id == session_id:
                running.steering.append(inbox_id)
                return True
        return False

    async def _see_through(self, ticket: Ticket, manner: Manner, *, recovering: bool = False) -> TurnEnded | None:
        said = [Message(Role.USER, text) for text in ticket.texts]
        running = _Running(ticket, Progress([said[0], *recovered(ticket.tools), *said[1:]]))
        manner.listen(TurnBegan(ticket.ref, ticket.turn_id, ticket.message.inbound.text, recovering))
        running.work = asyncio.ensure_future(self._work(running, manner))
        self._running[ticket.turn_id] = running
        try:
            text, problem = await self._outcome(running, running.work)
            return await asyncio.shield(self._commit(running, text, problem, manner))
        except Fenced:
            log.warning("turn %s was taken over by another process", ticket.turn_id)
            return None
        except asyncio.CancelledError:
            # Whoever runs this will not wait for it: the turn is there to be recovered, here or in another process.
            await asyncio.shield(self._give_back(ticket))
            raise
        finally:
            del self._running[ticket.turn_id]

    async def _outcome(self, running: _Running, work: asyncio.Task[str]) -> tuple[str, str]:
        """The answer, and why it is none or not the whole one."""
        try:
            await asyncio.wait({work}, timeout=self._limits.turn_s)
            if not work.done():
                running.stop(f"stopped after {self._limits.turn_s:g} s, the limit of a turn (limits.turn_s)")
                await asyncio.wait({work})
        finally:
            work.cancel()
        partial = "".join(running.progress.writing)
        if work.cancelled():
            return partial, running.stopped or "stopped"
        error = work.exception()
        if error is None:
            return work.result(), running.note
        if isinstance(error, StoreError | Fenced):
            raise error
        if isinstance(error, EverthreadError):
            return partial, str(error)
        log.error("turn %s failed", running.ticket.turn_id, exc_info=error)
        return partial, f"something went wrong inside: {error!r}"

    async def _work(self, running: _Running, manner: Manner) -> str:
        toolbox, progress, ticket = self._toolbox(), running.progress, running.ticket
        recalling = asyncio.ensure_future(self._recall(ticket, manner))
        try:
            prepared = await self._preparer.prepare(ticket.ref, manner.choices[0], toolbox)
            recall = await recalling
        finally:
            recalling.cancel()
        running.prepared = (prepared, manner.choices[0])

        async def request_to(choice: Choice) -> Request:
            start = prepared
            if choice is not manner.choices[0]:
                start = await self._preparer.borrow(ticket.ref, choice)
            tail = tuple(progress.messages)
            return Request(start.head, start.history, tail, recall, self._limits.output_tokens)

        for _ in range(self._limits.iterations):
            answer = await self._asker.ask(
                manner.choices,
                request_to,
                ref=ticket.ref,
                turn_id=ticket.turn_id,
                progress=progress,
                listen=manner.listen,
            )
            taken = [call.id for message in progress.messages for call in message.tool_calls]
            message = with_own_ids(answer.message, taken)
            progress.messages.append(message)
            progress.writing.clear()
            if not message.tool_calls:
                running.note = _note(answer.finish, message, self._limits.output_tokens)
                return message.content
            await self._runner.run(
                toolbox,
                message.tool_calls,
                ticket,
                done=progress.messages,
                listen=manner.listen,
                approve=manner.approve,
            )
            await self._take_up_steering(running, manner.listen)
        raise TurnTooLong(f"stopped after {self._limits.iterations} steps, the limit of a turn (limits.iterations)")

    async def _recall(self, ticket: Ticket, manner: Manner) -> str:
        query = ticket.message.inbound.text[:QUERY_CHARS_MAX]
        recall = await self._memory.recall(
            query, ref=ticket.ref, deadline_s=self._limits.recall_s, budget_tokens=self._limits.recall_tokens
        )
        if not recall.usable_at(ticket.ref):
            return ""
        if recall.items or recall.missing:
            manner.listen(Recalled(recall.items, recall.missing))
        return plainly(recall) if manner.choices[0].traits.small else fenced(recall)

    async def _take_up_steering(self, running: _Running, listen: Listen) -> None:
        while running.steering:
            row = await self._lifecycle.steer(running.ticket, running.steering.pop(0))
            if row is not None:
                running.progress.messages.append(Message(Role.USER, row.inbound.text))
                listen(Steered(row.inbound.text))

    async def _commit(self, running: _Running, text: str, problem: str, manner: Manner) -> TurnEnded:
        ticket, progress = running.ticket, running.progress
        whole = running.work is not None and not running.work.cancelled() and running.work.exception() is None
        messages = list(answered(progress.messages, STOPPED))
        if not whole and text:
            messages.append(Message(Role.ASSISTANT, text))
        committed = await self._lifecycle.commit_turn(
            ticket,
            messages,
            (text or problem) if manner.outbox else None,
            interrupted=not whole,
            spent=progress.spent,
        )
        self._remember_prepared(running, committed, messages)
        if self._titler is not None and whole and committed.status is TurnStatus.DONE:
            self._titler.consider(committed, messages, manner.choices)
        error = None if running.work is None or running.work.cancelled() else running.work.exception()
        told = error if isinstance(error, Exception) else None
        ended = TurnEnded(committed, text, problem, told, progress.model, progress.usage)
        manner.listen(ended)
        return ended

    def _remember_prepared(self, running: _Running, committed: Committed, messages: Sequence[Message]) -> None:
        if running.prepared is not None:
            turn = Turn(
                committed.ref.session_id,
                committed.number,
                running.ticket.turn_id,
                committed.status,
                self._clock.now(),
                tuple(messages),
            )
            self._preparer.committed(running.prepared[0], turn, running.prepared[1])

    async def _give_back(self, ticket: Ticket) -> None:
        try:
            await self._lifecycle.abandon_turn(ticket)
        except (Fenced, StoreError) as error:
            log.warning("turn %s is left to be recovered: %s", ticket.turn_id, error)


def _note(finish: Finish, message: Message, output_tokens: int) -> str:
    if finish is Finish.LENGTH:
        return f"the answer was cut at {output_tokens} tokens (limits.output_tokens)"
    if finish is Finish.REFUSED:
        return "the model's endpoint refused to go on with this answer"
    return "" if message.content.strip() else "the model gave an empty answer"
