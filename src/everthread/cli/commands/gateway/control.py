"""Starting and ending a gateway from another process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

from everthread.cli.commands.gateway import lock as holding
from everthread.cli.commands.gateway import report as reporting
from everthread.cli.commands.gateway import systemd
from everthread.cli.commands.gateway.lock import Held, Seen
from everthread.cli.exit_codes import REFUSED
from everthread.cli.output import bar
from everthread.config.settings import Settings
from everthread.domain.errors import Busy, EverthreadError, NotFound

START_S_MAX = 60.0
STOP_S_MORE = 5.0
"""How long after its bound a gateway is waited for."""
_LOOK_S = 0.05
_SURE_S = 0.1
_SAID_CHARS_MAX = 500


class NotStarted(EverthreadError):
    """A gateway that was started has ended. `code` is its exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def start(settings: Settings, home: str | None) -> Held:
    """Have a gateway running: systemd's, if it is installed there, else a process of its own. Who it is then.

    `home` is the one that was named, if one was. Raises `Busy` if a gateway is there already.
    """
    seen = holding.look(settings.home)
    if seen.running:
        raise Busy(
            f"a gateway serves this home already ({holding.who(seen.by)}); everthread gateway restart begins anew"
        )
    if systemd.is_installed(settings):
        systemd.ask("start", systemd.NAME)
        return _until_up(settings.home, lambda: None)
    process = _detached(settings.home, home)
    return _until_up(settings.home, process.poll)


def stop(settings: Settings) -> Held | None:
    """End the gateway of this home; who it was. Raises `NotFound` if there is none, `Busy` if it takes too long."""
    seen = holding.look(settings.home)
    bound_s = settings.gateway.drain_s + STOP_S_MORE
    by_systemd = systemd.is_installed(settings) and systemd.is_active()
    if not seen.running and not by_systemd:
        raise NotFound("no gateway serves this home; everthread gateway start begins one")
    if by_systemd:
        systemd.ask("stop", systemd.NAME)
    if holding.look(settings.home).running:
        seen = _told_to_end(settings.home)
    if not _comes_true("Stopping", lambda: not holding.look(settings.home).running, bound_s):
        raise Busy(
            f"the gateway has not ended within {bound_s:g} s ({holding.who(seen.by)}); try again, or see its log"
        )
    return seen.by


def _told_to_end(home: Path) -> Seen:
    """Send the signal to the process that holds the lock, and to no other.

    A handle on the process is taken first. Whoever holds the lock after that was alive all the while, so that its
    number was not given to another.
    """
    deadline = time.monotonic() + holding.TAKE_S_MAX
    while (seen := holding.look(home)).running and time.monotonic() < deadline:
        by = seen.by
        if by is None:
            time.sleep(_LOOK_S)
            continue
        if by.namespace and by.namespace != holding.namespace():
            raise Busy(f"the gateway runs in another container (as {by.pid} there); stop it where it was started")
        try:
            with _handle(by.pid) as send:
                # One that has just taken the lock may not have said so yet.
                time.sleep(_SURE_S)
                if holding.look(home) == seen:
                    send(signal.SIGTERM)
                    return seen
        except ProcessLookupError:
            time.sleep(_LOOK_S)
        except PermissionError as error:
            raise Busy(f"the gateway is somebody else's ({holding.who(by)}); stop it as they") from error
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


def _detached(home: Path, named: str | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "everthread", *(["--home", named] if named else []), "gateway", "run"]
    said = _said_path(home)
    said.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, close_fds=True
        )
    finally:
        os.close(file)


def _until_up(home: Path, ended: Callable[[], int | None]) -> Held:
    """Wait until it serves; raises if it has ended instead."""
    up: Held | None = None

    def is_up() -> bool:
        nonlocal up
        by = holding.look(home).by
        if by is not None and reporting.read(home, by.holder) is not None:
            up = by
        return up is not None or ended() is not None

    if not _comes_true("Starting", is_up, START_S_MAX):
        raise Busy(f"the gateway is not up after {START_S_MAX:g} s; everthread gateway status shows how it gets on")
    if up is None:
        raise NotStarted(f"the gateway has ended: {_last_words(home)}", ended() or REFUSED)
    return up


def _said_path(home: Path) -> Path:
    return home / "logs" / "gateway.out"


def _last_words(home: Path) -> str:
    try:
        lines = _said_path(home).read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].removeprefix("everthread: ")[:_SAID_CHARS_MAX] if lines else "everthread logs may say why"


def _comes_true(label: str, condition: Callable[[], bool], bound_s: float) -> bool:
    begun = shown = time.monotonic()
    with bar(label, int(bound_s * 1000)) as advance:
        while not condition():
            now = time.monotonic()
            if now - begun > bound_s:
                return False
            advance(int((now - shown) * 1000))
            shown = now
            time.sleep(_LOOK_S)
    return True
