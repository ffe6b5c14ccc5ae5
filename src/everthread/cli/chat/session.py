"""What the chat and the single question share: where they are, with which model, and waiting for their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from everthread.cli.chat.recovery import finish_what_is_in_the_way
from everthread.cli.context import CliRuntime
from everthread.domain.boundary import Refusal, Resume, Suspend
from everthread.domain.errors import Busy, NotFound
from everthread.domain.model import ChatType, InboxRow, SessionKey
from everthread.lifecycle.session_lookup import find_session

if TYPE_CHECKING:
    from everthread.agent.events import TurnEnded
    from everthread.agent.turn import TurnOptions

BUSY_S_MAX = 900.0
"""Longer than any turn may take."""
PATIENCE_S = 1.0
"""After this, one is told what is waited for."""
_LOOK_S = 0.2


class ChatOptions(Struct, frozen=True):
    """What the command line asks for."""

    model: str = ""
    latest: bool = False
    """Go on with the owner's latest conversation."""
    resume: str = ""
    """Go on with the one of this id or title."""
    verbose: bool = False


async def entered(runtime: CliRuntime, wish: ChatOptions) -> SessionKey:
    """A key of this process's own, on the session that was wished for; on none yet if none was."""
    settings = runtime.settings
    # Named after the process: whoever finds a message waiting there knows whether anybody is left to answer it.
    key = SessionKey(settings.profile, "cli", ChatType.DM, runtime.holder)
    if not wish.latest and not wish.resume:
        return key
    if wish.resume:
        target = await runtime.store.read(lambda uow: find_session(uow, wish.resume, owner=settings.owner))
    else:
        from everthread.commands.sessions import recent

        found = await runtime.store.read(lambda uow: recent(uow, settings.owner, 1))
        if not found:
            raise NotFound("there is no conversation to go on with yet; start one without -c")
        target = found[0]
    crossing = await runtime.lifecycle.cross(key, Resume(target.id), owner=settings.owner)
    if crossing.refusal is Refusal.NOTHING_THERE:
        raise NotFound(f"there is nothing to go back to in {target.id}; `everthread sessions list` shows the others")
    return key


async def left(runtime: CliRuntime, key: SessionKey) -> Sequence[InboxRow]:
    """Be done with this process's key: its memory is closed; the messages that nobody will answer are set aside."""
    crossing = await runtime.lifecycle.cross(key, Suspend(close_memory=True), owner=runtime.settings.owner)
    return crossing.set_aside


async def made_ready(runtime: CliRuntime, notice: Callable[[str], None]) -> Sequence[str]:
    """Have everything there that a turn needs; what could not be had, a line each."""
    getting = asyncio.ensure_future(runtime.ready())
    try:
        await asyncio.wait({getting}, timeout=PATIENCE_S)
        if not getting.done():
            notice("Getting ready ...")
        return await getting
    finally:
        getting.cancel()


async def answer_when_free(
    runtime: CliRuntime,
    key: SessionKey,
    manner: TurnOptions,
    notice: Callable[[str], None],
    given_up: Callable[[], bool] = lambda: False,
) -> TurnEnded | None:
    """Have the key's next message answered, once nobody else is answered in its session. Raises `Busy` in the end."""
    deadline = runtime.clock.now() + BUSY_S_MAX
    told = False
    while True:
        try:
            return await runtime.agent.answer(key, manner)
        except Busy:
            if given_up() or runtime.clock.now() >= deadline:
                raise
            if await finish_what_is_in_the_way(runtime, key, manner, notice):
                if given_up():
                    raise
                continue
        if not told:
            notice("An answer is still being written in this conversation; yours comes after it.")
            told = True
        await runtime.clock.sleep(_LOOK_S)
