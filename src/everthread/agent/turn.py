"""One turn: the message, what is remembered of it, the model, its tools, the commit.

Whatever ends a turn early - the user, a newer boundary, a limit, an endpoint that is down - it is committed with what
it has, once, into the session it began in. Only a process that dies, or is told to stop at once, leaves it for another
process to go on with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from everthread.agent.compression.policy import Fill, bytes_of
from everthread.agent.compression.service import Compressor
from everthread.agent.events import (
    Approve,
    Compressed,
    Listen,
    Recalled,
    Reviewed,
    Steered,
    TurnBegan,
    TurnEnded,
    nobody_approves,
)
from everthread.agent.model_call import ModelCaller, ModelChoice, Progress
from everthread.agent.prompt_cache import Prepared, Preparer
from everthread.agent.review import NoteReview, Reviewer
from everthread.agent.titles import Titler
from everthread.agent.tools.runner import Toolbox, ToolRunner
from everthread.agent.transcript import STOPPED, answered, as_stored, recovered, shown_to, taken_in
from everthread.agent.turn_state import Running, TurnReleaser
from everthread.concurrency import unheard, until_done
from everthread.domain.errors import (
    ContextTooLong,
    EverthreadError,
    Fenced,
    ModelError,
    NotCompressed,
    StoreBusy,
    StoreError,
    TurnTooLong,
)
from everthread.domain.model import Message, Role, SessionKey, SessionRef, Turn, TurnStatus
from everthread.domain.text_format import REFERENCE_CHARS, to_a_guest
from everthread.lifecycle import Committed, Lifecycle, TurnClaim
from everthread.memory import MemoryManager
from everthread.memory.recall import fenced, plainly
from everthread.ports.clock import Clock
from everthread.ports.model import Finish, Request

log = logging.getLogger("everthread.agent")

T = TypeVar("T")

STOP_S_MAX = 5.0
SETTLE_S_MAX = 1.0
WENT_WRONG = "something went wrong inside"
FENCE_MAX = 40
"""A fence grows by one or two with each attempt."""
QUERY_CHARS_MAX = 2_000
"""A question is in the first lines; the rest of a long paste only blurs it."""


class TurnLimits(Struct, frozen=True):
    iterations: int = 50
    turn_s: float = 600.0
    output_tokens: int = 8192
    recall_s: float = 2.0
    """0 is no recall."""
    recall_tokens: int = 1500
    section: str = "limits"
    """Where in the configuration they are set."""


class TurnOptions(Struct, frozen=True):
    """How one turn is run: with which models, best first, who hears of it, who approves, whether it has an outbox."""

    choices: Sequence[ModelChoice]
    listen: Listen = lambda event: None
    approve: Approve = nobody_approves
    outbox: bool = False
    is_guest: Callable[[str], bool] = lambda owner: False
    """Whether an owner is somebody who is not to know how the models are set up."""
    lasting: bool = True
    """The process goes on after the turn: what is begun in the background may come to its end."""
    tools: frozenset[str] | None = None
    """Of those that there are, only these may be used; None is all."""
    spend: float | None = None
    """In US dollars, for this turn; None is no limit but the usual ones."""


class _End(Struct, frozen=True):
    text: str
    problem: str
    error: Exception | None = None
    whole: bool = False
    reply: str = ""
    """For whoever writes from elsewhere, if it is not the text or the problem."""


class Agent:
    """Runs turns, any number at once. It knows the turns that run here, and nothing of where anybody is."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        memory: MemoryManager,
        preparer: Preparer,
        asker: ModelCaller,
        runner: ToolRunner,
        toolbox: Callable[[], Awaitable[Toolbox]],
        clock: Clock,
        *,
        titler: Titler | None = None,
        compressor: Compressor | None = None,
        reviewer: Reviewer | None = None,
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
        self._compressor = compressor
        self._reviewer = reviewer
        self._limits = limits or TurnLimits()
        self._running: dict[str, Running] = {}
        self._giving_back = TurnReleaser(lifecycle, clock)

    async def aclose(self) -> None:
        """Stop trying to give back what could not be: others find it."""
        await self._giving_back.aclose()

    @property
    def asker(self) -> ModelCaller:
        """For what is asked of a model without being a turn."""
        return self._asker

    async def answer(self, key: SessionKey, manner: TurnOptions) -> TurnEnded | None:
        """Take up the key's next message and see it through. `None` if no message waits."""
        if self._compressor is not None:
            choice = manner.choices[0]
            await self._compressor.before_turn(key, choice, lambda ref: self._fill(ref, choice), manner.listen)
        ticket = await self._taken(self._lifecycle.begin_turn(key))
        return None if ticket is None else await self._see_through(ticket, manner)

    async def go_on(self, turn_id: str, manner: TurnOptions) -> TurnEnded | None:
        """Finish a turn that another process left behind. `None` if somebody else does."""
        if turn_id in self._running:
            # Stopped for a while, a process may seem to be gone, and be the one to notice.
            return None
        ticket = await self._taken(self._lifecycle.resume_turn(turn_id))
        return None if ticket is None else await self._see_through(ticket, manner, recovering=True)

    def stop(self, session_id: str, why: str = "stopped") -> bool:
        """Stop what runs here for a session: what it has is committed. False if nothing does."""
        found = [running for running in self._running.values() if running.ticket.ref.session_id == session_id]
        for running in found:
            running.stop(why)
        return bool(found)

    def is_stopped(self, turn_id: str) -> bool:
        """Whether a turn that runs here has been told to stop, rather than to be left for another process."""
        running = self._running.get(turn_id)
        return running is not None and bool(running.stopped)

    def steer(self, session_id: str, inbox_id: int) -> bool:
        """Have a running turn take up a message that waits, at its next step. False if nothing runs here any more.

        If the turn ends before that, the message simply is the next one.
        """
        for running in self._running.values():
            if running.ticket.ref.session_id == session_id and running.has_steps_left:
                running.steering.append(inbox_id)
                return True
        return False

    async def compress(self, key: SessionKey, choice: ModelChoice, *, owner: str, focus: str = "") -> Compressed:
        """Compress the conversation that the key is on, because the user wants it. Raises `NotCompressed`."""
        ref = await self._lifecycle.current(key)
        if self._compressor is None or ref is None or ref.owner != owner:
            raise NotCompressed("there is no conversation here to compress; say something first")
        return await self._compressor.compress(ref, await self._fill(ref, choice), choice, focus)

    async def compression_status(self, session_id: str, *, whole: bool = True) -> str:
        """What a person should know about compressing that session; empty if all is well."""
        return await self._compressor.status(session_id, whole=whole) if self._compressor is not None else ""

    def attend_to_reviews(self, hear: Callable[[Reviewed], None] | None = None, note: NoteReview | None = None) -> None:
        """From now on, carry out the reviews that are due, in the background. For a process that lasts.

        `hear` is told what they write, about whichever conversation of whichever owner; what `note` writes of it is
        written with a review's end, or not at all.
        """
        if self._reviewer is not None:
            self._reviewer.look(hear, note)

    async def settle_titles(self, bound_s: float) -> None:
        """Let titles that are being thought of be found, within the bound. For a process that is about to end."""
        if self._titler is not None:
            await self._titler.settle(bound_s)

    async def _see_through(
        self, ticket: TurnClaim, manner: TurnOptions, *, recovering: bool = False
    ) -> TurnEnded | None:
        said = [Message(Role.USER, text) for text in ticket.texts]
        running = Running(ticket, Progress([said[0], *recovered(ticket.tools), *said[1:]]))
        self._running[ticket.turn_id] = running
        try:
            manner.listen(TurnBegan(ticket, recovering))
            running.work = asyncio.ensure_future(self._work(running, manner))
            running.work.add_done_callback(unheard)
            end = await self._outcome(running, running.work, manner)
            return await asyncio.shield(self._commit(running, end, manner))
        except Fenced:
            log.warning("turn %s was taken over by another process", ticket.turn_id, extra=_place(ticket))
            await asyncio.shield(self._settle(running))
            return None
        except BaseException:
            # Whoever runs this will not wait, or the store can't be written: the turn is there to be recovered.
            await asyncio.shield(self._give_back(ticket, running))
            raise
        finally:
            # Taken over before it was known here, a turn may run here twice: one of the two is fenced off.
            if self._running.get(ticket.turn_id) is running:
                del self._running[ticket.turn_id]

    async def _taken(self, taking: Awaitable[TurnClaim | None]) -> TurnClaim | None:
        """The ticket; given back if nobody waits for it any more by the time it is there."""
        task = asyncio.ensure_future(taking)
        stopped = await until_done(task)
        if stopped is None:
            return task.result()
        with suppress(EverthreadError):
            if (ticket := task.result()) is not None:
                await asyncio.shield(self._give_back(ticket))
        raise stopped

    async def _outcome(self, running: Running, work: asyncio.Task[str], manner: TurnOptions) -> _End:
        """The answer, and why it is none or not the whole one."""
        try:
            # Who stops it also cancels the work, which somebody's tool may not heed.
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait({work, running.stopping}, timeout=self._limits.turn_s, return_when=first)
            if not work.done():
                if not running.stopped:
                    limit = f"{self._limits.section}.turn_s"
                    running.stop(f"stopped after {self._limits.turn_s:g} s, the limit of a turn ({limit})")
                # What has not ended by then is left behind.
                await asyncio.wait({work}, timeout=STOP_S_MAX)
        finally:
            work.cancel()
        partial = "".join(running.progress.writing)
        if not work.done() or work.cancelled():
            return _End(partial, running.stopped or "stopped")
        error = work.exception()
        if error is None:
            return _End(work.result(), running.note, whole=True)
        if isinstance(error, StoreError | Fenced):
            raise error
        if isinstance(error, ModelError):
            reference = running.ticket.turn_id[-REFERENCE_CHARS:]
            log.warning("%s: the model did not answer: %s", reference, error, extra=_place(running.ticket))
            to_guests = to_a_guest(error.plain, reference) if manner.is_guest(running.ticket.ref.owner) else ""
            return _End(partial, str(error), error, reply=to_guests)
        if isinstance(error, EverthreadError):
            return _End(partial, str(error), error)
        log.error("turn %s failed", running.ticket.turn_id, exc_info=error, extra=_place(running.ticket))
        # What a bug says may name anything; it is for whoever runs the program.
        return _End(partial, f"{WENT_WRONG}: {error!r}", reply=WENT_WRONG)

    async def _work(self, running: Running, manner: TurnOptions) -> str:
        progress, ticket = running.progress, running.ticket
        # Once: the tools of a turn stay what the model was told at its start.
        toolbox = await self._toolbox()
        if (only := manner.tools) is not None:
            toolbox = toolbox.only(lambda tool: tool.name in only)
        asker = self._asker if manner.spend is None else replace(self._asker, spend_per_turn=manner.spend)
        # One after the other: what was prepared before is there at once.
        prepared = await self._preparer.prepare(ticket.ref, manner.choices[0], toolbox)
        recall = await self._recall(ticket, manner)
        running.prepared = (prepared, manner.choices[0])

        async def request_to(choice: ModelChoice) -> Request:
            start = prepared
            if choice is not manner.choices[0]:
                start = await self._preparer.borrow(ticket.ref, choice)
            tail = shown_to(choice.name, progress.messages)
            return Request(start.head, start.history, tail, recall, self._limits.output_tokens)

        if ticket.tools:
            await self._runner.go_on(toolbox, ticket, done=progress.messages, listen=manner.listen)
        if ticket.fence > FENCE_MAX:
            raise TurnTooLong("given up: it was begun several times and never came to an end")
        for _ in range(self._limits.iterations):
            running.go_on()
            # Right before a step, so that whatever is taken up is answered.
            await self._take_up_steering(running, manner.listen)
            answer = await asker.ask(
                manner.choices,
                request_to,
                ref=ticket.ref,
                turn_id=ticket.turn_id,
                progress=progress,
                listen=manner.listen,
            )
            message = taken_in(answer.message, progress.messages, progress.model)
            progress.messages.append(message)
            progress.writing.clear()
            if not message.tool_calls:
                running.note = _note(answer.finish, message, self._limits.output_tokens)
                return message.content
            await self._runner.run(
                toolbox,
                message,
                ticket,
                done=progress.messages,
                listen=manner.listen,
                approve=manner.approve,
            )
        limit = f"{self._limits.section}.iterations"
        raise TurnTooLong(f"stopped after {self._limits.iterations} steps, the limit of a turn ({limit})")

    async def _recall(self, ticket: TurnClaim, manner: TurnOptions) -> str:
        if not self._limits.recall_s:
            return ""
        query = ticket.message.inbound.text[:QUERY_CHARS_MAX]
        recall = await self._memory.recall(
            query, ref=ticket.ref, deadline_s=self._limits.recall_s, budget_tokens=self._limits.recall_tokens
        )
        if not recall.usable_at(ticket.ref):
            return ""
        if recall.items or recall.missing:
            manner.listen(Recalled(recall.items, recall.missing))
        return plainly(recall) if manner.choices[0].traits.small else fenced(recall)

    async def _take_up_steering(self, running: Running, listen: Listen) -> None:
        async def take_up(inbox_id: int) -> None:
            row = await self._lifecycle.steer(running.ticket, inbox_id)
            # Once it is written that the message is part of this turn, it must be.
            if row is not None:
                running.progress.messages.append(Message(Role.USER, row.inbound.text))
                listen(Steered(row.inbound.text, row.id))

        while running.steering:
            running.taking_up = asyncio.ensure_future(take_up(running.steering.pop(0)))
            stopped = await until_done(running.taking_up)
            running.taking_up.result()
            if stopped is not None:
                raise stopped

    async def _commit(self, running: Running, end: _End, manner: TurnOptions) -> TurnEnded:
        progress = running.progress
        if running.taking_up is not None:
            await asyncio.wait({running.taking_up})
        messages = list(answered(as_stored(progress.messages), STOPPED))
        if not end.whole and end.text:
            messages.append(Message(Role.ASSISTANT, end.text))
        reply = (end.text or end.reply or end.problem) if manner.outbox else None
        committed = await self._patiently(
            lambda: self._lifecycle.commit_turn(
                running.ticket, messages, reply, interrupted=not end.whole, spent=progress.spent
            )
        )
        self._remember_prepared(running, committed, messages)
        if self._titler is not None and end.whole and committed.status is TurnStatus.DONE:
            self._titler.consider(committed, messages, manner.choices)
        self._consider_compressing(running, committed, messages, manner, end.error)
        if manner.lasting and committed.reviews_due:
            self.attend_to_reviews()
        ended = TurnEnded(
            committed, end.text, end.problem, end.error, progress.model, progress.usage, progress.context_tokens
        )
        try:
            manner.listen(ended)
        except Exception:
            # It is stored: whoever could not be told of it changes nothing about that.
            log.exception(
                "turn %s ended, and its listener failed", running.ticket.turn_id, extra=_place(running.ticket)
            )
        return ended

    def _consider_compressing(
        self,
        running: Running,
        committed: Committed,
        messages: Sequence[Message],
        manner: TurnOptions,
        error: Exception | None,
    ) -> None:
        if self._compressor is None or running.prepared is None:
            return
        if committed.status not in (TurnStatus.DONE, TurnStatus.INTERRUPTED):
            # Whoever asked has left the session.
            return
        prepared, choice = running.prepared
        added = sum(bytes_of(text) for message in messages for text in message.texts())
        # Whatever was counted, the model may say that it was too much.
        too_long = prepared.left_out or isinstance(error, ContextTooLong)
        fill = self._filled(prepared, choice, running.progress.context_tokens, added, too_long=too_long)
        self._compressor.consider(committed.ref, fill, choice, manner.listen, lasting=manner.lasting)

    async def _fill(self, ref: SessionRef, choice: ModelChoice) -> Fill:
        prepared = await self._preparer.prepare(ref, choice, await self._toolbox())
        return self._filled(prepared, choice, too_long=prepared.left_out)

    def _filled(
        self, prepared: Prepared, choice: ModelChoice, context_tokens: int = 0, added_bytes: int = 0, *, too_long: bool
    ) -> Fill:
        return Fill(
            len(prepared.head),
            len(prepared.history) + added_bytes,
            self._preparer.room(choice, prepared.head),
            context_tokens,
            too_long,
        )

    async def _patiently(self, write: Callable[[], Awaitable[T]]) -> T:
        """What must be written is tried more than once: another program may hold the store for a while."""
        for pause_s in (0.2, 1.0):
            try:
                return await write()
            except StoreBusy:
                await self._clock.sleep(pause_s)
        return await write()

    def _remember_prepared(self, running: Running, committed: Committed, messages: Sequence[Message]) -> None:
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

    async def _give_back(self, ticket: TurnClaim, running: Running | None = None) -> None:
        try:
            await self._patiently(lambda: self._lifecycle.abandon_turn(ticket))
        except Fenced as error:
            log.warning("turn %s is left to be recovered: %s", ticket.turn_id, error, extra=_place(ticket))
        except StoreError as error:
            log.warning("turn %s is given back later: %s", ticket.turn_id, error, extra=_place(ticket))
            self._giving_back.later(ticket)
        else:
            if running is not None:
                await self._settle(running)

    async def _settle(self, running: Running) -> None:
        """Write down what a turn has cost that is not committed here; what it had set aside would count for a day."""
        if running.work is not None:
            await asyncio.wait({running.work}, timeout=SETTLE_S_MAX)
        spent, ticket = tuple(running.progress.spent), running.ticket
        try:
            if spent:
                await self._lifecycle.settle_spend(ticket.ref, ticket.turn_id, spent)
        except StoreError as error:
            log.warning("what turn %s has cost is not settled: %s", ticket.turn_id, error)


def _note(finish: Finish, message: Message, output_tokens: int) -> str:
    if finish is Finish.LENGTH:
        return f"the answer was cut at {output_tokens} tokens (limits.output_tokens)"
    if finish is Finish.REFUSED:
        return "the model's endpoint refused to go on with this answer"
    return "" if message.content.strip() else "the model gave an empty answer"


def _place(ticket: TurnClaim) -> dict[str, object]:
    """What a line of the log names it by."""
    ref = ticket.ref
    return {
        "session": ref.session_id,
        "turn_id": ticket.turn_id,
        "platform": ref.key.platform,
        "key": str(ref.key),
    }
