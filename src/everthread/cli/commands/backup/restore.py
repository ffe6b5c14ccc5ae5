"""`everthread restore`: replace the home with the contents of a backup."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from everthread.cli.context import CliContext, common_options
from everthread.cli.files import parse_path, sync_folder, temporary_folder, translate_os_error
from everthread.cli.output import Result, progress_bar, render
from everthread.domain.errors import AlreadyExists, NotFound
from everthread.domain.text_format import local_time, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from everthread.cli.commands.backup.archive import Manifest
    from everthread.config.schema import Settings

_NAMED_MAX = 10


class Restored(NamedTuple):
    manifest: Manifest
    aside: Path | None
    """Folder with the previous contents of the home."""
    unforgotten: tuple[tuple[str, str], ...] = ()
    """Data forgotten since the backup that is back now: kind and id."""
    dropped_token: bool = False
    """The automatic token was left out, because its text is not in this home."""


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--force", is_flag=True, help="Restore even if the home has data, which is moved aside.")
@common_options
def restore(cli: CliContext, file: str, force: bool, as_json: bool) -> None:
    """Restore a home from a backup FILE written by `everthread backup`.

    The whole file is verified before anything is changed. If the home has data, --force is needed; the previous store,
    notes and settings are then moved to a folder in the home. API keys (.env), mcp.json and the local model are not
    part of a backup and stay unchanged. Nor is the text of the automatic API token `local`: that token is dropped
    unless its text is in the home, and the next start of a gateway creates one if there is no other.

    Data forgotten after the backup comes back. It is listed as far as known, so that you can forget it again.

    \b
    Examples:
      everthread restore everthread-20261116-034500.tar.gz
      everthread --home /srv/agent restore agent.tar.gz --force
    """
    done = _restore(cli, parse_path(file), force)
    home = cli.settings.home

    def text() -> Iterator[str]:
        from everthread.cli.commands.backup.group import describe_counts

        created = local_time(done.manifest.created_at)
        yield f"Restored {home} as of {created}: {describe_counts(done.manifest.counts)}."
        if done.aside is not None:
            yield f"The previous contents are in {done.aside}."
        if done.dropped_token:
            yield "The automatic API token is not restored, because a backup does not have its text."
            yield "The next start of a gateway creates one if there is no other: everthread tokens show."
        if done.unforgotten:
            yield f"Forgotten since the backup, and restored with it: {_list(done.unforgotten)}."
            yield "To forget them again, see everthread forget --help."

    data = {
        "home": str(home),
        "schema": done.manifest.schema,
        **done.manifest.counts,
        "aside": str(done.aside) if done.aside else None,
        "dropped_token": done.dropped_token,
        "unforgotten": [{"kind": kind, "id": identity} for kind, identity in done.unforgotten],
    }
    render(Result(data, text), as_json)


def _list(items: tuple[tuple[str, str], ...]) -> str:
    some = [one_line(f"{kind} {identity}") for kind, identity in items[:_NAMED_MAX]]
    return ", ".join(some) + (f" and {len(items) - _NAMED_MAX} more (--json)" if len(items) > _NAMED_MAX else "")


def _restore(cli: CliContext, file: Path, force: bool) -> Restored:
    from everthread.cli.commands.backup import archive as backup_file

    settings = cli.settings
    if not file.is_file():
        raise NotFound(f"{file}: no such file")
    if not force:
        _refuse_to_overwrite(settings)
    is_new = not settings.home.exists()
    unopened = cli.unopened_runtime(settings)
    now = unopened.clock.now()
    try:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with temporary_folder(settings.home, "restore", now) as staged:
            folder = staged / "home"
            with progress_bar("Checking", file.stat().st_size * 4) as advance:
                manifest = backup_file.unpack(file, folder, advance)
            unopened.inspect_copy(folder / backup_file.STORE)
            unopened.renumber_copy(folder / backup_file.STORE)
            lost = unopened.drop_lost_tokens(folder / backup_file.STORE)
            back = tuple(sorted(unopened.forgotten_since(folder / backup_file.STORE)))
            aside = _unused_folder(settings.home, now)
            backups = unopened.known_backups()
            with unopened.exclusive_access():
                moved = backup_file.install(folder, settings.home, settings.config_path, aside)
            unopened.accept_restored(backups)
            sync_folder(settings.home)
    except BaseException as error:
        if is_new:
            with contextlib.suppress(OSError):
                settings.home.rmdir()
        if isinstance(error, OSError):
            raise translate_os_error(settings.home, error) from error
        raise
    return Restored(manifest, aside if moved else None, back, lost)


def _refuse_to_overwrite(settings: Settings) -> None:
    from everthread.cli.commands.backup import archive as backup_file

    paths = (settings.db_path, settings.home / backup_file.NOTES, settings.config_path)
    existing = next((path for path in paths if path.exists() or path.is_symlink()), None)
    if existing is not None:
        raise AlreadyExists(
            f"{existing}: already exists; use --force to move it aside, or --home to choose another home"
        )


def _unused_folder(home: Path, now: float) -> Path:
    """Return an unused name in the home."""
    from everthread.cli.commands.backup.group import stamp

    name, number = f"before-restore-{stamp(now)}", 1
    aside = home / name
    while aside.exists():
        number += 1
        aside = home / f"{name}-{number}"
    return aside
