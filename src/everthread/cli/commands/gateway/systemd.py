"""The gateway as a service of systemd: its unit, and asking systemd for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from everthread.cli.exit_codes import CONFIGURATION
from everthread.config.environment import user_units
from everthread.config.settings import Settings
from everthread.domain.errors import AlreadyThere, BadInput, EverthreadError

NAME = "everthread-gateway.service"
SYSTEM_FOLDER = "/etc/systemd/system"
_HOME = "X-Everthread-Home="
_ASK_S = 30.0


class NoSystemd(EverthreadError):
    """There is no systemd that starts a user's services."""


def unit(settings: Settings, user: str = "") -> str:
    """The unit's text; for a service of the whole system, `user` is whose it is."""
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
        f"ExecStart={' '.join(map(_word, [sys.executable, '-m', 'everthread', *command, 'gateway', 'run']))}",
        "Restart=on-failure",
        "RestartSec=5",
        f"RestartPreventExitStatus={CONFIGURATION}",
        "TimeoutStartSec=120",
        # Two seconds more than it ever takes; then it is killed, which loses nothing either.
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
    """Whether the unit is there, and is for this home."""
    return _home_in(path()) == _one_line(settings.home)


def install(settings: Settings) -> Path:
    """Write the unit and have it started with the system. Raises `NoSystemd`, or `AlreadyThere` for another home's."""
    _need_systemd()
    file, text = path(), unit(settings)
    there = _home_in(file)
    if file.exists() and there != _one_line(settings.home):
        raise AlreadyThere(f"{file} is there already, for {there or 'something else'}; remove it first")
    from everthread.config.edit import replace_file

    replace_file(file, text)
    ask("daemon-reload")
    ask("enable", NAME)
    return file


def ask(*words: str) -> None:
    """Have systemd do something. Raises `NoSystemd` with what it says if it does not."""
    done = _systemctl(*words)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NoSystemd(f"systemctl --user {' '.join(words)}: {said[0] if said else 'it failed'}")


def is_active() -> bool:
    """Whether systemd has it running, starting or stopping."""
    return shutil.which("systemctl") is not None and _systemctl("is-active", NAME).stdout.strip() in (
        "active",
        "activating",
        "reloading",
        "deactivating",
    )


def _need_systemd() -> None:
    if shutil.which("systemctl") is None:
        raise NoSystemd(
            "there is no systemd on this machine; everthread gateway start runs it without, "
            "install --print shows the unit for elsewhere"
        )
    done = _systemctl("show-environment")
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NoSystemd(
            f"no systemd answers for you here ({said[0] if said else 'systemctl --user failed'}); everthread gateway "
            "start runs it without, install --system shows how to install it for the whole machine"
        )


def _systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["systemctl", "--user", *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoSystemd(f"systemctl --user {' '.join(words)}: no answer within {_ASK_S:g} s; try again") from error
    except OSError as error:
        raise NoSystemd(f"systemctl can't be run: {error.strerror}") from error


def _home_in(file: Path) -> str | None:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.removeprefix(_HOME) for line in lines if line.startswith(_HOME)), None)


def _places(settings: Settings) -> tuple[list[str], list[str]]:
    """How the service finds the same files: a home that is named holds them all, so it is not, if it does not."""
    home = settings.home
    if {settings.config_path.parent, settings.env_path.parent, settings.mcp_path.parent} <= {home}:
        return [], ["--home", str(home)]
    outside = next(p.parent for p in (settings.config_path, settings.env_path, settings.mcp_path) if p.parent != home)
    said = [f"Environment={_quoted(f'XDG_CONFIG_HOME={outside.parent}')}"]
    if home.name == "everthread":
        said.append(f"Environment={_quoted(f'XDG_DATA_HOME={home.parent}')}")
    return said, []


def _word(word: str) -> str:
    """A word of a command, where a dollar begins a variable."""
    return _quoted(word.replace("$", "$$"))


def _quoted(text: str) -> str:
    """As systemd reads it back."""
    escaped = _one_line(text).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if any(c in escaped for c in " \t'\"\\;") or not escaped else escaped


def _one_line(text: str | Path) -> str:
    if any(ord(char) < 32 for char in str(text)):
        raise BadInput(f"{str(text)!r} can't be written into a unit; use a home whose name is on one line")
    return str(text)
