"""Refuse requests over the rate limit and during shutdown."""

from __future__ import annotations

from everthread.commands.registry import ParsedCommand, UnknownCommand
from everthread.gateway.inbound import UNLIMITED_COMMANDS
from everthread.web.errors import HttpError
from everthread.web.request import ApiCall

STOPPING = "this is being stopped; what it has taken in is answered when it is back"


def check(call: ApiCall, found: ParsedCommand | UnknownCommand | None = None) -> None:
    """Count one message of the caller, on all platforms together. `found` is its command, if it is one."""
    gateway = call.gateway
    if gateway.draining:
        raise stopping()
    if isinstance(found, ParsedCommand) and found.command.name in UNLIMITED_COMMANDS:
        return
    if (told := gateway.rate_limiter.refusal(call.caller.owner, gateway.clock.now())) is not None:
        gateway.inbound.rejected += 1
        wait = {"Retry-After": str(gateway.rate_limiter.wait_s(call.caller.owner))}
        raise HttpError(429, told or "that was too much at once, and is not kept", "too_many", wait)


def stopping(headers: dict[str, str] | None = None) -> HttpError:
    return HttpError(503, STOPPING, "stopping", {"Retry-After": "5", **(headers or {})})
