"""Where a setting comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from everthread.config import tables as reading
from everthread.config.schema import BASE_URLS, SCALARS
from everthread.config.settings import Settings


def origin(settings: Settings, keys: tuple[str, ...]) -> str:
    """A variable and where it is set, a file and a line, or `default`."""
    variable = _variable_for(keys)
    if variable and settings.variables.environ.get(variable):
        return f"environment ({variable})"
    if variable and settings.variables.file.get(variable):
        return f"{settings.env_path} ({variable})"
    for file, read in ((settings.config_path, reading.toml), (settings.mcp_path, reading.json)):
        text = reading.text_of(file)
        if text is not None:
            source, values = read(file, text)
            if _is_in(values, keys):
                return f"{Path(source.file)}:{source.line_of(text, keys)}"
    return "default"


def _variable_for(keys: tuple[str, ...]) -> str:
    if len(keys) == 1 and keys[0] in SCALARS:
        return f"EVERTHREAD_{keys[0].upper()}"
    if len(keys) == 3 and keys[0] == "providers" and keys[2] == "base_url":
        return next((variable for variable, name in BASE_URLS.items() if name == keys[1]), "")
    return ""


def _is_in(values: dict[str, Any], keys: tuple[str, ...]) -> bool:
    found: object = values
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            return False
        found = cast("dict[str, object]", found)[key]
    return True
