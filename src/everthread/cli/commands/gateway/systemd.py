"""The gateway as a systemd service: write its unit, call systemctl, and send notifications (sd_notify)."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from everthread.cli.exit_codes import CONFIGURATION
from everthread.config.environment import user_units
from everthread.config.schema import Settings
from everthread.domain.errors import AlreadyExists, BadInput, EverthreadError

READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"
NAME = "everthread-gateway.service"
SYSTEM_FOLDER = "/etc/systemd/system"
_HOME = "X-Everthread-Home="
_TIMEOUT_S = 30.0


class NoSystemd(EverthreadError):
    """systemd is missing or does not manage services of this user."""


def unit(settings: Settings, user: str = "") -> str:
    """Return the text of the unit. `user` is given for a system service only."""
    places, command = _places(settings)
    lines = [
        "[Unit]",
        "Description=Everthread gateway",
        f"{_HOME}{_one_line(settings.home)}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=notify",
        *([f"User={user}"] if user else []),
        *places,
        f"ExecStart={' '.join(map(_word, [sys.executable, '-P', '-m', 'everthread', *command, 'gateway', 'run']))}",
        "Restart=on-failure",
        "RestartSec=5",
        f"RestartPreventExitStatus={CONFIGURATION}",
        "TimeoutStartSec=120",
        # Two seconds more than a shutdown takes. A kill after that loses nothing.
        f"TimeoutStopSec={settings.gateway.drain_s + 3:g}",
        "WatchdogSec=60",
        "UMask=0077",
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if user else 'default.target'}",
    ]
    return "\n".join(lines) + "\n"


def path() -> Path:
    return user_units() / NAME


def is_installed(settings: Settings) -> bool:
    """Tell if the unit is installed for this home."""
    return _home_in(path()) == _one_line(settings.home)


def install(settings: Settings) -> Path:
    """Write and enable the unit. Raises `NoSystemd`, or `AlreadyExists` if the unit of another home is installed."""
    _need_systemd()
    file, text = path(), unit(settings)
    other = _home_in(file)
    if file.exists() and other != _one_line(settings.home):
        raise AlreadyExists(f"{file} already exists, for {other or 'something else'}; remove it first")
    from everthread.config.edit import replace_file

    replace_file(file, text)
    call("daemon-reload")
    call("enable", NAME)
    return file


def call(*words: str) -> None:
    """Run systemctl. Raises `NoSystemd` with its message if it fails."""
    done = _systemctl(*words)
    if done.returncode:
        raise NoSystemd(f"systemctl --user {' '.join(words)}: {_message(done) or 'failed'}")


def is_active() -> bool:
    """Tell if the service is running, starting or stopping."""
    return shutil.which("systemctl") is not None and _systemctl("is-active", NAME).stdout.strip() in (
        "active",
        "activating",
        "reloading",
        "deactivating",
    )


def _need_systemd() -> None:
    if shutil.which("systemctl") is None:
        raise NoSystemd(
            "no systemd on this machine; run the gateway with everthread gateway start, or print the unit for another "
            "machine with install --print"
        )
    done = _systemctl("show-environment")
    if done.returncode:
        raise NoSystemd(
            f"systemd does not manage services of your user ({_message(done) or 'systemctl --user failed'}); run the "
            "gateway with everthread gateway start, or see install --system"
        )


def _message(done: subprocess.CompletedProcess[str]) -> str:
    return next(iter((done.stderr or done.stdout).strip().splitlines()), "")


def _systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["systemctl", "--user", *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoSystemd(f"systemctl --user {' '.join(words)}: no answer within {_TIMEOUT_S:g} s; try again") from error
    except OSError as error:
        raise NoSystemd(f"could not run systemctl: {error.strerror}") from error


def _home_in(file: Path) -> str | None:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.removeprefix(_HOME) for line in lines if line.startswith(_HOME)), None)


def _places(settings: Settings) -> tuple[list[str], list[str]]:
    """Return the Environment lines and options that make the service use the same files.

    `--home` implies that the configuration is in the home, so it is given only if that is so.
    """
    home = settings.home
    if {settings.config_path.parent, settings.env_path.parent, settings.mcp_path.parent} <= {home}:
        return [], ["--home", str(home)]
    outside = next(p.parent for p in (settings.config_path, settings.env_path, settings.mcp_path) if p.parent != home)
    lines = [f"Environment={_quote(f'XDG_CONFIG_HOME={outside.parent}')}"]
    if home.name == "everthread":
        lines.append(f"Environment={_quote(f'XDG_DATA_HOME={home.parent}')}")
    return lines, []


def _word(word: str) -> str:
    """Quote a word of ExecStart, where a dollar starts a variable."""
    return _quote(word.replace("$", "$$"))


def _quote(text: str) -> str:
    """Quote a value by the rules of systemd."""
    escaped = _one_line(text).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if any(c in escaped for c in " \t'\"\\;") or not escaped else escaped


def _one_line(text: str | Path) -> str:
    if any(ord(char) < 32 for char in str(text)):
        raise BadInput(f"{str(text)!r} has control characters and does not fit into a unit; use another home")
    return str(text)


def notify(address: str | None, state: str) -> None:
    """Send a state to the socket of systemd, if there is one. Errors are ignored."""
    if not address:
        return
    name = f"\0{address[1:]}" if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
        to.setblocking(False)
        to.sendto(state.encode(), name)
