"""`everthread restore`: everything back from a backup."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.cli.commands.backup.archive import Manifest
    from everthread.config.settings import Settings

_NAMED_MAX = 10


class Restored(NamedTuple):
    manifest: Manifest
    aside: Path | None
    """Where what was there before is now."""
    unforgotten: tuple[tuple[str, str], ...] = ()
    """What was forgotten there since the backup, and is back: kind and id."""


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--force", is_flag=True, help="Even if there is something in the home; that is moved aside.")
@json_option
@home_option
@pass_invocation
def restore(invocation: CliContext, file: str, force: bool, as_json: bool) -> None:
    """Bring back from FILE what `everthread backup` has put there.

    The whole file is checked before anything is touched. A home that holds something is left alone unless --force is
    given: then the store, the notes and the settings in it are moved to a folder in it, which is named. Keys
    (.env), mcp.json and the local model are in no backup, and stay as they are.

    What was forgotten after the backup comes back with it: what is known of that is named, to be forgotten again.

    \b
    Examples:
      everthread restore everthread-20261116-034500.tar.gz
      everthread --home /srv/agent restore agent.tar.gz --force
    """
    from everthread.cli.files import path_given

    done = _restore(invocation, path_given(file), force)
    home = invocation.settings.home
    if as_json:
        counts = {"schema": done.manifest.schema, **done.manifest.counts}
        aside = str(done.aside) if done.aside else None
        back = [{"kind": kind, "id": identity} for kind, identity in done.unforgotten]
        show.print_json({"home": str(home), **counts, "aside": aside, "unforgotten": back})
        return
    from everthread.cli.commands.backup.group import counts_in_words

    taken = show.local_time(done.manifest.created_at)
    click.echo(f"Restored to {home}, as of {taken}: {counts_in_words(done.manifest.counts)}.")
    if done.aside is not None:
        click.echo(f"What was there before is in {done.aside}.")
    if done.unforgotten:
        click.echo(f"Forgotten since that backup, and back now as far as it had them: {_named(done.unforgotten)}.")
        click.echo("Forget them again: everthread forget --help")


def _named(things: tuple[tuple[str, str], ...]) -> str:
    some = [show.one_line(f"{kind} {identity}") for kind, identity in things[:_NAMED_MAX]]
    return ", ".join(some) + (f" and {len(things) - _NAMED_MAX} more (--json)" if len(things) > _NAMED_MAX else "")


def _restore(invocation: CliContext, file: Path, force: bool) -> Restored:
    from everthread.cli.commands.backup import archive as safekeeping
    from everthread.cli.files import sync_folder, unwritable, workplace
    from everthread.cli.output import bar
    from everthread.domain.errors import NotFound

    settings = invocation.settings
    if not file.is_file():
        raise NotFound(f"{file}: there is no such file")
    if not force:
        _refuse_to_overwrite(settings)
    is_new = not settings.home.exists()
    unopened = invocation.unopened(settings)
    now = unopened.clock.now()
    try:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with workplace(settings.home, "restore", now) as staged:
            folder = staged / "home"
            with bar("Checking", file.stat().st_size * 4) as advance:
                manifest = safekeeping.unpack(file, folder, advance)
            unopened.inspect_copy(folder / safekeeping.STORE)
            unopened.renumber_copy(folder / safekeeping.STORE)
            back = tuple(sorted(unopened.forgotten_since(folder / safekeeping.STORE)))
            aside = _aside(settings.home, now)
            with unopened.alone():
                moved = safekeeping.put_in_place(folder, settings.home, settings.config_path, aside)
            sync_folder(settings.home)
    except BaseException as error:
        if is_new:
            with contextlib.suppress(OSError):
                settings.home.rmdir()
        if isinstance(error, OSError):
            raise unwritable(settings.home, error) from error
        raise
    return Restored(manifest, aside if moved else None, back)


def _refuse_to_overwrite(settings: Settings) -> None:
    from everthread.cli.commands.backup import archive as safekeeping
    from everthread.domain.errors import AlreadyThere

    places = (settings.db_path, settings.home / safekeeping.NOTES, settings.config_path)
    there = next((place for place in places if place.exists() or place.is_symlink()), None)
    if there is not None:
        raise AlreadyThere(f"{there}: is there already; --force moves it aside, --home chooses another place")


def _aside(home: Path, now: float) -> Path:
    """A name in the home that nothing has."""
    from everthread.cli.commands.backup.group import stamp

    name, number = f"before-restore-{stamp(now)}", 1
    aside = home / name
    while aside.exists():
        number += 1
        aside = home / f"{name}-{number}"
    return aside
