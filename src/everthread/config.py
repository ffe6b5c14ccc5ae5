"""Settings. Only this module and `bootstrap` look at the environment."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everthread.domain.errors import StoreUnwritable

MODEL_KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY", "GEMINI_API_KEY")


@dataclass(frozen=True, slots=True)
class Settings:
    home: Path
    """The folder that holds everything this program keeps."""

    @property
    def db_path(self) -> Path:
        return self.home / "everthread.db"

    @property
    def local_model_path(self) -> Path:
        """The folder of the local model, which `everthread setup local` fills."""
        return self.home / "models" / "local"


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


def has_model(settings: Settings, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether another model than the local one was chosen, or there is a key for one."""
    chosen = environ.get("EVERTHREAD_MODEL") or _model_in(settings.home / "config.toml")
    if chosen:
        return chosen.split("/")[0] != "local"
    if any(environ.get(name) for name in MODEL_KEYS):
        return True
    texts = (_text_of(folder / ".env") for folder in (Path(), settings.home))
    return any(re.search(rf"(?m)^\s*(?:export\s+)?(?:{'|'.join(MODEL_KEYS)})[ \t]*=[ \t]*\S", text) for text in texts)


def child_environment(**more: str) -> dict[str, str]:
    """The environment of a process that is started: this one's, and more."""
    return {**os.environ, **more}


def _model_in(path: Path) -> str:
    try:
        return str(tomllib.loads(_text_of(path)).get("model", ""))
    except tomllib.TOMLDecodeError:
        return ""


def _text_of(path: Path) -> str:
    """The text of a small file; empty if there is none, or none that can be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise StoreUnwritable(f"{path}: {error}; give another place with --home or EVERTHREAD_HOME") from error
