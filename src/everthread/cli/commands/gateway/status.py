"""How a gateway is: what its lock says, what it reports of itself, and what waits in the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from everthread.cli import output as show
from everthread.cli.commands.gateway import lock as holding
from everthread.cli.commands.gateway import report as reporting
from everthread.cli.commands.gateway.lock import Seen
from everthread.cli.commands.gateway.report import Report
from everthread.cli.context import CliContext, CliRuntime
from everthread.domain.model import ReplyState

COUNTED_MAX = 10_000
_HERE = ("cli", "delegation")
"""What is said there does not go through a gateway."""


class Waiting(Struct, frozen=True):
    """What stands in the store for a gateway, whether one runs or not."""

    conversations: int = 0
    """Where something waits to be answered."""
    replies: int = 0
    ambiguous: int = 0
    failed: int = 0
    lag: int = 0
    """Entries that memory providers have not been told of yet."""


class State(Struct, frozen=True):
    seen: Seen
    report: Report | None
    waiting: Waiting


def of(invocation: CliContext) -> State:
    home = invocation.settings.home
    return invocation.look(lambda runtime: at(home, runtime), nothing=State(*_seen(home), Waiting()))


async def at(home: Path, runtime: CliRuntime) -> State:
    return State(*_seen(home), await _waiting_in(runtime))


def _seen(home: Path) -> tuple[Seen, Report | None]:
    seen = holding.look(home)
    return seen, reporting.read(home, seen.by.holder) if seen.by is not None else None


async def _waiting_in(runtime: CliRuntime) -> Waiting:
    store = runtime.store

    async def count(*states: ReplyState) -> int:
        found = await store.read(lambda uow: [uow.outbox.replies(state, COUNTED_MAX) for state in states])
        return sum(1 for replies in found for reply in replies if reply.key.platform not in _HERE)

    providers = await runtime.memory.journal.status()
    keys = await store.read(lambda uow: uow.inbox.keys_waiting())
    return Waiting(
        sum(1 for key in keys if key.platform not in _HERE),
        await count(ReplyState.READY, ReplyState.SENDING),
        await count(ReplyState.AMBIGUOUS),
        await count(ReplyState.FAILED),
        sum(provider.lanes.waiting_entries for provider in providers),
    )


def as_json(state: State) -> dict[str, Any]:
    by, report, waiting = state.seen.by, state.report, state.waiting
    return {
        "running": state.seen.running,
        "pid": by.pid if by is not None else None,
        "since": show.iso_time(by.started_at) if by is not None else None,
        "port": by.port if by is not None else None,
        "reported_at": show.iso_time(report.at) if report is not None else None,
        "draining": report.draining if report is not None else None,
        "platforms": [
            {"platform": name, "up": platform.up, "problem": platform.problem or None}
            for name, platform in (report.platforms.items() if report is not None else ())
        ],
        "taken": report.taken if report is not None else None,
        "answered": report.answered if report is not None else None,
        "turned_away": report.turned_away if report is not None else None,
        "running_turns": report.running_turns if report is not None else None,
        "loop_stall_ms_max": report.loop_stall_ms_max if report is not None else None,
        "conversations_waiting": waiting.conversations,
        "replies_waiting": waiting.replies,
        "replies_ambiguous": waiting.ambiguous,
        "replies_failed": waiting.failed,
        "journal_lag": waiting.lag,
    }


def in_words(state: State) -> Iterator[str]:
    seen, report, waiting = state.seen, state.report, state.waiting
    if not seen.running:
        yield "The gateway does not run; everthread gateway start begins it."
    else:
        ending = ", stopping" if report is not None and report.draining else ""
        port = f", HTTP on port {seen.by.port}" if seen.by is not None and seen.by.port is not None else ""
        yield f"The gateway runs ({holding.who(seen.by)}{port}{ending})."
        if report is None:
            yield "It has not reported yet."
    if report is not None:
        for name, platform in report.platforms.items():
            yield f"  {name}: {'up' if platform.up else f'down: {platform.problem}'}"
        yield (
            f"Messages: {report.taken} taken, {report.answered} answered, {report.turned_away} turned away; "
            f"{show.counted(report.running_turns, 'answer')} being written."
        )
        yield f"Longest stall: {report.loop_stall_ms_max:g} ms."
    yield (
        f"Waiting: {show.counted(waiting.conversations, 'conversation')}, "
        f"{show.counted(waiting.replies, 'reply', 'replies')}, "
        f"{show.counted(waiting.lag, 'memory entry', 'memory entries')}."
    )
    if waiting.ambiguous or waiting.failed:
        yield (
            f"Not known to have arrived: {waiting.ambiguous}; refused: {waiting.failed} (everthread doctor names those "
            "of the last day)."
        )
