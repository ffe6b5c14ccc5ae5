"""The status report that a running gateway writes to a file every few seconds, for `gateway status` and `doctor`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from everthread.gateway.server import Gateway

log = logging.getLogger("everthread.gateway")

FILE = "gateway.json"
INTERVAL_S = 2.0


class PlatformReport(msgspec.Struct, frozen=True):
    up: bool
    problem: str = ""


class GatewayReport(msgspec.Struct, frozen=True):
    """The state of a gateway at one moment. A report whose `holder` does not hold the lock is stale."""

    holder: str
    at: float
    platforms: Mapping[str, PlatformReport] = {}
    taken: int = 0
    answered: int = 0
    turned_away: int = 0
    running_turns: int = 0
    loop_stall_ms_max: float = 0.0
    draining: bool = False
    lane_restarts: int = 0
    lanes_problem: str = ""


def make_report(gateway: Gateway, holder: str) -> GatewayReport:
    return GatewayReport(
        holder,
        gateway.clock.now(),
        {name: PlatformReport(state.up, "" if state.up else state.problem) for name, state in gateway.states.items()},
        gateway.inbound.accepted,
        gateway.worker.answered,
        gateway.inbound.rejected,
        gateway.worker.running,
        round(gateway.loop_lag.longest_s * 1000, 1),
        gateway.draining,
        gateway.lane_restarts,
        gateway.delivery_problem,
    )


def write_report(home: Path, report: GatewayReport) -> None:
    """Write the report atomically. A failure is logged: a full disk must not stop the gateway."""
    draft = home / f".{FILE}.{os.getpid()}"
    try:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, msgspec.json.encode(report))
        finally:
            os.close(file)
        os.replace(draft, home / FILE)
    except OSError as error:
        log.warning("could not write the status report: %s", error)
        draft.unlink(missing_ok=True)


def read_report(home: Path, holder: str) -> GatewayReport | None:
    """Return the last report of this holder, if there is one."""
    try:
        report = msgspec.json.decode((home / FILE).read_bytes(), type=GatewayReport)
    except (OSError, msgspec.MsgspecError):
        return None
    return report if report.holder == holder else None


def remove_report(home: Path) -> None:
    (home / FILE).unlink(missing_ok=True)
