"""`everthread sessions import`: take exported conversations in."""

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

from everthread.cli import output as show
from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.cli.output import Advance
    from everthread.domain.export_format import AnyLine, Item, SessionLine
    from everthread.lifecycle.session_import import Imported

_REMARKS_MAX = 20
_SPOOL_BYTES = 1 << 20
_INPUT_BYTES_MAX = 16 << 30


class Tally(Struct):
    """What an import came to."""

    sessions: int = 0
    turns: int = 0
    notes: int = 0
    same: int = 0
    renamed: dict[str, str] = field(default_factory=dict[str, str])
    left_out: dict[str, str] = field(default_factory=dict[str, str])

    def count(self, line: SessionLine, done: Imported) -> None:
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
@click.option("--dry-run", is_flag=True, help="Check the file and say what would be added; change nothing.")
@click.option("--keep-owners", is_flag=True, help="Let everything belong to whom the file says, instead of to you.")
@click.option("--as-mine", is_flag=True, help="Let everything belong to you, even what several people have said.")
@json_option
@home_option
@pass_invocation
def import_sessions(
    invocation: CliContext, file: str, dry_run: bool, keep_owners: bool, as_mine: bool, as_json: bool
) -> None:
    """Take in the sessions of a FILE that `sessions export` has written; - is what is piped in.

    The whole file is checked first: if a line is wrong, nothing is imported. A session keeps its id unless another has
    it. Importing a file again adds what is new in it, and goes on where an interrupted import ended. What was forgotten
    here stays forgotten. Memory providers are not told of imported turns; `journal replay` does that.

    What one person has said becomes yours. A file of several people, or with somebody else's notes, is refused until
    you say whose it is to be.

    \b
    Examples:
      everthread sessions import everything.jsonl --dry-run
      everthread sessions import everything.jsonl
      everthread sessions import backup-of-the-team.jsonl --keep-owners
      everthread sessions export --all | everthread --home /srv/other sessions import - --keep-owners
    """
    from everthread.cli.output import bar

    if keep_owners and as_mine:
        raise click.UsageError("--keep-owners and --as-mine exclude each other; give one")
    with _opened(file) as (name, lines):
        size = os.fstat(lines.fileno()).st_size
        with bar("Checking", size) as advance:
            whole = counted(_read(name, lines, advance))
        lines.seek(0)
        mine = None if keep_owners else invocation.settings.owner
        if mine is None:
            _check_owners(name, whole)
        elif not as_mine:
            _refuse_to_mix(name, whole, mine)

        async def take_in(runtime: CliRuntime) -> Tally:
            with bar("Importing", size) as advance:
                return await take_lines_in(runtime, _read(name, lines, advance), mine, dry_run=dry_run)

        # An import may make the home; where there is none, all of the file is new.
        tally = invocation.look(take_in, nothing=whole.tally) if dry_run else invocation.talk(take_in)
    if as_json:
        show.print_json(_as_json(tally, dry_run))
    else:
        click.echo("\n".join(_words(tally, dry_run)))


class Whole(NamedTuple):
    """All that a file has."""

    tally: Tally
    owners: frozenset[str]
    noting: frozenset[str]
    """Those of whom it has notes."""


def counted(lines: Iterator[AnyLine]) -> Whole:
    """All that a file has, if it is sound."""
    from everthread.domain.export_format import EndLine, NoteLine, SessionLine

    end = None
    owners: set[str] = set()
    noting: set[str] = set()
    for line in lines:
        end = line
        if isinstance(line, SessionLine | NoteLine):
            owners.add(line.owner)
        if isinstance(line, NoteLine):
            noting.add(line.owner)
    assert isinstance(end, EndLine)
    return Whole(Tally(end.sessions, end.turns, end.notes), frozenset(owners), frozenset(noting))


def _check_owners(name: str, whole: Whole) -> None:
    """Whoever keeps what is theirs must have a name that could be set here, too."""
    from everthread.domain.errors import BadInput
    from everthread.domain.pairing import owner_problem

    for owner in sorted(whole.owners):
        if problem := owner_problem(owner):
            raise BadInput(f"{name}: owner {owner[:40]!r} {problem}; --as-mine makes all of it yours")


def _refuse_to_mix(name: str, whole: Whole, mine: str) -> None:
    """Several people's conversations, and what is known of somebody else, become nobody's by mere omission."""
    from everthread.domain.errors import BadInput

    if len(whole.owners) > 1:
        what = f"is of {len(whole.owners)} people"
    elif whole.noting - {mine}:
        what = "has notes of somebody else"
    else:
        return
    raise BadInput(f"{name} {what}; --keep-owners lets each keep theirs, --as-mine makes all of it yours")


async def take_lines_in(runtime: CliRuntime, lines: Iterator[AnyLine], mine: str | None, *, dry_run: bool) -> Tally:
    """Import what is new; everything belongs to `mine`, if that is given."""
    from everthread.domain.export_format import NoteLine, SessionLine

    tally = Tally()
    before: dict[str, Imported] = {}
    noted: set[str] = set()
    items = _Items(lines)
    while (line := items.next_head()) is not None:
        if isinstance(line, SessionLine):
            owner = mine or line.owner
            done = await runtime.lifecycle.import_session(
                line, items.of(line.id), owner=owner, before=before, dry_run=dry_run
            )
            before[line.id] = done
            tally.count(line, done)
        elif isinstance(line, NoteLine):
            owner = mine or line.owner
            if await runtime.lifecycle.import_note(line, owner=owner, dry_run=dry_run):
                tally.notes += 1
                noted.add(owner)
    if not dry_run:
        for owner in sorted(noted):
            if problem := await runtime.sync_notes(owner):
                click.echo(problem, err=True)
    return tally


class _Items:
    """Hands out the lines of one session after the other."""

    def __init__(self, lines: Iterator[AnyLine]) -> None:
        self._lines = lines
        self._next: AnyLine | None = next(lines, None)

    def next_head(self) -> AnyLine | None:
        """The next line that is no session's part; what nobody wanted before it is passed over."""
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
def _opened(file: str) -> Generator[tuple[str, BinaryIO]]:
    """The file to import, and its name. Whatever it was, it can be read twice; `-` is what is piped in."""
    from everthread.cli.files import path_given
    from everthread.domain.errors import BadInput, NotFound

    if file == "-":
        with _spooled(sys.stdin.buffer) as lines:
            yield "standard input", lines
        return
    path = path_given(file)
    try:
        kind = path.stat().st_mode
        # Opening a pipe would wait for whoever writes to it.
        if stat.S_ISFIFO(kind):
            raise BadInput(
                f"{path}: is a pipe; give - and let it be the standard input: ... sessions import - < {path}"
            )
        if not stat.S_ISREG(kind):
            raise BadInput(f"{path}: is no file; export sessions to one first")
        opened = path.open("rb")
    except FileNotFoundError:
        raise NotFound(f"{path}: there is no such file") from None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; check its permissions") from None
    with opened as lines:
        yield path.name, lines


@contextlib.contextmanager
def _spooled(source: BinaryIO) -> Generator[BinaryIO]:
    """What comes through a pipe, in a file that has no name and that only its owner may read."""
    import tempfile

    from everthread.cli.files import unwritable
    from everthread.domain.errors import TooLarge

    if source.isatty():
        raise click.UsageError("The standard input is a terminal; pipe an export into it, or give a FILE")
    with tempfile.TemporaryFile() as spool:
        try:
            while some := source.read(_SPOOL_BYTES):
                if spool.tell() + len(some) > _INPUT_BYTES_MAX:
                    raise TooLarge(f"more than {_INPUT_BYTES_MAX >> 30} GB were piped in; write them to a file first")
                spool.write(some)
            spool.seek(0)
        except OSError as error:
            raise unwritable(Path(tempfile.gettempdir()), error) from error
        yield spool


def _read(name: str, lines: BinaryIO, advance: Advance) -> Iterator[AnyLine]:
    from everthread.domain.export_format import LINE_BYTES_MAX, Reader

    def measured() -> Iterator[bytes]:
        # No line is read beyond what one may be.
        while text := lines.readline(LINE_BYTES_MAX + 1):
            advance(len(text))
            yield text

    return Reader(name).lines(measured())


def _words(tally: Tally, dry_run: bool) -> Iterator[str]:
    would = "Would import" if dry_run else "Imported"
    notes = f" and {show.counted(tally.notes, 'note')}" if tally.notes else ""
    yield f"{would} {show.counted(tally.turns, 'turn')} of {show.counted(tally.sessions, 'session')}{notes}."
    if tally.same:
        yield f"{show.counted(tally.same, 'session')} had nothing new."
    remarks = [f"{old} is {new} here: its id was taken." for old, new in tally.renamed.items()]
    remarks += [f"{session_id} {why}." for session_id, why in tally.left_out.items()]
    yield from remarks[:_REMARKS_MAX]
    if len(remarks) > _REMARKS_MAX:
        yield f"... and {len(remarks) - _REMARKS_MAX} more; --json lists them all"


def _as_json(tally: Tally, dry_run: bool) -> dict[str, Any]:
    return {
        "sessions": tally.sessions,
        "turns": tally.turns,
        "notes": tally.notes,
        "same": tally.same,
        "renamed": tally.renamed,
        "left_out": tally.left_out,
        "dry_run": dry_run,
    }
