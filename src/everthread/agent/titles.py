"""Generate titles for untitled conversations, in the background after their first turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from everthread.agent.model_call import ModelCaller, ModelChoice
from everthread.domain import titles
from everthread.domain.errors import BadTitle, EverthreadError, TitleTaken
from everthread.domain.model import Message, Role, SessionKind, SessionRef
from everthread.lifecycle import CommittedTurn, Lifecycle
from everthread.store.unit_of_work import Store, UnitOfWork

log = logging.getLogger("everthread.agent")

TURNS_MAX = 3
EXCERPT_CHARS_MAX = 1_000
TITLE_WORDS_MAX = 8
TITLE_S_MAX = 30.0
OUTPUT_TOKENS_MAX = 40

INSTRUCTION = (
    "Name the conversation below in three to six words, in its language. "
    "Answer with the name alone: no quotes, no full stop."
)


def from_answer(text: str) -> str:
    """Turn a model's answer into a title: its first line, unquoted and short."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = line.removeprefix("Title:").strip().strip("\"'`*#.“”«» ")
    return " ".join(line.split()[:TITLE_WORDS_MAX])


def from_words(text: str) -> str:
    """Use the first words of the user's message as a title, for models that are too small to ask."""
    return from_answer(" ".join(text.split()[:6]))


class Titler(Struct, frozen=True):
    """Title sessions in the background, with one attempt per turn."""

    store: Store
    lifecycle: Lifecycle
    model_caller: ModelCaller
    auxiliary: Callable[[], ModelChoice | None]
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def consider(self, committed: CommittedTurn, choices: Sequence[ModelChoice]) -> None:
        """Start to title the session after one of its first turns."""
        if committed.number <= TURNS_MAX:
            task = asyncio.ensure_future(self._add_title(committed, choices[0]))
            self._tasks.add(task)
            task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("generating a title failed", exc_info=error)

    async def settle(self, bound_s: float) -> None:
        """Wait for running attempts, at most `bound_s`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=bound_s)

    async def aclose(self) -> None:
        """Cancel running attempts."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _add_title(self, committed: CommittedTurn, choice: ModelChoice) -> None:
        ref = committed.ref
        try:
            choice = self.auxiliary() or choice
            found = await self.store.read_inline(lambda uow: _read_untitled(uow, committed))
            if found is None:
                return
            messages, forget_count = found
            text = messages[0].content[:EXCERPT_CHARS_MAX]
            async with asyncio.timeout(TITLE_S_MAX):
                title = from_words(text) if choice.traits.small else await self._ask_model(ref, messages, choice)
            await self._set_title(ref, title, forget_count)
        except (EverthreadError, TimeoutError) as error:
            log.info("session %s: could not generate a title: %s", ref.session_id, error)

    async def _ask_model(self, ref: SessionRef, messages: tuple[Message, ...], choice: ModelChoice) -> str:
        talk = "\n\n".join(
            f"{m.role.value}: {m.content[:EXCERPT_CHARS_MAX]}"
            for m in messages
            if m.content and m.role in (Role.USER, Role.ASSISTANT)
        )
        answer = await self.model_caller.complete(
            choice, talk, system=INSTRUCTION, output_tokens=OUTPUT_TOKENS_MAX, ref=ref, spend_id="title"
        )
        return from_answer(answer.message.content)

    async def _set_title(self, ref: SessionRef, title: str, forget_count: int) -> None:
        """Set the title. If another session has it already, append a number."""
        try:
            await self.lifecycle.rename(ref.session_id, title, owner=ref.owner, forget_count=forget_count)
        except BadTitle:
            return
        except TitleTaken:
            taken = await self.store.read(
                lambda uow: tuple(s.title or "" for s in uow.sessions.titled(ref.owner, title))
            )
            await self.lifecycle.rename(
                ref.session_id, titles.next_title(title, taken), owner=ref.owner, forget_count=forget_count
            )


def _read_untitled(uow: UnitOfWork, committed: CommittedTurn) -> tuple[tuple[Message, ...], int] | None:
    """Read the turn of a session without a title, as it was stored, and the owner's forget count."""
    ref = committed.ref
    session = uow.sessions.get(ref.session_id)
    if session is None or session.title or session.kind is not SessionKind.CHAT:
        return None
    turn = uow.turns.get(ref.session_id, committed.number)
    return (turn.messages, uow.erasure.forget_count(ref.owner)) if turn is not None and turn.messages else None
