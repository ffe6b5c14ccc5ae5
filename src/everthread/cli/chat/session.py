"""Enter and leave the session of a terminal, and wait for its turns. Shared by the chat and `everthread -p`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from everthread.agent.events import TurnBegan, TurnEnded, TurnEvent
from everthread.agent.inbox_worker import InboxWorker
from everthread.cli.context import CliRuntime
from everthread.domain.boundary import Refusal, Resume, Suspend
from everthread.domain.errors import Busy, NotFound
from everthread.domain.model import ChatType, InboxRow, SessionKey
from everthread.domain.text_format import quote_start
from everthread.lifecycle.session_lookup import find_session

if TYPE_CHECKING:
    from everthread.agent.turn_options import TurnOptions

BUSY_S_MAX = 900.0
"""Longer than any turn may take."""
NOTICE_AFTER_S = 1.0
_POLL_S = 0.2


class ChatOptions(Struct, frozen=True):
    """Command-line options of a chat."""

    model: str = ""
    latest: bool = False
    """Continue the owner's latest session."""
    resume: str = ""
    """Continue the session with this id or title."""
    verbose: bool = False


async def enter_session(runtime: CliRuntime, options: ChatOptions) -> SessionKey:
    """Bind a key of this process to the requested session; to none yet if none was requested."""
    settings = runtime.settings
    # Named after the process, so that recovery can tell whether a waiting message still has a process to answer it.
    key = SessionKey(settings.profile, "cli", ChatType.DM, runtime.holder)
    if not options.latest and not options.resume:
        return key
    if options.resume:
        target = await runtime.store.read(lambda uow: find_session(uow, options.resume, owner=settings.owner))
    else:
        from everthread.commands.sessions import recent

        found = await runtime.store.read(lambda uow: recent(uow, settings.owner, 1))
        if not found:
            raise NotFound("there is no conversation to continue yet; start one without -c")
        target = found[0]
    crossing = await runtime.when_writable(
        lambda: runtime.lifecycle.cross(key, Resume(target.id), owner=settings.owner)
    )
    if crossing.refusal is Refusal.NOTHING_THERE:
        raise NotFound(f"{target.id} has no messages to continue; `everthread sessions list` shows the others")
    return key


async def leave_session(runtime: CliRuntime, key: SessionKey) -> Sequence[InboxRow]:
    """Close the memory of this process's key; return the messages that were set aside unanswered."""
    crossing = await runtime.lifecycle.cross(key, Suspend(close_memory=True), owner=runtime.settings.owner)
    return crossing.set_aside


async def prepare_runtime(runtime: CliRuntime, notice: Callable[[str], None]) -> Sequence[str]:
    """Load everything a turn needs; return one line for each part that is unavailable."""
    runtime.on_wait = notice
    slow = asyncio.get_running_loop().call_later(NOTICE_AFTER_S, notice, "Getting ready ...")
    try:
        return await runtime.ready()
    finally:
        slow.cancel()


class TurnStopper:
    """Stop the running turn of this terminal, also if it begins after the request."""

    def __init__(self, runtime: CliRuntime) -> None:
        self._runtime = runtime
        self._sessions: set[str] = set()
        self.requested = False

    @property
    def running(self) -> bool:
        return bool(self._sessions)

    def begin(self) -> None:
        self.requested = False

    def end(self) -> None:
        self._sessions.clear()

    def handle(self, event: TurnEvent) -> None:
        if isinstance(event, TurnBegan):
            self._sessions.add(event.ref.session_id)
            if self.requested:
                # The agent announces a turn before it can stop it.
                asyncio.get_running_loop().call_soon(self.stop)

    def stop(self) -> None:
        self.requested = True
        for session_id in self._sessions:
            self._runtime.agent.stop(session_id)


async def answer_when_free(
    runtime: CliRuntime,
    key: SessionKey,
    options: TurnOptions,
    notice: Callable[[str], None],
    is_cancelled: Callable[[], bool] = lambda: False,
) -> TurnEnded | None:
    """Answer the key's next message once no other turn runs in its session. Raise `Busy` after `BUSY_S_MAX`."""
    inbox = InboxWorker(runtime.store, runtime.lifecycle, runtime.clock)
    deadline = runtime.clock.now() + BUSY_S_MAX
    is_noticed = False
    while True:
        try:
            return await runtime.agent.answer(key, options)
        except Busy:
            if is_cancelled() or runtime.clock.now() >= deadline:
                raise
            if await _finish_blocking_turn(runtime, inbox, key, options, notice):
                if is_cancelled():
                    raise
                continue
        if not is_noticed:
            notice("Another answer is running in this conversation; yours follows it.")
            is_noticed = True
        await inbox.wait_until_free(key, _POLL_S, is_cancelled)


async def _finish_blocking_turn(
    runtime: CliRuntime, inbox: InboxWorker, key: SessionKey, options: TurnOptions, notice: Callable[[str], None]
) -> bool:
    """Finish the turn that a dead process left in the key's session; return false if there is none.

    Raise `Busy` if the turn belongs to another front end, which finishes it itself.
    """
    slot = await inbox.find_blocking(key)
    if slot is None:
        return False
    if not is_same_front_end(slot.ref.key, key):
        platform = slot.ref.key.platform
        raise Busy(f"an answer on {platform} was interrupted in this conversation; start the gateway to finish it")

    from everthread.agent.turn_options import TurnOptions

    def handle(event: TurnEvent) -> None:
        if isinstance(event, TurnBegan):
            options.listen(event)

    ended = await runtime.agent.resume(slot.turn_id, TurnOptions(options.choices, handle))
    if ended is not None:
        notice(f"Finished an interrupted answer: {await question_of(runtime, ended)}")
    return ended is not None


async def question_of(runtime: CliRuntime, ended: TurnEnded) -> str:
    """Read the beginning of the message that a turn answered."""
    ref, number = ended.committed.ref, ended.committed.number
    turn = await runtime.store.read(lambda uow: uow.turns.get(ref.session_id, number))
    return quote_start(turn.user_text if turn else "")


def is_same_front_end(one: SessionKey, other: SessionKey) -> bool:
    return (one.profile, one.platform) == (other.profile, other.platform)
