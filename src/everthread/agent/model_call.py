"""Call a model: reserve budget, retry with backoff, fall back to the next model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from msgspec import Struct, field

from everthread.agent.events import Listen, ReasoningWritten, Retrying, TextWritten
from everthread.agent.transcript import adopt_answer
from everthread.concurrency import wait_until_done
from everthread.domain.backoff import Backoff
from everthread.domain.errors import (
    BudgetExceeded,
    ModelError,
    ModelUnauthorized,
    ModelUnavailable,
    ModelUnknown,
    ModelWithoutTools,
)
from everthread.domain.model import Message, Role, SessionRef
from everthread.domain.spend import BYTES_PER_TOKEN, Price, SpendEntry, cost, max_cost
from everthread.lifecycle import Lifecycle
from everthread.plugins import HookRunner
from everthread.ports.clock import Clock
from everthread.ports.model import Answer, ModelClient, Prompt, Request, Traits, Usage

ATTEMPTS_MAX = 4
BACKOFF = Backoff(first_s=0.5, max_s=20.0)
RETRY_AFTER_S_MAX = 60.0
"""If an endpoint asks for a longer wait, fall back to the next model."""


class ModelChoice(Struct, frozen=True):
    """A model and its client. `name` is the public name: provider/model."""

    name: str
    model: str
    client: ModelClient
    price: Price | None = None

    @property
    def traits(self) -> Traits:
        return self.client.traits(self.model)


class Progress(Struct):
    """Progress of a running turn. If the turn is stopped, this is committed."""

    messages: list[Message] = field(default_factory=list[Message])
    writing: list[str] = field(default_factory=list[str])
    """Text deltas of the answer that is being streamed."""
    spent: list[SpendEntry] = field(default_factory=list[SpendEntry])
    """Costs of calls that are not yet settled in the store."""
    usage: Usage = Usage()
    """Total of all calls."""
    context_tokens: int = 0
    """Input and output tokens of the last call: the part of the context window in use."""
    model: str = ""
    """The model that answered last."""

    def append(self, answer: Message) -> Message:
        """Add a complete answer; return it with call ids that are unique within the turn."""
        message = adopt_answer(answer, self.messages, self.model)
        self.messages.append(message)
        self.writing.clear()
        return message

    def add_usage(self, model: str, usage: Usage) -> None:
        self.model = model
        self.context_tokens = usage.input_tokens + usage.output_tokens
        self.usage = Usage(
            self.usage.input_tokens + usage.input_tokens,
            self.usage.output_tokens + usage.output_tokens,
            self.usage.cached_tokens + usage.cached_tokens,
            self.usage.cost if usage.cost is None else (self.usage.cost or 0.0) + usage.cost,
        )


async def always_allowed() -> None:
    """A `check` of calls that belong to no turn."""


def no_limit(owner: str) -> float | None:
    """A `spend_per_day` without a limit."""
    return None


class _Call(Struct, frozen=True):
    choice: ModelChoice
    request: Request
    ref: SessionRef
    turn_id: str
    progress: Progress
    listen: Listen
    check: Callable[[], Awaitable[None]] = always_allowed


class ModelCaller(Struct, frozen=True):
    lifecycle: Lifecycle
    clock: Clock
    random: Callable[[], float]
    hooks: HookRunner
    spend_per_day: Callable[[str], float | None] = no_limit
    """Return the spending limit of an owner in 24 hours; `None` for no limit."""
    spend_per_session: float | None = None
    spend_per_turn: float | None = None

    async def ask(
        self,
        choices: Sequence[ModelChoice],
        request_for: Callable[[ModelChoice], Awaitable[Request]],
        *,
        ref: SessionRef,
        turn_id: str,
        progress: Progress,
        listen: Listen,
        check: Callable[[], Awaitable[None]] = always_allowed,
    ) -> Answer:
        """Return the answer of the first model that gives one. Raises the last model's error if none does.

        `check` is awaited right before every attempt, and raises if none may be made.
        """
        problem: ModelError | None = None
        for choice, following in zip(choices, [*choices[1:], None], strict=True):
            try:
                return await self._with_retries(
                    _Call(choice, await request_for(choice), ref, turn_id, progress, listen, check)
                )
            except (ModelUnavailable, ModelUnauthorized, ModelUnknown, ModelWithoutTools) as error:
                problem = error
                if following is not None:
                    progress.writing.clear()
                    listen(Retrying(str(error), following.name, 0.0))
        assert problem is not None
        raise problem

    async def complete(
        self, choice: ModelChoice, text: str, *, system: str = "", output_tokens: int, ref: SessionRef, spend_id: str
    ) -> Answer:
        """Return the answer to a single message, outside of a turn and without tools. The cost is settled."""
        head = choice.client.head(Prompt(choice.model, system))
        request = Request(head, b"", (Message(Role.USER, text),), output_tokens_max=output_tokens)
        progress = Progress()
        try:
            return await self._with_retries(_Call(choice, request, ref, spend_id, progress, lambda event: None))
        finally:
            await asyncio.shield(self.lifecycle.settle_spend(ref, spend_id, tuple(progress.spent)))

    async def _with_retries(self, call: _Call) -> Answer:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return await self._once(call)
            except ModelUnavailable as error:
                wait_s = self._wait_s(attempt, error.retry_after_s)
                if attempt == ATTEMPTS_MAX or wait_s is None:
                    raise
                call.progress.writing.clear()
                call.listen(Retrying(str(error), call.choice.name, wait_s))
                await self.clock.sleep(wait_s)
        raise AssertionError("every attempt returns or raises")

    def _wait_s(self, attempt: int, retry_after_s: float | None) -> float | None:
        """Compute the wait before the next attempt; `None` if the endpoint asks for too long a wait."""
        if retry_after_s is not None and retry_after_s > RETRY_AFTER_S_MAX:
            return None
        backoff_s = BACKOFF.delay_s(attempt) * (0.5 + self.random())
        return max(backoff_s, retry_after_s or 0.0)

    async def _once(self, call: _Call) -> Answer:
        choice, request, progress = call.choice, call.request, call.progress
        spend_id = await self._reserve(call)
        # Zero until the call is made; then unknown (`None`) until the endpoint reports it.
        usage: Usage | None = Usage()
        written_bytes = 0
        try:
            await self.hooks.notify("pre_model_call", ref=call.ref, model=choice.name)
            await call.check()
            usage = None
            async with aclosing(choice.client.stream(request)) as parts:
                async for part in parts:
                    if isinstance(part, Answer):
                        usage = part.usage if part.usage.input_tokens else _estimate_usage(request, written_bytes)
                        progress.add_usage(choice.name, part.usage)
                        await self.hooks.notify("post_model_call", ref=call.ref, model=choice.name, usage=part.usage)
                        return part
                    written_bytes += bytes_of(part.text) + bytes_of(part.reasoning)
                    if part.text:
                        progress.writing.append(part.text)
                        call.listen(TextWritten(part.text))
                    if part.reasoning:
                        call.listen(ReasoningWritten(part.reasoning))
        except ModelError:
            # An endpoint that failed before its first output does not charge for the call.
            usage = None if written_bytes else Usage()
            raise
        finally:
            progress.spent.append(_spent(choice, usage or _estimate_usage(request, written_bytes), spend_id))
        raise ModelUnavailable(f"{choice.name} stopped before the end of its answer")

    async def _reserve(self, call: _Call) -> int | None:
        """Reserve the highest possible cost of a call; return `None` if the model has no price.

        Raises `BudgetExceeded` beyond a limit, or if there is a limit and no price, unless the model is small.
        """
        choice, progress, per_day = call.choice, call.progress, self.spend_per_day(call.ref.owner)
        if choice.price is None:
            limited = (per_day, self.spend_per_session, self.spend_per_turn) != (None, None, None)
            if limited and not choice.traits.small:
                raise BudgetExceeded(
                    f"spending is limited, but the price of {choice.name} is unknown; "
                    f'add it to config.toml: [prices."{choice.name}"]'
                )
            return None
        settled = tuple(progress.spent)
        reserving = asyncio.ensure_future(
            self.lifecycle.reserve_spend(
                call.ref,
                call.turn_id,
                choice.name,
                max_cost(
                    choice.price,
                    request_bytes=_size(call.request),
                    output_tokens_max=call.request.output_tokens_max,
                ),
                limit_per_day=per_day,
                limit_of_session=self.spend_per_session,
                limit_of_turn=self.spend_per_turn,
                spent=settled,
            )
        )
        stopped = await wait_until_done(reserving)
        error = reserving.exception()
        if error is None or isinstance(error, BudgetExceeded):
            # The settled costs are stored in both cases; only the new reservation may fail.
            del progress.spent[: len(settled)]
        if stopped is not None:
            if error is None:
                progress.spent.append(SpendEntry(choice.name, 0.0, spend_id=reserving.result()))
            raise stopped
        return reserving.result()


def _size(request: Request) -> int:
    tail = sum(bytes_of(text) for message in request.tail for text in message.texts())
    return len(request.head) + len(request.history) + tail + bytes_of(request.recall)


def bytes_of(text: str) -> int:
    """Size of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _estimate_usage(request: Request, written_bytes: int) -> Usage:
    """Estimate the usage of a call that was cut off, or whose endpoint reports none."""
    return Usage(_size(request) // BYTES_PER_TOKEN, written_bytes // BYTES_PER_TOKEN + 1)


def _spent(choice: ModelChoice, usage: Usage, spend_id: int | None) -> SpendEntry:
    amount = usage.cost
    if amount is None:
        amount = 0.0
        if choice.price is not None:
            amount = cost(
                choice.price,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cached_tokens=usage.cached_tokens,
            )
    return SpendEntry(choice.name, amount, usage.input_tokens, usage.output_tokens, spend_id)
