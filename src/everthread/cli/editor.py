"""Open a file in the user's editor: $VISUAL, else $EDITOR, else a default."""

from __future__ import annotations

import os
from pathlib import Path

import click

from everthread.domain.errors import EverthreadError, StoreUnwritable

_KEPT_MAX = 99


class EditFailed(EverthreadError):
    """The editor failed, or its result could not be used; the message says where the text is."""


def edit(file: Path) -> None:
    """Open the file in an editor and wait for it. A missing file is created, readable for its owner only.

    Raises `EditFailed` if there is no editor, or it fails.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreUnwritable(f"{file}: {error.strerror}; fix its permissions, or choose another home") from error
    try:
        click.edit(filename=str(file))
    except click.ClickException as error:
        raise EditFailed(f"{error.format_message()}; set VISUAL or EDITOR to an editor that works here") from error


def edit_in_place(file: Path) -> None:
    """Edit a file that is in use. If the editor fails, restore the file and save the edited text beside it."""
    try:
        before = file.read_bytes()
    except FileNotFoundError:
        before = b""
    try:
        edit(file)
    except EditFailed as error:
        if not file.exists() or file.read_bytes() == before:
            raise
        kept = free_name(file, ".unsaved")
        file.chmod(0o600)
        file.rename(kept)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(before)
        raise EditFailed(f"{error}; the edited text is in {kept}, and {file} is unchanged") from error


def free_name(file: Path, ending: str) -> Path:
    """Return an unused name beside the file, with this ending and a number if needed."""
    for number in range(1, _KEPT_MAX + 1):
        path = file.with_name(f"{file.name}{ending}{f'.{number}' if number > 1 else ''}")
        if not os.path.lexists(path):
            return path
    raise EditFailed(f"{_KEPT_MAX} files {file}{ending} exist already; remove some")
