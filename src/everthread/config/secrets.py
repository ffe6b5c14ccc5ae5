"""Secrets come from the environment and from `.env`. Here are the rules that keep them out of every other file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from everthread.config.schema import Provider
from everthread.config.tables import Table, dotted

if TYPE_CHECKING:
    from pathlib import Path

    from everthread.config.line_numbers import Keys

# `api_key`, `X-Api-Key`, `GITHUB_TOKEN`, `clientSecret`; but not `api_key_env`, which is the name of a variable.
_NAME = re.compile(
    r"(?:token|secret|password|passwd|passphrase|credentials?|authorization|cookie|api[_-]?key|(?:^|[_-])key)$",
    re.IGNORECASE,
)
# What well-known services' keys begin with.
_VALUE = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-[\w-]{16,}|gh[opsur]_\w{30,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}"
    r"|AIza[\w-]{30,})"
)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_NOT_IN_A_NAME = re.compile(r"[^A-Z0-9]+")


def variable_problem(text: str) -> str:
    """What is wrong with the name of a variable that is to hold a secret."""
    return "" if _VARIABLE.fullmatch(text) else "is no name of a variable; write one like OPENAI_API_KEY"


def named_like_one(name: str) -> bool:
    return _NAME.search(name) is not None


def key_like() -> re.Pattern[str]:
    """What well-known services' keys look like."""
    return _VALUE


def refuse_secrets(top: Table, env_file: Path, providers: Mapping[str, Provider]) -> None:
    """Raise `BadConfig` if a value looks like a secret. The message has where it belongs, and nothing of it."""
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
        raise top.error(keys, f"{dotted(keys)} looks like a secret, and this file is no place for one; {how}")


def _is_secret(keys: Keys, text: str) -> bool:
    if _VALUE.search(text):
        return True
    key = next((key for key in reversed(keys) if isinstance(key, str)), "")
    return bool(text) and named_like_one(key) and not _REFERENCE.search(text)


def _variable_for(keys: Keys, providers: Mapping[str, Provider]) -> str:
    """A good name for the variable that is to have the secret."""
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
    return _NOT_IN_A_NAME.sub("_", "_".join(names[-2:]).upper()).strip("_") or "SECRET"


def address_problem(url: str) -> str:
    """What is wrong with an http address. Never quotes it: it may have a password in it."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "is no address; write one like https://example.com/v1"
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        return "is no http address; write one like https://example.com/v1"
    if parts.username or parts.password or any(named_like_one(name) for name, _ in parse_qsl(parts.query)):
        return 'has a secret in it; put the secret into .env and send it with headers = { NAME = "${VARIABLE}" }'
    return ""


def references_problem(text: str) -> str:
    """What is wrong with the `${NAME}` in a text."""
    if "\0" in text or "\n" in text or "\r" in text:
        return "has a line break or a NUL in it; leave it out"
    if "${" in _REFERENCE.sub("", text):
        return "has a ${ that begins no ${NAME}; NAME is made of letters, digits and _"
    return ""


def filled_in(text: str, value_of: Callable[[str], str]) -> str:
    """The text with a value for every `${NAME}`."""
    return _REFERENCE.sub(lambda found: value_of(found[1]), text)


def mentioned(text: str) -> list[str]:
    """The variables that a text refers to."""
    return _REFERENCE.findall(text)
