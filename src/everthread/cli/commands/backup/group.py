"""`everthread backup`: everything in one file, while others go on working."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.cli.commands.backup.archive import Manifest

_NAMED_MAX = 10


@click.command()
@click.argument("file", metavar="[FILE]", required=False)
@json_option
@home_option
@pass_invocation
def backup(invocation: CliContext, file: str | None, as_json: bool) -> None:
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
    from everthread.domain.model import whole

    given = path_given(file) if file is not None else None
    done = invocation.look(lambda runtime: _back_up(invocation, runtime, given), nothing=None)
    if done is None:
        from everthread.domain.errors import NotFound

        raise NotFound(f"nothing is kept in {invocation.settings.home} yet; give another place with --home")
    target, manifest, passed_over = done
    if as_json:
        fitting = [whole(name) for name in passed_over]
        show.print_json({"file": str(target), "schema": manifest.schema, **manifest.counts, "passed_over": fitting})
    else:
        click.echo(f"Backed up to {target}: {counts_in_words(manifest.counts)}. Checked.")
        click.echo("Keys (.env), mcp.json, the local model and files that people sent (media) are not in it.")
        for name in passed_over[:_NAMED_MAX]:
            click.echo(f"Nor is {show.one_line(whole(name))}: its name, depth or size is beyond what a backup holds.")
        if len(passed_over) > _NAMED_MAX:
            click.echo(f"Nor are {len(passed_over) - _NAMED_MAX} more; --json lists them all.")


async def _back_up(
    invocation: CliContext, runtime: CliRuntime, given: Path | None
) -> tuple[Path, Manifest, tuple[str, ...]]:
    import re

    from everthread.cli.files import sweep, unwritable, workplace, written_whole

    now = runtime.clock.now()
    target = given or Path(f"everthread-{stamp(now)}.tar.gz")
    try:
        if target.parent.is_dir():
            named = rf"\.(?:{re.escape(target.name)}|everthread-[0-9-]+\.tar\.gz)\.([0-9]+)\.part"
            sweep(target.parent, named, now)
        with workplace(runtime.settings.home, "backup", now) as folder, written_whole(target) as archive:
            manifest, passed_over = await _packed(invocation, runtime, folder, archive, now)
            archive.flush()
            _check(invocation, Path(archive.name), folder / "again", manifest)
    except OSError as error:
        raise unwritable(target, error) from error
    return target, manifest, passed_over


async def _packed(
    invocation: CliContext, runtime: CliRuntime, folder: Path, archive: object, now: float
) -> tuple[Manifest, tuple[str, ...]]:
    from importlib.metadata import version
    from typing import BinaryIO, cast

    from msgspec.structs import asdict

    from everthread.cli.commands.backup import archive as safekeeping
    from everthread.cli.output import bar

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
    files, passed_over = safekeeping.sources(copy, settings.config_path, settings.home)
    kept = tuple(map(safekeeping.kept, files))
    schema = contents.pop("schema")
    manifest = safekeeping.Manifest(
        safekeeping.FORMAT, safekeeping.VERSION, now, version("everthread"), schema, contents, kept
    )
    with bar("Packing", sum(entry.size for entry in kept)) as advance:
        safekeeping.pack(cast(BinaryIO, archive), manifest, files, advance)
    return manifest, passed_over


def _check(invocation: CliContext, archive: Path, folder: Path, manifest: Manifest) -> None:
    """Read what was written back, as a restoration would."""
    from msgspec.structs import asdict

    from everthread.cli.commands.backup import archive as safekeeping
    from everthread.cli.output import bar
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
