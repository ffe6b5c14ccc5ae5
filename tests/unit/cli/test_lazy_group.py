"""A group lists its commands without importing them."""

from __future__ import annotations

import click
from click.testing import CliRunner

from everthread.cli.lazy_group import LazyGroup


def test_help_lists_commands_from_the_table_without_importing_them() -> None:
    group = LazyGroup("tool", table={"missing": ("no_such_module:command", "Do something.")})
    shown = CliRunner().invoke(group, ["--help"])
    assert shown.exit_code == 0
    assert "missing  Do something." in shown.output


def test_a_command_is_imported_when_it_is_used() -> None:
    group = LazyGroup("tool", table={"done": ("completion:completion", "Complete.")})
    command = group.get_command(click.Context(group), "done")
    assert command is not None
    assert command.name == "completion"
    assert group.get_command(click.Context(group), "unknown") is None
