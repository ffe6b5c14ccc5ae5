"""`everthread import`: import data from other agents."""

from __future__ import annotations

import click

from everthread.cli.commands.import_.hermes import hermes


@click.group("import")
def import_() -> None:
    """Import data from another agent.

    To import a file written by `everthread sessions export`, use `everthread sessions import`.

    \b
    Examples:
      everthread import hermes --dry-run
      everthread import hermes /srv/hermes
    """


import_.add_command(hermes)
