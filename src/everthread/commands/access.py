"""`/approve` and `/deny`: answering whether a tool may do what could do harm.

`/pair`: letting in whoever was shown a code.
"""

from __future__ import annotations

from everthread.commands.context import CommandContext, CommandResult, refused
from everthread.domain.text_format import one_line

_HERE = "Nothing is asked here. At a terminal a question is answered with y or n, where it is asked."


async def approve(desk: CommandContext, code: str) -> CommandResult:
    return desk.decide(code, True) if desk.decide is not None else refused(_HERE)


async def deny(desk: CommandContext, code: str) -> CommandResult:
    return desk.decide(code, False) if desk.decide is not None else refused(_HERE)


async def pair(desk: CommandContext, code: str) -> CommandResult:
    if desk.pair is None:
        return refused("Nobody is let in from here; use `everthread pairing approve CODE` at the machine that runs me.")
    if not code:
        return refused("Usage: /pair CODE, with the code that was shown to whoever wants in.")
    guest = await desk.pair(code)
    name = f" ({one_line(guest.name)})" if guest.name else ""
    return CommandResult(f"{guest.account}{name} may write to me now, and is told so.", posts=True)
