"""Handing a file to the person's editor: $VISUAL, else $EDITOR, else what is there."""

from __future__ import annotations

import os
from pathlib import Path

import click


def edit(file: Path) -> None:
    """Have the file edited; returns once the editor has ended. A file that is not there is made, for its owner alone.

    Raises `BadInput` if there is no editor, or it has failed.
    """
    from everthread.domain.errors import BadInput, StoreUnwritable

    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreUnwritable(f"{file}: {error.strerror}; mend its permissions, or choose another home") from error
    try:
        click.edit(filename=str(file))
    except click.ClickException as error:
        raise BadInput(f"{error.format_message()}; set VISUAL or EDITOR to an editor that works here") from error
