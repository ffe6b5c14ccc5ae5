"""Start and stop a gateway from another process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

from everthread.cli.commands.gateway import report as gateway_report
from everthread.cli.commands.gateway import systemd
from everthread.cli.commands.gateway.lock import (
    ACQUIRE_S_MAX,
    LockHolder,
    LockState,
    describe_holder,
    pid_namespace,
    read_lock,
)
from everthread.cli.exit_codes import REFUSED
from everthread.cli.output import progress_bar
from everthread.config.schema import Settings
from everthread.domain.errors import Busy, EverthreadError, NotFound

START_S_MAX = 60.0
STOP_S_MORE = 5.0
"""Grace period beyond the gateway's own shutdown limit."""
_POLL_S = 0.05
_SETTLE_S = 0.1
_MESSAGE_CHARS_MAX = 500


class GatewayNotStarted(EverthreadError):
    """The started gateway has exited. `code` is its exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def start(settings: Settings, home: str | None) -> LockHolder:
    """Start a gateway, by systemd if its unit is installed, else as a detached process. Return its lock holder.

    `home` is the value of --home, if given. Raises `Busy` if a gateway is running already.
    """
    seen = read_lock(settings.home)
    if seen.running:
        raise Busy(
            f"a gateway is already running for this home ({describe_holder(seen.by)}); restart it with "
            "everthread gateway restart"
        )
    if systemd.is_installed(settings):
        systemd.call("start", systemd.NAME)
        return _until_up(settings.home, lambda: None)
    process = _spawn(settings.home, home)
    return _until_up(settings.home, process.poll)


def stop(settings: Settings) -> LockHolder | None:
    """Stop the gateway of this home and return its holder. Raises `NotFound` if none runs, `Busy` on a timeout."""
    seen = read_lock(settings.home)
    bound_s = settings.gateway.drain_s + STOP_S_MORE
    by_systemd = systemd.is_installed(settings) and systemd.is_active()
    if not seen.running and not by_systemd:
        raise NotFound("no gateway is running for this home; start one with everthread gateway start")
    if by_systemd:
        systemd.call("stop", systemd.NAME)
    if read_lock(settings.home).running:
        seen = _terminate(settings.home)
    if not _wait_for("Stopping", lambda: not read_lock(settings.home).running, bound_s):
        raise Busy(
            f"the gateway did not stop within {bound_s:g} s ({describe_holder(seen.by)}); try again, or see "
            "everthread logs"
        )
    return seen.by


def _terminate(home: Path) -> LockState:
    """Send SIGTERM to the process that holds the lock, and to no other.

    Open a pidfd first, then read the lock again. A process that still holds the lock was alive all the while, so its
    id was not reused.
    """
    deadline = time.monotonic() + ACQUIRE_S_MAX
    while (seen := read_lock(home)).running and time.monotonic() < deadline:
        by = seen.by
        if by is None:
            time.sleep(_POLL_S)
            continue
        if by.namespace and by.namespace != pid_namespace():
            raise Busy(f"the gateway runs in another container (process {by.pid} there); stop it there")
        try:
            with _handle(by.pid) as send:
                # A new holder may not have written its name yet.
                time.sleep(_SETTLE_S)
                if read_lock(home) == seen:
                    send(signal.SIGTERM)
                    return seen
        except ProcessLookupError:
            time.sleep(_POLL_S)
        except PermissionError as error:
            raise Busy(f"the gateway runs as another user ({describe_holder(by)}); stop it as that user") from error
    return seen


@contextlib.contextmanager
def _handle(pid: int) -> Generator[Callable[[signal.Signals], None]]:
    if not hasattr(os, "pidfd_open"):
        yield lambda number: os.kill(pid, number)
        return
    process = os.pidfd_open(pid)
    try:
        yield lambda number: signal.pidfd_send_signal(process, number)
    finally:
        os.close(process)


def _spawn(home: Path, named: str | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "everthread", *(["--home", named] if named else []), "gateway", "run"]
    output = _output_path(home)
    output.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Appended to, because a request to forget empties the file meanwhile.
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, close_fds=True
        )
    finally:
        os.close(file)


def _until_up(home: Path, ended: Callable[[], int | None]) -> LockHolder:
    """Wait until the gateway has written a report. Raises `GatewayNotStarted` if it exits instead."""
    up: LockHolder | None = None

    def is_up() -> bool:
        nonlocal up
        by = read_lock(home).by
        if by is not None and gateway_report.read_report(home, by.holder) is not None:
            up = by
        return up is not None or ended() is not None

    if not _wait_for("Starting", is_up, START_S_MAX):
        raise Busy(f"the gateway is not up after {START_S_MAX:g} s; check everthread gateway status")
    if up is None:
        raise GatewayNotStarted(f"the gateway exited: {_last_line(home)}", ended() or REFUSED)
    return up


def _output_path(home: Path) -> Path:
    return home / "logs" / "gateway.out"


def _last_line(home: Path) -> str:
    try:
        lines = _output_path(home).read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].removeprefix("everthread: ")[:_MESSAGE_CHARS_MAX] if lines else "see everthread logs"


def _wait_for(label: str, condition: Callable[[], bool], bound_s: float) -> bool:
    started = shown = time.monotonic()
    with progress_bar(label, int(bound_s * 1000)) as advance:
        while not condition():
            now = time.monotonic()
            if now - started > bound_s:
                return False
            advance(int((now - shown) * 1000))
            shown = now
            time.sleep(_POLL_S)
    return True
