"""What a gateway says of itself now and then, in a file beside its lock, for whoever asks how it is."""

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
EVERY_S = 2.0


class PlatformReport(msgspec.Struct, frozen=True):
    up: bool
    problem: str = ""


class Report(msgspec.Struct, frozen=True):
    """As of some moment. `holder` is who wrote it: one that does not hold the lock is of no interest any more."""

    holder: str
    at: float
    platforms: Mapping[str, PlatformReport] = {}
    taken: int = 0
    answered: int = 0
    turned_away: int = 0
    running_turns: int = 0
    loop_stall_ms_max: float = 0.0
    draining: bool = False


def report_of(gateway: Gateway, holder: str) -> Report:
    return Report(
        holder,
        gateway.clock.now(),
        {name: PlatformReport(state.up, "" if state.up else state.problem) for name, state in gateway.states.items()},
        gateway.reception.taken,
        gateway.working.answered,
        gateway.reception.turned_away,
        gateway.working.running,
        round(gateway.stalls.longest_s * 1000, 1),
        gateway.draining,
    )


def write(home: Path, report: Report) -> None:
    """Whole or not at all. A disk that is full must not disturb what is reported on."""
    draft = home / f".{FILE}.{os.getpid()}"
    try:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, msgspec.json.encode(report))
        finally:
            os.close(file)
        os.replace(draft, home / FILE)
    except OSError as error:
        log.warning("how the gateway is can't be written down: %s", error)
        draft.unlink(missing_ok=True)


def read(home: Path, holder: str) -> Report | None:
    """What that gateway has said last, if anything."""
    try:
        report = msgspec.json.decode((home / FILE).read_bytes(), type=Report)
    except (OSError, msgspec.MsgspecError):
        return None
    return report if report.holder == holder else None


def remove(home: Path) -> None:
    (home / FILE).unlink(missing_ok=True)
