"""The status of a gateway: its lock, its last report, and the work queued for it in the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from everthread.cli.commands.gateway import report as gateway_report
from everthread.cli.commands.gateway.lock import LockState, describe_holder, describe_http, read_lock
from everthread.cli.commands.gateway.report import GatewayReport
from everthread.cli.context import CliContext, CliRuntime
from everthread.cli.output import iso_time
from everthread.domain.model import ReplyState
from everthread.domain.text_format import pluralize

COUNTED_MAX = 10_000
_COUNTERS = ("taken", "answered", "turned_away", "running_turns", "loop_stall_ms_max")
"""Fields of a report that are printed with their names."""
_LOCAL_PLATFORMS = ("cli", "delegation")
"""Platforms that are not served by a gateway."""


class QueuedWork(Struct, frozen=True):
    """Work in the store for a gateway, whether one runs or not."""

    conversations: int = 0
    """Conversations with unanswered messages."""
    replies: int = 0
    ambiguous: int = 0
    failed: int = 0
    lag: int = 0
    """Log entries not yet delivered to memory providers."""


class GatewayStatus(Struct, frozen=True):
    seen: LockState
    report: GatewayReport | None
    waiting: QueuedWork


def read_status(cli: CliContext) -> GatewayStatus:
    home = cli.settings.home
    return cli.read(lambda runtime: status_at(home, runtime), default=GatewayStatus(*_read_files(home), QueuedWork()))


async def status_at(home: Path, runtime: CliRuntime) -> GatewayStatus:
    return GatewayStatus(*_read_files(home), await _count_queued(runtime))


def _read_files(home: Path) -> tuple[LockState, GatewayReport | None]:
    seen = read_lock(home)
    return seen, gateway_report.read_report(home, seen.by.holder) if seen.by is not None else None


async def _count_queued(runtime: CliRuntime) -> QueuedWork:
    store = runtime.store

    async def count(*states: ReplyState) -> int:
        found = await store.read(lambda uow: [uow.outbox.replies(state, COUNTED_MAX) for state in states])
        return sum(1 for replies in found for reply in replies if reply.key.platform not in _LOCAL_PLATFORMS)

    providers = await runtime.memory.journal.status()
    keys = await store.read(lambda uow: uow.inbox.keys_waiting())
    return QueuedWork(
        sum(1 for key in keys if key.platform not in _LOCAL_PLATFORMS),
        await count(ReplyState.READY, ReplyState.SENDING),
        await count(ReplyState.AMBIGUOUS),
        await count(ReplyState.FAILED),
        sum(provider.lanes.waiting_entries for provider in providers),
    )


def status_as_json(state: GatewayStatus) -> dict[str, Any]:
    by, report, waiting = state.seen.by, state.report, state.waiting
    return {
        "running": state.seen.running,
        "pid": by.pid if by is not None else None,
        "since": iso_time(by.started_at) if by is not None else None,
        "port": by.port if by is not None else None,
        "socket": by.socket if by is not None else None,
        "reported_at": iso_time(report.at) if report is not None else None,
        "draining": report.draining if report is not None else None,
        "platforms": [
            {"platform": name, "up": platform.up, "problem": platform.problem or None}
            for name, platform in (report.platforms.items() if report is not None else ())
        ],
        **{name: getattr(report, name, None) for name in _COUNTERS},
        "conversations_waiting": waiting.conversations,
        "replies_waiting": waiting.replies,
        "replies_ambiguous": waiting.ambiguous,
        "replies_failed": waiting.failed,
        "journal_lag": waiting.lag,
    }


def status_lines(state: GatewayStatus) -> Iterator[str]:
    seen, report, waiting = state.seen, state.report, state.waiting
    if not seen.running:
        yield "No gateway is running. Start it with everthread gateway start."
    else:
        ending = ", stopping" if report is not None and report.draining else ""
        http = describe_http(seen.by)
        yield f"The gateway is running ({describe_holder(seen.by)}{f', {http}' if http else ''}{ending})."
        if report is None:
            yield "No status report yet."
    if report is not None:
        for name, platform in report.platforms.items():
            yield f"  {name}: {'up' if platform.up else f'down: {platform.problem}'}"
        yield (
            f"Messages: {report.taken} received, {report.answered} answered, {report.turned_away} rejected; "
            f"{pluralize(report.running_turns, 'turn')} running."
        )
        yield f"Longest event loop stall: {report.loop_stall_ms_max:g} ms."
    yield (
        f"Waiting: {pluralize(waiting.conversations, 'conversation')}, "
        f"{pluralize(waiting.replies, 'reply', 'replies')}, "
        f"{pluralize(waiting.lag, 'memory entry', 'memory entries')}."
    )
    if waiting.ambiguous or waiting.failed:
        yield (
            f"Replies with unknown delivery: {waiting.ambiguous}; failed: {waiting.failed} (everthread doctor lists "
            "those of the last day)."
        )
