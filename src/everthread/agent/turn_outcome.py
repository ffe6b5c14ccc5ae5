"""The outcome of a turn's steps: an answer, or the part of one and the reason why it ended early."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from msgspec import Struct

from everthread.agent.turn_options import TurnLimits, TurnOptions
from everthread.agent.turn_state import RunningTurn
from everthread.concurrency import ignore_exception
from everthread.domain.errors import EverthreadError, Fenced, ModelError, StoreError
from everthread.domain.text_format import REFERENCE_CHARS, guest_error
from everthread.lifecycle import TurnClaim
from everthread.log_context import log_fields

log = logging.getLogger("everthread.agent")

STOP_S_MAX = 5.0
"""Steps that ignore their cancellation for longer are abandoned."""
INTERNAL_ERROR = "internal error"


class TurnOutcome(Struct, frozen=True):
    text: str
    """The answer, or the part of it that was written."""
    problem: str
    error: Exception | None = None
    complete: bool = False
    reply: str = ""
    """Sent to a platform if there is no text, in place of the problem."""


async def outcome_of(
    turn: RunningTurn, steps: Coroutine[Any, Any, str], limits: TurnLimits, options: TurnOptions
) -> TurnOutcome:
    """Run the steps in a task of their own until they end, the turn is stopped or its time is up.

    Raises `StoreError` and `Fenced`: after either, nothing can be committed.
    """
    turn.task = task = asyncio.ensure_future(steps)
    task.add_done_callback(ignore_exception)
    try:
        await asyncio.wait({task, turn.stop_requested}, timeout=limits.turn_s, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            if not turn.stop_reason:
                turn.stop(f"stopped after {limits.turn_s:g} s, the limit of a turn ({limits.section}.turn_s)")
            await asyncio.wait({task}, timeout=STOP_S_MAX)
    finally:
        task.cancel()
    written = "".join(turn.progress.writing)
    if not task.done() or task.cancelled():
        return TurnOutcome(written, turn.stop_reason or "stopped")
    error = task.exception()
    if error is None:
        return TurnOutcome(task.result(), turn.note, complete=True)
    if isinstance(error, StoreError | Fenced):
        raise error
    return _failure(turn.claim, written, error, options)


def _failure(claim: TurnClaim, written: str, error: BaseException, options: TurnOptions) -> TurnOutcome:
    if isinstance(error, ModelError):
        reference = claim.turn_id[-REFERENCE_CHARS:]
        log.warning("the model did not answer: %s", error, extra={**claim_fields(claim), "reference": reference})
        reply = guest_error(error.plain, reference) if options.is_guest(claim.ref.owner) else ""
        return TurnOutcome(written, str(error), error, reply=reply)
    if isinstance(error, EverthreadError):
        return TurnOutcome(written, str(error), error)
    log.error("turn %s failed", claim.turn_id, exc_info=error, extra=claim_fields(claim))
    # Do not send an unexpected exception to a platform: its text may contain anything.
    return TurnOutcome(written, f"{INTERNAL_ERROR}: {error!r}", reply=INTERNAL_ERROR)


def claim_fields(claim: TurnClaim) -> dict[str, str]:
    """Structured log fields of a turn."""
    ref = claim.ref
    return log_fields(ref.key, ref.session_id, claim.turn_id, ref.owner)
