"""Whether one more message is taken at all, with a conversation or without one."""

from __future__ import annotations

from everthread.commands.registry import ParsedCommand, Unknown
from everthread.gateway.inbound import NEVER_TOO_MANY
from everthread.web.errors import Refused
from everthread.web.request import Call

STOPPING = "this is being stopped; what it has taken in is answered when it is back"


def check(call: Call, found: ParsedCommand | Unknown | None = None) -> None:
    """One person's messages count together, wherever they write from. `found` is the command that it is, if any."""
    gateway = call.gateway
    if gateway.draining:
        raise stopping()
    if isinstance(found, ParsedCommand) and found.command.name in NEVER_TOO_MANY:
        return
    if (told := gateway.rates.refusal(call.caller.owner, gateway.clock.now())) is not None:
        gateway.reception.turned_away += 1
        wait = {"Retry-After": str(gateway.rates.wait_s(call.caller.owner))}
        raise Refused(429, told or "that was too much at once, and is not kept", "too_many", wait)


def stopping(headers: dict[str, str] | None = None) -> Refused:
    return Refused(503, STOPPING, "stopping", {"Retry-After": "5", **(headers or {})})
