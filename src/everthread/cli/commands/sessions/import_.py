"""`everthread sessions import`: import sessions from an export."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click
from msgspec import Struct, field
from msgspec.structs import asdict

from everthread.cli.context import CliContext, CliRuntime, common_options
from everthread.cli.files import parse_path, translate_os_error
from everthread.cli.output import Result, progress_bar, render, strip_control_chars
from everthread.domain.errors import BadInput, NotFound, TooLarge
from everthread.domain.text_format import pluralize

if TYPE_CHECKING:
    from everthread.cli.output import Advance
    from everthread.domain.export_format import AnyLine, Item, SessionLine
    from everthread.lifecycle.import_match import ImportedSession

_REMARKS_MAX = 20
_SPOOL_BYTES = 1 << 20
_INPUT_BYTES_MAX = 16 << 30


class ImportCounts(Struct):
    """The result of an import."""

    sessions: int = 0
    turns: int = 0
    notes: int = 0
    same: int = 0
    renamed: dict[str, str] = field(default_factory=dict[str, str])
    left_out: dict[str, str] = field(default_factory=dict[str, str])

    def count(self, line: SessionLine, done: ImportedSession) -> None:
        self.turns += done.turns
        if done.outcome.why:
            self.left_out[line.id] = done.outcome.why
        elif done.outcome.value == "same":
            self.same += 1
        else:
            self.sessions += 1
        if done.session_id not in (None, line.id):
            self.renamed[line.id] = done.session_id or ""


@click.command("import")
@click.argument("file", metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Check the file and show what would be imported.")
@click.option("--keep-owners", is_flag=True, help="Keep the owners named in the file.")
@click.option("--as-mine", is_flag=True, help="Make everything yours, even sessions of several people.")
@common_options
def import_sessions(cli: CliContext, file: str, dry_run: bool, keep_owners: bool, as_mine: bool, as_json: bool) -> None:
    """Import sessions from a FILE written by `sessions export`; - reads stdin.

    The whole file is checked first; if a line is invalid, nothing is imported. A session keeps its id unless it is
    taken. Importing a file again adds what is new and continues an interrupted import. Forgotten data stays forgotten.
    Imported turns are not delivered to memory providers; `journal replay` does that.

    Sessions of one person become yours. A file with sessions of several people, or with notes of another person, is
    rejected unless you give --keep-owners or --as-mine.

    \b
    Examples:
      everthread sessions import everything.jsonl --dry-run
      everthread sessions import everything.jsonl
      everthread sessions import backup-of-the-team.jsonl --keep-owners
      everthread sessions export --all | everthread --home /srv/other sessions import - --keep-owners
    """
    if keep_owners and as_mine:
        raise click.UsageError("--keep-owners and --as-mine exclude each other. Give one of them")
    with _open(file) as (name, lines):
        size = os.fstat(lines.fileno()).st_size
        with progress_bar("Checking", size) as advance:
            contents = count_lines(_read(name, lines, advance))
        lines.seek(0)
        mine = None if keep_owners else cli.settings.owner
        if mine is None:
            _check_owners(name, contents)
        elif not as_mine:
            _refuse_to_mix(name, contents, mine)

        async def import_all(runtime: CliRuntime) -> ImportCounts:
            with progress_bar("Importing", size) as advance:
                return await import_lines(runtime, _read(name, lines, advance), mine, dry_run=dry_run)

        # An import may create the home; without one, everything in the file is new.
        counts = cli.read(import_all, default=contents.counts) if dry_run else cli.open_home(import_all)
    render(Result({**asdict(counts), "dry_run": dry_run}, _lines(counts, dry_run)), as_json)


class FileContents(NamedTuple):
    """The contents of an export file."""

    counts: ImportCounts
    owners: frozenset[str]
    note_owners: frozenset[str]
    """Owners of the notes."""


def count_lines(lines: Iterator[AnyLine]) -> FileContents:
    """Count the contents of a file. Reading it checks it."""
    from everthread.domain.export_format import EndLine, NoteLine, SessionLine

    end = None
    owners: set[str] = set()
    note_owners: set[str] = set()
    for line in lines:
        end = line
        if isinstance(line, SessionLine | NoteLine):
            owners.add(line.owner)
        if isinstance(line, NoteLine):
            note_owners.add(line.owner)
    assert isinstance(end, EndLine)
    return FileContents(ImportCounts(end.sessions, end.turns, end.notes), frozenset(owners), frozenset(note_owners))


def _check_owners(name: str, contents: FileContents) -> None:
    """Check that owner names from the file are valid here. Raises `BadInput`."""
    from everthread.domain.pairing import owner_problem

    for owner in sorted(contents.owners):
        if problem := owner_problem(owner):
            raise BadInput(f"{name}: owner {owner[:40]!r} {problem}; give --as-mine to make everything yours")


def _refuse_to_mix(name: str, contents: FileContents, mine: str) -> None:
    """Raise `BadInput` for data of several people unless the user has chosen an owner."""
    if len(contents.owners) > 1:
        what = f"has data of {len(contents.owners)} people"
    elif contents.note_owners - {mine}:
        what = "has notes of another person"
    else:
        return
    raise BadInput(f"{name} {what}; give --keep-owners to keep the owners, or --as-mine to make everything yours")


async def import_lines(
    runtime: CliRuntime, lines: Iterator[AnyLine], mine: str | None, *, dry_run: bool
) -> ImportCounts:
    """Import new sessions and notes. If `mine` is given, it becomes the owner of everything."""
    from everthread.domain.export_format import NoteLine, SessionLine

    counts = ImportCounts()
    before: dict[str, ImportedSession] = {}
    noted: set[str] = set()
    items = _LinesBySession(lines)
    while (line := items.next_head()) is not None:
        if isinstance(line, SessionLine):
            owner = mine or line.owner
            done = await runtime.lifecycle.import_session(
                line, items.of(line.id), owner=owner, before=before, dry_run=dry_run
            )
            before[line.id] = done
            counts.count(line, done)
        elif isinstance(line, NoteLine):
            owner = mine or line.owner
            if await runtime.lifecycle.import_note(line, owner=owner, dry_run=dry_run):
                counts.notes += 1
                noted.add(owner)
    if not dry_run:
        for owner in sorted(noted):
            if problem := await runtime.sync_notes(owner):
                click.echo(strip_control_chars(problem), err=True)
    return counts


class _LinesBySession:
    """Group the lines by session."""

    def __init__(self, lines: Iterator[AnyLine]) -> None:
        self._lines = lines
        self._next: AnyLine | None = next(lines, None)

    def next_head(self) -> AnyLine | None:
        """Return the next line that starts a session or a note, skipping unread lines of the previous session."""
        while self._next is not None and hasattr(self._next, "session"):
            self._next = next(self._lines, None)
        found = self._next
        self._next = next(self._lines, None)
        return found

    def of(self, session_id: str) -> Iterable[Item]:
        while self._next is not None and getattr(self._next, "session", None) == session_id:
            item: Any = self._next
            self._next = next(self._lines, None)
            yield item


@contextlib.contextmanager
def _open(file: str) -> Generator[tuple[str, BinaryIO]]:
    """Open the file to import and yield its name and content, which can be read twice. `-` is stdin."""
    if file == "-":
        with _spool(sys.stdin.buffer) as lines:
            yield "stdin", lines
        return
    path = parse_path(file)
    try:
        kind = path.stat().st_mode
        # Opening a named pipe would block until it has a writer.
        if stat.S_ISFIFO(kind):
            raise BadInput(f"{path}: is a named pipe; read it from stdin: everthread sessions import - < {path}")
        if not stat.S_ISREG(kind):
            raise BadInput(f"{path}: not a regular file; export sessions to a file first")
        opened = path.open("rb")
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file") from None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; check its permissions") from None
    with opened as lines:
        yield path.name, lines


@contextlib.contextmanager
def _spool(source: BinaryIO) -> Generator[BinaryIO]:
    """Copy a pipe to an unnamed private file, so that it can be read twice."""
    import tempfile

    if source.isatty():
        raise click.UsageError("stdin is a terminal. Pipe an export into it, or give a FILE")
    with tempfile.TemporaryFile() as spool:
        try:
            while some := source.read(_SPOOL_BYTES):
                if spool.tell() + len(some) > _INPUT_BYTES_MAX:
                    raise TooLarge(f"stdin has more than {_INPUT_BYTES_MAX >> 30} GB; write it to a file first")
                spool.write(some)
            spool.seek(0)
        except OSError as error:
            raise translate_os_error(Path(tempfile.gettempdir()), error) from error
        yield spool


def _read(name: str, lines: BinaryIO, advance: Advance) -> Iterator[AnyLine]:
    from everthread.domain.export_format import LINE_BYTES_MAX, ExportReader

    def measured() -> Iterator[bytes]:
        # Limit the memory used by a line that is too long.
        while text := lines.readline(LINE_BYTES_MAX + 1):
            advance(len(text))
            yield text

    return ExportReader(name).lines(measured())


def _lines(counts: ImportCounts, dry_run: bool) -> Iterator[str]:
    would = "Would import" if dry_run else "Imported"
    notes = f" and {pluralize(counts.notes, 'note')}" if counts.notes else ""
    yield f"{would} {pluralize(counts.turns, 'turn')} of {pluralize(counts.sessions, 'session')}{notes}."
    if counts.same:
        yield f"{pluralize(counts.same, 'session')} had nothing new."
    remarks = [f"{old} was imported as {new}: its id is in use." for old, new in counts.renamed.items()]
    remarks += [f"{session_id} {why}." for session_id, why in counts.left_out.items()]
    yield from remarks[:_REMARKS_MAX]
    if len(remarks) > _REMARKS_MAX:
        yield f"... and {len(remarks) - _REMARKS_MAX} more; --json lists them all"
