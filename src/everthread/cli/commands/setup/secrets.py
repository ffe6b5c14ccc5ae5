"""Secrets in a setup: ask for them, test settings with them, and write them to `.env`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from everthread.config.schema import Settings
    from everthread.config.settings import HomePaths

_CHARS_MAX = 4096


def ask_secret(what: str, variable: str, *, exists: bool, required: bool = True) -> str:
    """Ask for a secret with hidden input; empty keeps the current one, or uses none if it is not required."""
    hint = ", Enter keeps the current one" if exists else "" if required else ", Enter if it needs none"
    needed = required and not exists

    def check(text: str) -> str:
        secret = text.strip()
        if not secret and needed:
            raise click.BadParameter("is empty")
        if len(secret) > _CHARS_MAX or not secret.isprintable() or " " in secret:
            raise click.BadParameter("not a valid key; paste the key and nothing else")
        return secret

    question = f"{what} ({variable}; input is hidden{hint})"
    default = None if needed else ""
    return click.prompt(question, default=default, hide_input=True, show_default=False, value_proc=check)


def with_secrets(settings: Settings, secrets: Mapping[str, str]) -> Settings:
    """Return the settings with these environment variables added, to test them before they are written."""
    from msgspec.structs import replace

    from everthread.config.schema import Variables

    variables = Variables({**settings.variables.environ, **secrets}, settings.variables.file)
    return replace(settings, variables=variables)


def write_settings(where: HomePaths, values: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
    """Write values to `config.toml` and secrets to `.env`."""
    from everthread.config.edit import set_secret, set_values

    set_values(where, values)
    for variable, secret in secrets.items():
        set_secret(where, variable, secret)
