"""A command group that imports a command's module when the command is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A group over a table: command name -> ("module:attribute" below `cli.commands`, first line of its help).

    The table is enough to list the commands, so `--help` imports none of them.
    """

    def __init__(self, name: str | None = None, *, table: Mapping[str, tuple[str, str]], **attributes: Any) -> None:
        super().__init__(name, **attributes)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module, _, attribute = self._table[cmd_name][0].partition(":")
        return getattr(import_module(f"everthread.cli.commands.{module}"), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._table.items()])
