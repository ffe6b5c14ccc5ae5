"""`/compress`: a summary in place of what was said first."""

from __future__ import annotations

import logging

from everthread.commands.desk import NONE_YET, Desk, Said, refused, session_here
from everthread.domain.errors import ModelError, NotCompressed

log = logging.getLogger("everthread.commands")

FOCUS_CHARS_MAX = 2_000


async def compress(desk: Desk, focus: str) -> Said:
    if len(focus) > FOCUS_CHARS_MAX:
        return refused(f"Say in at most {FOCUS_CHARS_MAX:,} characters what is to be kept above all.")
    if await session_here(desk) is None:
        return refused(NONE_YET)
    choice = desk.choices(desk.model)[0]
    try:
        done = await desk.agent.compress(desk.key, choice, owner=desk.owner, focus=focus)
    except NotCompressed as error:
        if desk.guest and isinstance(error.__cause__, ModelError):
            log.warning("/compress: %s", error)
            return refused(f"Nothing was compressed. {error.__cause__.plain}")
        return refused(f"Nothing was compressed: {error}.")
    return Said(f"{done.text}. All of it is still stored: /search finds it, /uncompress goes on with all of it.")
