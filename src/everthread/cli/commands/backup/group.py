"""`everthread backup`: write a consistent copy of the home to one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext, CliRuntime, common_options
from everthread.cli.files import new_file, parse_path, remove_stale, temporary_folder, translate_os_error
from everthread.cli.output import Result, progress_bar, render
from everthread.domain.errors import StoreCorrupt
from everthread.domain.text_format import one_line, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from everthread.cli.commands.backup.archive import Manifest

_NAMED_MAX = 10


@click.command()
@click.argument("file", metavar="[FILE]", required=False)
@common_options
def backup(cli: CliContext, file: str | None, as_json: bool) -> None:
    """Back up the home to a new FILE: sessions, memory, notes, skills and settings. Then verify it.

    Other processes may keep running; later changes are not included. Without FILE, a name with the current time is used
    in the working folder. The file is readable for your user only. Not included: .env with your API keys, the API token
    local.token, mcp.json and the local model.

    \b
    Examples:
      everthread backup
      everthread backup /media/stick/agent.tar.gz
      everthread --home /srv/agent backup --json
    """
    from everthread.domain.model import replace_surrogates

    path = parse_path(file) if file is not None else None
    target, manifest, skipped = cli.read_existing(lambda runtime: _back_up(cli, runtime, path))

    def data() -> dict[str, Any]:
        names = [replace_surrogates(name) for name in skipped]
        return {"file": str(target), "schema": manifest.schema, **manifest.counts, "passed_over": names}

    def text() -> Iterator[str]:
        yield f"Backed up to {target}: {describe_counts(manifest.counts)}. Verified."
        yield "Not included: API keys (.env, local.token), mcp.json, the local model and received files (media)."
        for name in skipped[:_NAMED_MAX]:
            yield f"Skipped {one_line(replace_surrogates(name))}: its name, depth or size does not fit into a backup."
        if len(skipped) > _NAMED_MAX:
            yield f"Skipped {len(skipped) - _NAMED_MAX} more; --json lists all."

    render(Result(data, text), as_json)


async def _back_up(cli: CliContext, runtime: CliRuntime, path: Path | None) -> tuple[Path, Manifest, tuple[str, ...]]:
    import re

    now = runtime.clock.now()
    target = path or Path(f"everthread-{stamp(now)}.tar.gz")
    try:
        if target.parent.is_dir():
            named = rf"\.(?:{re.escape(target.name)}|everthread-[0-9-]+\.tar\.gz)\.([0-9]+)\.part"
            remove_stale(target.parent, named, now)
        with temporary_folder(runtime.settings.home, "backup", now) as folder, new_file(target) as archive:
            manifest, skipped = await _pack(cli, runtime, folder, archive, now)
            archive.flush()
            _check(cli, Path(archive.name), folder / "again", manifest)
        cli.unopened_runtime(runtime.settings).record_backup(target)
    except OSError as error:
        raise translate_os_error(target, error) from error
    return target, manifest, skipped


async def _pack(
    cli: CliContext, runtime: CliRuntime, folder: Path, archive: object, now: float
) -> tuple[Manifest, tuple[str, ...]]:
    from importlib.metadata import version
    from typing import BinaryIO, cast

    from msgspec.structs import asdict

    from everthread.cli.commands.backup import archive as backup_file

    settings = runtime.settings
    copy = folder / backup_file.STORE
    with progress_bar("Copying", 1000) as advance:
        done = 0

        def progress(pages: int, total: int) -> None:
            nonlocal done
            share = 1000 * pages // max(total, 1)
            advance(share - done)
            done = share

        await runtime.store.copy(copy, progress)
    contents = asdict(cli.unopened_runtime(settings).inspect_copy(copy))
    files, skipped = backup_file.list_sources(copy, settings.config_path, settings.home)
    entries = tuple(map(backup_file.make_entry, files))
    schema = contents.pop("schema")
    manifest = backup_file.Manifest(
        backup_file.FORMAT, backup_file.VERSION, now, version("everthread"), schema, contents, entries
    )
    with progress_bar("Packing", sum(entry.size for entry in entries)) as advance:
        backup_file.pack(cast(BinaryIO, archive), manifest, files, advance)
    return manifest, skipped


def _check(cli: CliContext, archive: Path, folder: Path, manifest: Manifest) -> None:
    """Verify the archive by unpacking it, as a restore does."""
    from msgspec.structs import asdict

    from everthread.cli.commands.backup import archive as backup_file

    with progress_bar("Checking", sum(entry.size for entry in manifest.files)) as advance:
        again = backup_file.unpack(archive, folder, advance)
    contents = asdict(cli.unopened_runtime(cli.settings).inspect_copy(folder / backup_file.STORE))
    if again != manifest or contents != {"schema": manifest.schema, **manifest.counts}:
        raise StoreCorrupt(f"{archive}: differs from what was written; check the disk and back up again")


def describe_counts(counts: dict[str, int]) -> str:
    nouns = {"sessions": "session", "turns": "turn", "messages": "message", "notes": "note"}
    return ", ".join(pluralize(counts.get(name, 0), noun) for name, noun in nouns.items())


def stamp(at: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y%m%d-%H%M%S")
