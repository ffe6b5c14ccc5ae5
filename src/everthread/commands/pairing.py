"""`/pair`: letting in whoever was shown a code."""

from __future__ import annotations

from everthread.commands.desk import Desk, Said, refused
from everthread.domain.wording import one_line


async def pair(desk: Desk, code: str) -> Said:
    if desk.pair is None:
        return refused("Nobody is let in from here; use `everthread pairing approve CODE` at the machine that runs me.")
    if not code:
        return refused("Usage: /pair CODE, with the code that was shown to whoever wants in.")
    guest = await desk.pair(code)
    name = f" ({one_line(guest.name)})" if guest.name else ""
    return Said(f"{guest.account}{name} may write to me now, and is told so.", posts=True)
