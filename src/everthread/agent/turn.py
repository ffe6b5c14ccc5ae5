"""The agent loop: ask the model, run its tools, repeat until it answers, commit the turn.

Read `Agent._run` first. Beside it are `turn_options` (limits and options), `turn_state` (a running turn, how it is
stopped and steered), `turn_guard` (the check before every effect), `turn_outcome` (time limit, stop and errors),
`turn_commit` and `turn_release`.

A turn that ends early - stopped by the user, overtaken by a boundary, over a limit, without a model - is committed with
its messages so far, once, to the session it began in. Only a process that dies or is cancelled leaves a turn for
another process to resume.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count

from msgspec.structs import replace

from everthread.agent.compression.policy import ContextFill
from everthread.agent.compression.service import Compressor, measure_fill
from everthread.agent.events import Compressed, Recalled, Reviewed, TurnBegan, TurnEnded
from everthread.agent.model_call import ModelCaller, ModelChoice
from everthread.agent.prompt_cache import Preparer
from everthread.agent.review import Reviewer, WriteResult
from everthread.agent.titles import Titler
from everthread.agent.tools.runner import ToolRunner
from everthread.agent.tools.session_tools import SessionTools
from everthread.agent.transcript import drop_other_thoughts
from everthread.agent.turn_commit import TurnCommitter
from everthread.agent.turn_guard import TurnGuard
from everthread.agent.turn_options import TurnLimits, TurnOptions
from everthread.agent.turn_outcome import claim_fields, outcome_of
from everthread.agent.turn_release import TurnReleaser
from everthread.agent.turn_state import RunningTurn, take_steering
from everthread.domain.errors import Fenced, NotCompressed, TurnCancelled
from everthread.domain.model import Message, SessionKey, SessionRef
from everthread.lifecycle import Lifecycle, TurnClaim
from everthread.log_context import log_scope
from everthread.memory import MemoryManager
from everthread.memory.recall import render_fenced, render_plain
from everthread.ports.clock import Clock
from everthread.ports.model import Finish, Request

log = logging.getLogger("everthread.agent")

RequestFor = Callable[[ModelChoice], Awaitable[Request]]


class Agent:
    """Run turns concurrently, and stop or steer the turns of this process."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        memory: MemoryManager,
        preparer: Preparer,
        model: ModelCaller,
        runner: ToolRunner,
        tools_of: Callable[[SessionRef], Awaitable[SessionTools]],
        clock: Clock,
        *,
        titler: Titler | None = None,
        compressor: Compressor | None = None,
        reviewer: Reviewer | None = None,
        limits: TurnLimits | None = None,
    ) -> None:
        self.model = model
        self._lifecycle = lifecycle
        self._memory = memory
        self._preparer = preparer
        self._runner = runner
        self._tools_of = tools_of
        self._titler = titler
        self._compressor = compressor
        self._reviewer = reviewer
        self._limits = limits or TurnLimits()
        self._running: dict[str, RunningTurn] = {}
        self._releaser = TurnReleaser(lifecycle, clock)
        self._committer = TurnCommitter(
            lifecycle,
            memory,
            preparer,
            clock,
            titler=titler,
            compressor=compressor,
            reviewer=reviewer,
            recalls=self._limits.recall_s > 0,
        )

    async def answer(self, key: SessionKey, options: TurnOptions) -> TurnEnded | None:
        """Answer the key's next message. `None` if no message waits."""
        if self._compressor is not None:
            choice = options.choices[0]
            await self._compressor.before_turn(key, choice, lambda ref: self._measure_fill(ref, choice), options.listen)
        claim = await self._releaser.claim_or_release(self._lifecycle.begin_turn(key))
        return None if claim is None else await self._complete(claim, options)

    async def resume(self, turn_id: str, options: TurnOptions) -> TurnEnded | None:
        """Complete a turn whose process has died. `None` if another process completes it."""
        if turn_id in self._running:
            # After a suspend, this process may find that its own heartbeat has expired.
            return None
        claim = await self._releaser.claim_or_release(self._lifecycle.resume_turn(turn_id))
        return None if claim is None else await self._complete(claim, options, recovered=True)

    async def _complete(self, claim: TurnClaim, options: TurnOptions, *, recovered: bool = False) -> TurnEnded | None:
        """Run a claimed turn to its commit, or release it. `None` if another process has taken it over."""
        turn = RunningTurn.start(claim)
        self._running[claim.turn_id] = turn
        try:
            with log_scope(**claim_fields(claim)):
                options.listen(TurnBegan(claim, recovered))
                return await self._run(turn, options)
        except Fenced:
            log.warning("turn %s was taken over by another process", claim.turn_id, extra=claim_fields(claim))
            await asyncio.shield(self._releaser.settle_spend(turn))
            return None
        except BaseException:
            # The caller was cancelled, or the store cannot be written.
            await asyncio.shield(self._releaser.release(claim, turn))
            raise
        finally:
            # If the turn was taken over by this process itself, the entry is the newer run's.
            if self._running.get(claim.turn_id) is turn:
                del self._running[claim.turn_id]

    async def _run(self, turn: RunningTurn, options: TurnOptions) -> TurnEnded:
        """Ask the model, run its tools, repeat until it answers; commit the turn, however the steps end."""
        claim, progress, listen = turn.claim, turn.progress, options.listen
        guard = TurnGuard(self._lifecycle, claim, turn.stop, lambda: bool(turn.stop_reason), turn.recalled.extend)

        async def steps() -> str:
            # Once for the whole turn: the tools stay those that the prompt describes.
            tools, model = await self._tools(claim.ref, options), self._model_for(options)
            request_for = await self._prepare(turn, options, tools, guard)
            toolbox, rights = tools.toolbox, await tools.of_turn(turn.speakers)
            await self._runner.resume(toolbox, guard, rights, done=progress.messages, listen=listen)
            for step in count():
                turn.check_limits(step, self._limits)
                # Right before the model call, so that every message that is taken up is answered.
                await take_steering(turn, guard, listen)
                answer = await model.ask(
                    options.choices,
                    request_for,
                    ref=claim.ref,
                    turn_id=claim.turn_id,
                    progress=progress,
                    listen=listen,
                    check=guard.check,
                )
                message = progress.append(answer.message)
                if not message.tool_calls:
                    turn.note = _answer_problem(answer.finish, message, self._limits.output_tokens)
                    return message.content
                # Again before each run: a message that steers the turn may be by somebody else.
                rights = await tools.of_turn(turn.speakers)
                await self._runner.run(
                    toolbox, message, guard, rights, done=progress.messages, listen=listen, approve=options.approve
                )
            raise AssertionError("check_limits ends the loop")

        outcome = await outcome_of(turn, steps(), self._limits, options)
        return await asyncio.shield(self._committer.commit(turn, outcome, options))

    async def _tools(self, ref: SessionRef, options: TurnOptions) -> SessionTools:
        tools, only = await self._tools_of(ref), options.tools
        return tools if only is None else replace(tools, toolbox=tools.toolbox.only(lambda tool: tool.name in only))

    def _model_for(self, options: TurnOptions) -> ModelCaller:
        return self.model if options.spend is None else replace(self.model, spend_per_turn=options.spend)

    async def _prepare(
        self, turn: RunningTurn, options: TurnOptions, tools: SessionTools, guard: TurnGuard
    ) -> RequestFor:
        """Prepare the prompt and recall; return the function that builds the request for a model."""
        ref, first = turn.claim.ref, options.choices[0]
        prepared = await self._preparer.prepare(ref, first, tools)
        recall = await self._recall(turn, options, guard)
        turn.prepared = (prepared, first)
        if turn.claim.kind.remembered and self._memory.wants_turn_starts:
            # After the recall: a provider that runs one call at a time must not delay the answer.
            await guard.check()
            self._memory.turn_started(turn.claim.message.inbound.text, ref=ref)

        async def request_for(choice: ModelChoice) -> Request:
            start = prepared if choice is first else await self._preparer.prepare_fallback(ref, choice)
            tail = drop_other_thoughts(choice.name, turn.progress.messages)
            return Request(start.head, start.history, tail, recall, self._limits.output_tokens)

        return request_for

    async def _recall(self, turn: RunningTurn, options: TurnOptions, guard: TurnGuard) -> str:
        if not self._limits.recall_s:
            return ""
        await guard.check()
        ref = turn.claim.ref
        recall = await self._memory.recall(
            turn.query, ref=ref, deadline_s=self._limits.recall_s, budget_tokens=self._limits.recall_tokens
        )
        if not recall.usable_at(ref):
            return ""
        turn.recalled.extend(recall.items)
        if recall.items or recall.missing:
            options.listen(Recalled(recall.items, recall.missing))
        return render_plain(recall) if options.choices[0].traits.small else render_fenced(recall)

    # --- Control of the turns that run here ---

    def stop(self, session_id: str, reason: str = "stopped") -> bool:
        """Stop the session's turns that run here; their partial answers are committed. False if none runs."""
        turns = [turn for turn in self._running.values() if turn.claim.ref.session_id == session_id]
        for turn in turns:
            turn.stop(reason)
        return bool(turns)

    async def stop_cancelled(self) -> None:
        """Stop the turns that run here and that a boundary in another process has cancelled. Call it after commits."""
        running = [turn for turn in self._running.values() if turn.has_steps_left and not turn.stop_reason]
        if not running:
            return
        acting = await self._lifecycle.acting_turns()
        for turn in running:
            if (turn.claim.turn_id, turn.claim.fence) in acting:
                continue
            try:
                await self._lifecycle.check_acting(turn.claim)
            except TurnCancelled as error:
                turn.stop(str(error))
            except Fenced:
                # Without `stop`: another process runs the turn, and resumes the work that it delegated.
                turn.cancel_steps()

    def is_stopped(self, turn_id: str) -> bool:
        """Return true if `stop` was called for a turn that runs here. A cancelled turn, in contrast, is resumed."""
        turn = self._running.get(turn_id)
        return turn is not None and bool(turn.stop_reason)

    def steer(self, session_id: str, inbox_id: int) -> bool:
        """Have the session's turn take up a waiting message before its next model call. False if none runs here.

        A turn that ends before that leaves the message waiting, as the next one to answer.
        """
        for turn in self._running.values():
            if turn.claim.ref.session_id == session_id and turn.has_steps_left:
                turn.steering.append(inbox_id)
                return True
        return False

    async def aclose(self) -> None:
        """Stop retrying to release turns."""
        await self._releaser.aclose()

    # --- Compression, reviews and titles on request ---

    async def compress(self, key: SessionKey, choice: ModelChoice, *, owner: str, focus: str = "") -> Compressed:
        """Compress the key's conversation at the user's request. Raises `NotCompressed`."""
        ref = await self._lifecycle.current(key)
        if self._compressor is None or ref is None or ref.owner != owner:
            raise NotCompressed("there is nothing to compress yet; send a message first")
        return await self._compressor.compress(ref, await self._measure_fill(ref, choice), choice, focus)

    async def compression_status(self, session_id: str, *, whole: bool = True) -> str:
        """Describe a problem with compressing the session; empty if there is none."""
        return await self._compressor.status(session_id, whole=whole) if self._compressor is not None else ""

    async def _measure_fill(self, ref: SessionRef, choice: ModelChoice) -> ContextFill:
        prepared = await self._preparer.prepare(ref, choice, await self._tools_of(ref))
        return measure_fill(prepared, self._preparer.room(choice, prepared.head), too_long=prepared.left_out)

    def start_reviews(
        self, on_reviewed: Callable[[Reviewed], None] | None = None, write_result: WriteResult | None = None
    ) -> None:
        """Run due reviews in the background, for processes that keep running.

        `on_reviewed` is called with the result of every review, of any session. `write_result` writes to the
        store in the transaction that ends a review.
        """
        if self._reviewer is not None:
            self._reviewer.wake(on_reviewed, write_result)

    async def settle_titles(self, bound_s: float) -> None:
        """Wait for titles that are being generated, before the process ends."""
        if self._titler is not None:
            await self._titler.settle(bound_s)


def _answer_problem(finish: Finish, message: Message, output_tokens: int) -> str:
    """Describe for the user why an answer is cut off, refused or empty; empty if it is complete."""
    if finish is Finish.LENGTH:
        return f"the answer was cut at {output_tokens} tokens (limits.output_tokens)"
    if finish is Finish.REFUSED:
        return "the model's endpoint refused to continue this answer"
    return "" if message.content.strip() else "the model returned an empty answer"
