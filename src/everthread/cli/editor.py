"""Handing a file to the person's editor: $VISUAL, else $EDITOR, else what is there."""

from __future__ import annotations

import os
from pathlib import Path

import click

from everthread.domain.errors import EverthreadError, StoreUnwritable

_KEPT_MAX = 99


class NotTakenIn(EverthreadError):
    """What was edited stays outside; says where."""


def edit(file: Path) -> None:
    """Have the file edited; returns once the editor has ended. A file that is not there is made, for its owner alone.

    Raises `NotTakenIn` if there is no editor, or it has failed.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreUnwritable(f"{file}: {error.strerror}; mend its permissions, or choose another home") from error
    try:
        click.edit(filename=str(file))
    except click.ClickException as error:
        raise NotTakenIn(f"{error.format_message()}; set VISUAL or EDITOR to an editor that works here") from error


def edit_in_place(file: Path) -> None:
    """The same for a file that others read: what an editor that fails has saved is put beside it."""
    try:
        before = file.read_bytes()
    except FileNotFoundError:
        before = b""
    try:
        edit(file)
    except NotTakenIn as error:
        if not file.exists() or file.read_bytes() == before:
            raise
        kept = free_name(file, ".unsaved")
        file.chmod(0o600)
        file.rename(kept)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(before)
        raise NotTakenIn(f"{error}; what it saved is in {kept}, and {file} is as it was") from error


def free_name(file: Path, ending: str) -> Path:
    """A name beside the file that nothing has yet: with this ending, and a number if need be."""
    for number in range(1, _KEPT_MAX + 1):
        path = file.with_name(f"{file.name}{ending}{f'.{number}' if number > 1 else ''}")
        if not os.path.lexists(path):
            return path
    raise NotTakenIn(f"there are {_KEPT_MAX} files {file}{ending} already; look through them, and remove some")
