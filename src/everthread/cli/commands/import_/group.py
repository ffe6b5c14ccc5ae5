"""`everthread import`: take in what another program has kept."""

from __future__ import annotations

import click

from everthread.cli.commands.import_.hermes import hermes


@click.group("import")
def import_() -> None:
    """Take in what another agent has kept.

    What `everthread sessions export` has written, `everthread sessions import` reads.

    \b
    Examples:
      everthread import hermes --dry-run
      everthread import hermes /srv/hermes
    """


import_.add_command(hermes)
