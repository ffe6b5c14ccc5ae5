"""Write and load configuration files in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everthread.config.schema import Settings
from everthread.config.settings import load
from everthread.domain.errors import BadConfig

SECRET = "sk-ant-0123456789abcdefghij"


def write_files(
    home: Path, config: str | None = None, *, env: str | None = None, mcp: str | None = None, mode: int = 0o600
) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    for name, text in (("config.toml", config), (".env", env), ("mcp.json", mcp)):
        if text is not None:
            (home / name).write_bytes(text.encode())
            (home / name).chmod(mode)
    return home


def load_home(
    home: Path, config: str | None = None, *, environ: dict[str, str] | None = None, **files: Any
) -> Settings:
    return load(str(write_files(home, config, **files)), environ or {})


def config_error(home: Path, config: str | None = None, **more: Any) -> str:
    with pytest.raises(BadConfig) as refusal:
        load_home(home, config, **more)
    text = str(refusal.value)
    assert "\n" not in text
    assert len(text) < 600
    return text
