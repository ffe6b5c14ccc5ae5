"""Keep secrets out of `config.toml` and `mcp.json`: they belong into the environment or into `.env`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from everthread.config.checks import SECRET_VALUE, is_secret_name, references
from everthread.config.schema import ProviderSettings, built_in_providers
from everthread.config.tables import Table, dotted

if TYPE_CHECKING:
    from pathlib import Path

    from everthread.config.line_numbers import Keys


def refuse_secrets(top: Table, env_file: Path) -> None:
    """Raise `BadConfig` if a value looks like a secret. The message says where it belongs, and does not quote it."""
    providers = built_in_providers()
    for keys, text in top.every_text():
        if not _is_secret(keys, text):
            continue
        name = _variable_for(keys, providers)
        where = f"put {name}=... into {env_file}"
        if "env" in keys or "headers" in keys:
            how = f'{where} and write "${{{name}}}" here'
        elif keys[0] == "providers" and (keys[1] not in providers or keys[-1] == "api_key_env"):
            how = f'{where} and write api_key_env = "{name}" here'
        else:
            how = f"{where} and remove it here"
        raise top.error(keys, f"{dotted(keys)} looks like a secret, which does not belong into this file; {how}")


def _is_secret(keys: Keys, text: str) -> bool:
    if re.search(SECRET_VALUE, text):
        return True
    key = next((key for key in reversed(keys) if isinstance(key, str)), "")
    return bool(text) and is_secret_name(key) and not references(text)


def _variable_for(keys: Keys, providers: Mapping[str, ProviderSettings]) -> str:
    """Return a good name for the variable that should hold the secret."""
    names = [key for key in keys if isinstance(key, str)]
    if "env" in names[:-1]:
        return names[-1]
    for name in names:
        if name in providers and providers[name].api_key_env:
            return providers[name].api_key_env
    if names[0] == "providers" and len(names) > 2:
        names = [names[1], "api_key"]
    elif names[0] == "mcpServers" and len(names) > 2:
        names = [names[1], "token" if "headers" in names else names[-1]]
    return re.sub("[^A-Z0-9]+", "_", "_".join(names[-2:]).upper()).strip("_") or "SECRET"
