"""Find the origin of a setting: a variable, a file and a line, or the default."""

from __future__ import annotations

from typing import Any, cast

from everthread.config.schema import BASE_URLS, ENV_SETTINGS, Settings
from everthread.config.tables import parse_json, parse_toml, read_text


def origin(settings: Settings, keys: tuple[str, ...]) -> str:
    variable = _variable_for(keys)
    if variable and settings.variables.environ.get(variable):
        return f"environment ({variable})"
    if variable and settings.variables.file.get(variable):
        return f"{settings.env_path} ({variable})"
    for file, parse in ((settings.config_path, parse_toml), (settings.mcp_path, parse_json)):
        text = read_text(file)
        if text is not None:
            top = parse(file, text)
            if _contains(top.values, keys):
                return f"{file}:{top.source.line_of(keys)}"
    return "default"


def _variable_for(keys: tuple[str, ...]) -> str:
    if len(keys) == 1 and keys[0] in ENV_SETTINGS:
        return f"EVERTHREAD_{keys[0].upper()}"
    if len(keys) == 3 and keys[0] == "providers" and keys[2] == "base_url":
        return next((variable for variable, name in BASE_URLS.items() if name == keys[1]), "")
    return ""


def _contains(values: object, keys: tuple[str, ...]) -> bool:
    for key in keys:
        if not isinstance(values, dict) or key not in values:
            return False
        values = cast("dict[str, Any]", values)[key]
    return True
