"""`everthread import hermes`: import the data of Hermes Agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec import Struct

from everthread.cli.context import CliContext, CliRuntime, common_options
from everthread.cli.files import parse_path
from everthread.cli.output import Result, progress_bar, render, strip_control_chars
from everthread.domain.errors import BadInput
from everthread.domain.text_format import one_line, pluralize

if TYPE_CHECKING:
    from everthread.cli.commands.import_.hermes_data import HermesImport, ImportReport
    from everthread.hermes_import.allowlist import Account
    from everthread.hermes_import.database import Database
    from everthread.hermes_import.home import HermesHome
    from everthread.hermes_import.session_keys import Route

_REMARKS_MAX = 30
_HISTORY_FILE = "hermes-import.json"
"""In the home: accounts and skills of earlier imports. Those removed since must not come back."""
_NOT_IMPORTED = {
    "config.yaml": "settings are not imported; run `everthread setup`",
    "SOUL.md": "is the prompt of Hermes; copy what you need into AGENTS.md",
    "cron": "scheduled tasks are not imported; add them with `everthread cron add`",
    "plugins": "are programs for Hermes",
    "hooks": "are programs for Hermes",
}


class ImportHistory(Struct, frozen=True):
    """Accounts, skills and chat bindings of earlier imports."""

    accounts: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    places: dict[str, str] = {}


@click.command()
@click.argument("path", required=False)
@click.option("--dry-run", is_flag=True, help="Show what would be imported.")
@click.option("--as-mine", is_flag=True, help="Make everything yours, including sessions on platforms.")
@common_options
def hermes(cli: CliContext, path: str | None, dry_run: bool, as_mine: bool, as_json: bool) -> None:
    """Import the data of Hermes Agent from PATH (default: $HERMES_HOME or ~/.hermes).

    Imports sessions with branches, summaries, tool calls and reasoning; the current session of each chat; MEMORY.md
    and USER.md; your skills; allowed accounts. The source is not changed, and Hermes may be running. Importing again
    adds what is new. Data forgotten or removed here does not come back. Imported turns are not delivered to memory
    providers; `journal replay` does that.

    Terminal sessions become yours. Sessions on a platform belong to the account that wrote them, or to the person
    named for it in `gateway.links`.

    \b
    Examples:
      everthread import hermes --dry-run
      everthread import hermes
      everthread import hermes /srv/hermes --as-mine
      everthread import hermes ~/.hermes/profiles/work --json
    """
    from everthread.cli.commands.import_.hermes_data import HermesImport, ImportReport
    from everthread.config.environment import hermes_home
    from everthread.hermes_import.database import open_database
    from everthread.hermes_import.home import HermesHome

    home = HermesHome(parse_path(path) if path is not None else hermes_home())
    report = ImportReport(str(home.path))
    with open_database(home.database) if home.database.exists() else nullcontext() as database:
        source = _read(home, database, report)

        async def run(runtime: CliRuntime | None) -> None:
            await _import(HermesImport(runtime, cli.settings, report, as_mine=as_mine, dry_run=dry_run), source)

        if not dry_run:
            cli.open_home(run)
        elif cli.has_store():
            cli.read_existing(run)
        else:
            cli.run(run(None))
    render(Result(lambda: _as_json(report, dry_run), lambda: _lines(report, dry_run)), as_json)


class HermesData(NamedTuple):
    """The data to import."""

    home: HermesHome
    database: Database | None
    routes: list[Route]
    accounts: list[Account]


def _read(home: HermesHome, database: Database | None, report: ImportReport) -> HermesData:
    """Read all files before anything is changed, so that an unreadable file stops the import."""
    from everthread.hermes_import.allowlist import accounts_of
    from everthread.hermes_import.database import SCHEMAS
    from everthread.hermes_import.session_keys import routes_of

    entries = database.routing() if database is not None else {}
    # The table replaced the file; entries that are only in the file are older.
    routes, spoiled = routes_of(entries, home.routing())
    if spoiled:
        report.skip("routing entries", "have an unknown format", spoiled)
    accounts, left = accounts_of(home.access_variables(), home.approved())
    report.skipped += left
    if database is None:
        report.skip("state.db", "is missing, so there are no sessions")
    else:
        report.schema = database.schema
        if report.schema not in SCHEMAS:
            known = f"{SCHEMAS[0]} to {SCHEMAS[-1]}"
            report.skip("new parts of the database", f"have schema {report.schema}; schemas {known} are supported")
    return HermesData(home, database, routes, accounts)


async def _import(job: HermesImport, source: HermesData) -> None:
    from everthread.agent.skills.folders import SkillFolders
    from everthread.cli.commands.import_.hermes_skills import import_skills
    from everthread.domain.model import NoteTarget

    runtime, settings, report, home = job.runtime, job.settings, job.report, source.home
    history = _read_history(settings.home)
    if source.database is not None:
        with progress_bar("Importing", source.database.count()) as advance:
            await job.sessions(source.database, source.routes, advance)
    await job.guests(source.accounts, history.accounts)
    for target in NoteTarget:
        await job.notes(target, home.notes(target))
    folders = runtime.skills if runtime is not None else SkillFolders(settings.skills_path)
    skills = import_skills(home, folders, history.skills, dry_run=job.dry_run)
    report.skills, report.skipped = skills.names, [*report.skipped, *skills.skipped]
    if runtime is not None and not job.dry_run:
        _write_history(settings.home, history, report)
        if report.counts.notes and (problem := await runtime.sync_notes(settings.owner)):
            click.echo(strip_control_chars(problem), err=True)
        await runtime.start()
    await job.routing(source.routes, history.places)
    if runtime is not None and not job.dry_run:
        _write_history(settings.home, history, report)
        await runtime.drain()
    for name in home.existing(*_NOT_IMPORTED):
        report.skip(name, _NOT_IMPORTED[name])
    for name in home.other_profiles():
        report.skip(
            f"profile {name}",
            f"is a separate home; import it with everthread import hermes {home.path / 'profiles' / name}",
        )


def _read_history(home: Path) -> ImportHistory:
    import msgspec

    file = home / _HISTORY_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=ImportHistory)
    except FileNotFoundError:
        return ImportHistory()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        # Without it, accounts removed here would be allowed again.
        raise BadInput(
            f"{file}: unreadable record of earlier imports; restore it from a backup, or remove it to import "
            "everything again"
        ) from None


def _write_history(home: Path, history: ImportHistory, report: ImportReport) -> None:
    import msgspec

    from everthread.config.edit import replace_file

    accounts = dict.fromkeys((*history.accounts, *report.guests))
    skills = dict.fromkeys((*history.skills, *report.skills))
    now = ImportHistory(tuple(accounts), tuple(skills), report.bindings or history.places)
    if now != history:
        replace_file(home / _HISTORY_FILE, msgspec.json.encode(now).decode() + "\n")


def _lines(report: ImportReport, dry_run: bool) -> Iterator[str]:
    counts = report.counts
    verb = "Would import" if dry_run else "Imported"
    messages = f"{pluralize(report.messages, 'message')} in {pluralize(counts.turns, 'turn')}"
    yield f"{verb} {messages} of {pluralize(counts.sessions, 'session')} from {one_line(report.source)}."
    if counts.same:
        yield f"{pluralize(counts.same, 'session')} had nothing new."
    for count, what in ((counts.notes, "note"), (len(report.skills), "skill"), (len(report.guests), "guest")):
        if count:
            yield f"{verb} {pluralize(count, what)}."
    if report.places:
        verb = "would continue" if dry_run else "continue"
        yield f"{pluralize(len(report.places), 'chat')} {verb} with the imported sessions."
    remarks = [f"{old} was imported as {new}: its id is in use." for old, new in counts.renamed.items()]
    remarks += [f"{session_id} {why}." for session_id, why in counts.left_out.items()]
    remarks += [f"{'' if each.count == 1 else f'{each.count:,} '}{each.what}: {each.why}." for each in report.skipped]
    if remarks:
        yield "Not imported, or changed:"
        yield from (f"  {one_line(remark)}" for remark in remarks[:_REMARKS_MAX])
    if len(remarks) > _REMARKS_MAX:
        yield f"  ... and {len(remarks) - _REMARKS_MAX} more; --json lists them all"


def _as_json(report: ImportReport, dry_run: bool) -> dict[str, Any]:
    counts = report.counts
    return {
        "source": report.source,
        "schema": report.schema,
        "sessions": counts.sessions,
        "turns": counts.turns,
        "messages": report.messages,
        "same": counts.same,
        "renamed": counts.renamed,
        "left_out": counts.left_out,
        "places": report.places,
        "notes": counts.notes,
        "skills": report.skills,
        "guests": report.guests,
        "not_taken": [{"what": each.what, "why": each.why, "count": each.count} for each in report.skipped],
        "dry_run": dry_run,
    }
