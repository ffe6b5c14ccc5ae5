"""Facts about the machine and the process, from environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path


def debugging(environ: Mapping[str, str] = os.environ) -> bool:
    """True if a full traceback is wanted instead of a one-line error."""
    return environ.get("EVERTHREAD_DEBUG", "") not in ("", "0")


def working_folder() -> Path | None:
    """Return the current folder; None if it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment for a child process: this one's, and more."""
    return {**os.environ, **more}


def hermes_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the home of Hermes Agent."""
    return Path(environ.get("HERMES_HOME") or "~/.hermes").expanduser()


def notify_socket(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the socket for status messages to a service manager."""
    return environ.get("NOTIFY_SOCKET") or None


def user_units(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the user's systemd units."""
    folder = Path(environ.get("XDG_CONFIG_HOME") or ".")
    return (folder if folder.is_absolute() else expand_path("~/.config")) / "systemd" / "user"


def ollama_url(host: str) -> str:
    """Return the URL of an Ollama server from OLLAMA_HOST: a host, a port, a URL, or 0.0.0.0, which a server binds."""
    host = host.strip().rstrip("/")
    if not re.match(r"(?i)[a-z][a-z0-9+.-]*://", host):
        name, colon, port = host.rpartition(":")
        if not colon or not port.isdigit():
            name, port = host, "11434"
        host = f"http://{name or '127.0.0.1'}:{port}"
    host = host.replace("//0.0.0.0", "//127.0.0.1", 1)
    return host if host.endswith("/v1") else f"{host}/v1"


def local_zone(environ: Mapping[str, str] = os.environ, link: Path = Path("/etc/localtime")) -> str:
    """Return the IANA name of this machine's time zone; UTC if it is unknown."""
    named = (environ.get("TZ") or "").removeprefix(":")
    if not named:
        try:
            named = os.readlink(link).partition("zoneinfo/")[2]
        except OSError:
            named = ""
    from everthread.domain.errors import BadPolicy  # noqa: PLC0415 - only some commands ask
    from everthread.domain.timezones import load_zone  # noqa: PLC0415 - as above

    try:
        load_zone(named or "UTC")
    except BadPolicy:
        return "UTC"
    return named or "UTC"


def expand_path(path: str) -> Path:
    """Return the absolute path, with `~` expanded. Raises `StoreUnwritable` if that is impossible."""
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        from everthread.domain.errors import StoreUnwritable  # noqa: PLC0415 - only for complaints

        raise StoreUnwritable(f"{path}: {error}; give another place with --home or EVERTHREAD_HOME") from error
