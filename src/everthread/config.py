"""Settings. Only this module and `bootstrap` look at the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everthread.domain.errors import StoreUnwritable


@dataclass(frozen=True, slots=True)
class Settings:
    home: Path
    """The folder that holds everything this program keeps."""

    @property
    def db_path(self) -> Path:
        return self.home / "everthread.db"


def load(home: str | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings in force. The home is, in this order: the one given, `EVERTHREAD_HOME`,
    `$XDG_DATA_HOME/everthread`, `~/.everthread`. An empty value counts as none.
    """
    chosen = home or environ.get("EVERTHREAD_HOME")
    if chosen:
        return Settings(_expanded(chosen))
    data_home = Path(environ.get("XDG_DATA_HOME") or ".")
    # The XDG rules have a relative path ignored.
    return Settings(data_home / "everthread" if data_home.is_absolute() else _expanded("~/.everthread"))


def debugging(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a traceback is wanted where one line would do."""
    return environ.get("EVERTHREAD_DEBUG", "") not in ("", "0")


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise StoreUnwritable(f"{path}: {error}; give another place with --home or EVERTHREAD_HOME") from error
