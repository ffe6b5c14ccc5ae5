"""`everthread backup`: everything in one file, while others go on working."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from everthread.cli import show
from everthread.cli.opened import Invocation, Runtime, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.cli.safekeeping import Manifest


@click.command()
@click.argument("file", metavar="[FILE]", required=False)
@json_option
@home_option
@pass_invocation
def backup(invocation: Invocation, file: str | None, as_json: bool) -> None:
    """Put conversations, memory, notes and settings into one new FILE, and check it.

    Others may go on working meanwhile: what they commit after it began is not in it. Without a FILE, one is made here,
    named after the time. Only you may read it. Not in it: .env with your keys, mcp.json, and the local model.

    \b
    Examples:
      everthread backup
      everthread backup /media/stick/agent.tar.gz
      everthread --home /srv/agent backup --json
    """
    from everthread.cli.files import path_given

    given = path_given(file) if file is not None else None
    done = invocation.look(lambda runtime: _back_up(invocation, runtime, given), nothing=None)
    if done is None:
        from everthread.domain.errors import NotFound

        raise NotFound(f"nothing is kept in {invocation.settings.home} yet; give another place with --home")
    target, manifest = done
    if as_json:
        show.print_json({"file": str(target), "schema": manifest.schema, **manifest.counts})
    else:
        click.echo(f"Backed up to {target}: {counts_in_words(manifest.counts)}. Checked.")
        click.echo("Keys (.env), mcp.json and the local model are not in it.")


async def _back_up(invocation: Invocation, runtime: Runtime, given: Path | None) -> tuple[Path, Manifest]:
    from everthread.cli.files import unwritable, written_whole

    now = runtime.clock.now()
    target = given or Path(f"everthread-{stamp(now)}.tar.gz")
    try:
        # In the home: nobody else reads there.
        with (
            written_whole(target) as archive,
            tempfile.TemporaryDirectory(dir=runtime.settings.home, prefix=".backup-") as folder,
        ):
            manifest = await _packed(invocation, runtime, Path(folder), archive, now)
            archive.flush()
            _check(invocation, Path(archive.name), Path(folder) / "again", manifest)
    except OSError as error:
        raise unwritable(target, error) from error
    return target, manifest


async def _packed(invocation: Invocation, runtime: Runtime, folder: Path, archive: object, now: float) -> Manifest:
    from dataclasses import asdict
    from importlib.metadata import version
    from typing import BinaryIO, cast

    from everthread.cli import safekeeping
    from everthread.cli.progress import bar

    settings = runtime.settings
    copy = folder / safekeeping.STORE
    with bar("Copying", 1000) as advance:
        done = 0

        def progress(pages: int, whole: int) -> None:
            nonlocal done
            share = 1000 * pages // max(whole, 1)
            advance(share - done)
            done = share

        await runtime.store.copy(copy, progress)
    contents = asdict(invocation.unopened(settings).inspect_copy(copy))
    files = list(safekeeping.sources(copy, settings.config_path, settings.home / safekeeping.NOTES))
    kept = tuple(map(safekeeping.kept, files))
    schema = contents.pop("schema")
    manifest = safekeeping.Manifest(
        safekeeping.FORMAT, safekeeping.VERSION, now, version("everthread"), schema, contents, kept
    )
    with bar("Packing", sum(entry.size for entry in kept)) as advance:
        safekeeping.pack(cast(BinaryIO, archive), manifest, files, advance)
    return manifest


def _check(invocation: Invocation, archive: Path, folder: Path, manifest: Manifest) -> None:
    """Read what was written back, as a restoration would."""
    from dataclasses import asdict

    from everthread.cli import safekeeping
    from everthread.cli.progress import bar
    from everthread.domain.errors import StoreCorrupt

    with bar("Checking", sum(entry.size for entry in manifest.files)) as advance:
        again = safekeeping.unpack(archive, folder, advance)
    contents = asdict(invocation.unopened(invocation.settings).inspect_copy(folder / safekeeping.STORE))
    if again != manifest or contents != {"schema": manifest.schema, **manifest.counts}:
        raise StoreCorrupt(f"{archive}: is not what was written to it; check the disk and back up again")


def counts_in_words(counts: dict[str, int]) -> str:
    nouns = {"sessions": "session", "turns": "turn", "messages": "message", "notes": "note"}
    return ", ".join(show.counted(counts.get(name, 0), noun) for name, noun in nouns.items())


def stamp(at: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y%m%d-%H%M%S")
