"""Health checks and Prometheus metrics."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from starlette.responses import Response

from everthread.domain.errors import EverthreadError
from everthread.store.cursors import LaneCount
from everthread.store.unit_of_work import UnitOfWork
from everthread.web.errors import HttpError, stopping
from everthread.web.request import ApiCall
from everthread.web.responses import json_response

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Health(Struct):
    status: str


async def health(call: ApiCall) -> Response:
    """Check that the process is alive."""
    return json_response(Health("ok"))


async def ready(call: ApiCall) -> Response:
    """Check that messages are accepted."""
    if call.gateway.draining or call.state.is_stopping:
        raise stopping()
    try:
        await call.gateway.store.read_inline(lambda uow: uow.log.end())
    except EverthreadError:
        raise HttpError(503, "The store cannot be read.", "store_unavailable", {"Retry-After": "5"}) from None
    if call.gateway.store.damage:
        raise HttpError(503, "The store is damaged and is not written. See everthread doctor.", "store_damaged")
    if call.gateway.delivery_problem:
        raise HttpError(
            503, "Background delivery has stopped and is being restarted.", "delivery_stopped", {"Retry-After": "5"}
        )
    return json_response(Health("ready"))


async def metrics(call: ApiCall) -> Response:
    """Get Prometheus metrics of all owners together; only with a token of the machine's owner."""
    if call.is_guest:
        raise HttpError(403, "Only the owner of this machine may read the metrics.", "not_yours")
    lanes = await call.gateway.store.read(_count_lanes)
    return Response("".join(_families(call, lanes)), media_type=_TEXT)


def _count_lanes(uow: UnitOfWork) -> dict[str, LaneCount]:
    return {row.name: uow.cursors.count(row.name) for row in uow.cursors.providers()}


def _families(call: ApiCall, lanes: dict[str, LaneCount]) -> Iterable[str]:
    gateway, state, worker = call.gateway, call.state, call.gateway.worker
    waiting = {name: count.waiting_entries for name, count in lanes.items()}
    parked = {name: count.parked for name, count in lanes.items()}
    connected = {name: platform.up for name, platform in gateway.states.items()}
    yield _family("messages_taken_total", "counter", "Stored messages and commands.", gateway.inbound.accepted)
    yield _family("messages_answered_total", "counter", "Answered turns.", worker.answered)
    yield _family("messages_turned_away_total", "counter", "Messages that were rejected.", gateway.inbound.rejected)
    yield _family("updates_failed_total", "counter", "Updates whose handling failed.", gateway.inbound.failed)
    yield _family("lane_restarts_total", "counter", "Restarts of background delivery.", gateway.lane_restarts)
    yield _family("turns_running", "gauge", "Running turns.", worker.running)
    yield _family("keys_busy", "gauge", "Conversations that are being served.", worker.busy)
    yield _family("replies_waiting", "gauge", "Replies that wait to be sent.", gateway.outbox.waiting)
    yield _family(
        "loop_stall_seconds_max", "gauge", "Longest time the event loop was blocked.", gateway.loop_lag.longest_s
    )
    yield _family("resident_memory_bytes", "gauge", "Memory of the process.", _resident_bytes())
    yield _family("uptime_seconds", "gauge", "Time since the gateway was started.", gateway.uptime_s)
    yield _family("event_listeners", "gauge", "Open streams of /api/events.", sum(state.listeners.values()))
    yield _family(
        "http_requests_total", "counter", "Requests by status.", dict(sorted(state.requests.items())), "status"
    )
    yield _family("authentication_failures_total", "counter", "Failed authentications.", state.auth_failures.count)
    yield _family("platform_up", "gauge", "1 if the platform is connected.", connected, "platform")
    yield _family("journal_waiting", "gauge", "Log entries to deliver to a memory provider.", waiting, "provider")
    yield _family("journal_parked", "gauge", "Log entries that a memory provider has rejected.", parked, "provider")


def _family(name: str, kind: str, help: str, value: float | Mapping[Any, float], label: str = "") -> str:
    """Write one metric; with a label, a value for each of its values."""
    values = {_label(label, str(of)): one for of, one in value.items()} if isinstance(value, Mapping) else {"": value}
    if not values:
        return ""
    lines = [f"# HELP everthread_{name} {help}", f"# TYPE everthread_{name} {kind}"]
    lines += [f"everthread_{name}{labels} {one:.15g}" for labels, one in values.items()]
    return "\n".join(lines) + "\n"


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{{{name}="{escaped}"}}'


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
