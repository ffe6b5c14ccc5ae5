"""Health checks and Prometheus metrics."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct
from starlette.responses import Response

from everthread.domain.errors import EverthreadError
from everthread.store.cursors import LaneCount
from everthread.store.unit_of_work import UnitOfWork
from everthread.web.errors import HttpError
from everthread.web.request import ApiCall

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Health(Struct):
    status: str


async def health(call: ApiCall) -> Response:
    """Answer as long as the process is alive."""
    return Response(b'{"status":"ok"}', media_type="application/json")


async def ready(call: ApiCall) -> Response:
    """Answer 200 while messages are accepted."""
    if call.gateway.draining or call.site.stopping:
        raise HttpError(503, "this is being stopped", "stopping", {"Retry-After": "5"})
    try:
        await call.gateway.store.read_inline(lambda uow: uow.log.end())
    except EverthreadError:
        raise HttpError(503, "the store can't be read", "store_unavailable", {"Retry-After": "5"}) from None
    return Response(b'{"status":"ready"}', media_type="application/json")


class Family(Struct, frozen=True):
    """One metric with its values by label."""

    name: str
    kind: str
    help: str
    values: tuple[tuple[str, float], ...]
    """Pairs of encoded labels, empty if there are none, and a value."""


async def metrics(call: ApiCall) -> Response:
    """Write the metrics of all owners together; for the operator only."""
    if call.guest:
        raise HttpError(403, "this is for whoever runs the gateway: it counts everybody's messages", "not_yours")
    lanes = await call.gateway.store.read(_lanes)
    return Response("".join(_written(family) for family in _families(call, lanes)), media_type=_TEXT)


def _lanes(uow: UnitOfWork) -> dict[str, LaneCount]:
    return {row.name: uow.cursors.count(row.name) for row in uow.cursors.providers()}


def _families(call: ApiCall, lanes: dict[str, LaneCount]) -> Iterable[Family]:
    gateway, site = call.gateway, call.site

    def one(name: str, kind: str, help: str, value: float) -> Family:
        return Family(f"everthread_{name}", kind, help, (("", value),))

    yield one("messages_taken_total", "counter", "Messages and commands taken in.", gateway.inbound.accepted)
    yield one("messages_answered_total", "counter", "Turns that were answered.", gateway.worker.answered)
    yield one("messages_turned_away_total", "counter", "Messages of people who may not write.", _turned_away(call))
    yield one("turns_running", "gauge", "Turns that run now.", gateway.worker.running)
    yield one("keys_busy", "gauge", "Conversations in which something is done now.", gateway.worker.busy)
    yield one("replies_waiting", "gauge", "Replies that wait to be sent.", gateway.outbox.waiting)
    yield one("loop_stall_seconds_max", "gauge", "The longest that nobody was served.", gateway.loop_lag.longest_s)
    yield one("resident_memory_bytes", "gauge", "Memory of the process.", _resident())
    yield one("uptime_seconds", "gauge", "Since the gateway was started.", gateway.clock.now() - gateway.started_at)
    yield one("event_listeners", "gauge", "Who follows /api/events.", sum(site.listeners.values()))
    yield Family(
        "everthread_http_requests_total",
        "counter",
        "Requests by status.",
        tuple((_label("status", str(status)), count) for status, count in sorted(site.requests.items())),
    )
    yield Family(
        "everthread_platform_up",
        "gauge",
        "Whether a platform is connected.",
        tuple((_label("platform", name), float(state.up)) for name, state in gateway.states.items()),
    )
    yield Family(
        "everthread_journal_waiting",
        "gauge",
        "Log entries that a memory provider has not been told of.",
        tuple((_label("provider", name), count.waiting_entries) for name, count in lanes.items()),
    )
    yield Family(
        "everthread_journal_parked",
        "gauge",
        "Log entries that a memory provider has rejected.",
        tuple((_label("provider", name), count.parked) for name, count in lanes.items()),
    )


def _turned_away(call: ApiCall) -> int:
    return call.gateway.inbound.rejected


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{{{name}="{escaped}"}}'


def _written(family: Family) -> str:
    if not family.values:
        return ""
    lines = [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
    lines += [f"{family.name}{labels} {value:.15g}" for labels, value in family.values]
    return "\n".join(lines) + "\n"


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
