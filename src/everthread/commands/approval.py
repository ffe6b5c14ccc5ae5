"""`/approve`, `/deny`: decide on a tool call. `/pair`: give a user access by pairing code."""

from __future__ import annotations

from everthread.commands.context import CommandContext, CommandResult, fail
from everthread.domain.text_format import one_line

_IN_TERMINAL = "No tool call waits for approval here. In a terminal, answer the question with y or n."


async def approve(context: CommandContext, code: str) -> CommandResult:
    return context.decide(code, True) if context.decide is not None else fail(_IN_TERMINAL)


async def deny(context: CommandContext, code: str) -> CommandResult:
    return context.decide(code, False) if context.decide is not None else fail(_IN_TERMINAL)


async def pair(context: CommandContext, code: str) -> CommandResult:
    if context.pair is None:
        return fail("You can't pair users from here. Run `everthread pairing approve CODE` on the machine I run on.")
    if not code:
        return fail("Usage: /pair CODE, with the code that the new user was shown.")
    guest = await context.pair(code)
    name = f" ({one_line(guest.name)})" if guest.name else ""
    return CommandResult(f"{guest.account}{name} has access now and was notified.", wrote_outbox=True)
