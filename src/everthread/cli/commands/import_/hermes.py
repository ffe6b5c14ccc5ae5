"""`everthread import hermes`: take in what Hermes Agent has kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from everthread.cli import output as show
from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.cli.commands.import_.hermes_data import Taken, Taking
    from everthread.config.settings import Settings
    from everthread.hermes_import.allowlist import Account
    from everthread.hermes_import.database import Database
    from everthread.hermes_import.home import HermesHome
    from everthread.hermes_import.session_keys import Route

_REMARKS_MAX = 30
_BROUGHT = "hermes-import.json"
"""In the home: whom and what earlier imports have brought. What was taken out since must not come back."""
_NEVER = {
    "config.yaml": "settings are not taken; `everthread setup` makes ours",
    "SOUL.md": "is Hermes's own prompt; put what you want of it into AGENTS.md",
    "cron": "scheduled tasks are not taken; schedule them anew",
    "plugins": "are programs for Hermes",
    "hooks": "are programs for Hermes",
}


class Brought(Struct, frozen=True):
    accounts: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    places: dict[str, str] = {}


@click.command()
@click.argument("path", required=False)
@click.option("--dry-run", is_flag=True, help="Say what would be taken; change nothing.")
@click.option("--as-mine", is_flag=True, help="Let all of it belong to you, also what was said on platforms.")
@json_option
@home_option
@pass_invocation
def hermes(invocation: CliContext, path: str | None, dry_run: bool, as_mine: bool, as_json: bool) -> None:
    """Take in what Hermes Agent keeps in PATH; without it, in $HERMES_HOME or ~/.hermes.

    Conversations with their branches, summaries, tools and thoughts; which chat goes on with which of them; MEMORY.md
    and USER.md; your skills; who is let in. Nothing is changed there, and Hermes may be running. To import again adds
    what is new. What was forgotten, removed or turned out here does not come back. Memory providers are not told of
    imported turns; `journal replay` does that.

    What was said in a terminal is yours; what was said on a platform belongs to the account that said it, or to whom
    `gateway.links` in the settings says it is.

    \b
    Examples:
      everthread import hermes --dry-run
      everthread import hermes
      everthread import hermes /srv/hermes --as-mine
      everthread import hermes ~/.hermes/profiles/work --json
    """
    from everthread.cli.commands.import_.hermes_data import Taken
    from everthread.cli.files import path_given
    from everthread.config.environment import hermes_home
    from everthread.hermes_import.database import opened
    from everthread.hermes_import.home import HermesHome

    home = HermesHome(path_given(path) if path is not None else hermes_home())
    settings = invocation.settings
    taken = Taken(str(home.path))
    with opened(home.database) if home.database.exists() else nullcontext() as database:
        routes, accounts = _read(home, database, taken)

        async def take(runtime: CliRuntime | None) -> Taken:
            taking = _taking(runtime, settings, taken, as_mine=as_mine, dry_run=dry_run)
            await _take(runtime, taking, home, database, routes, accounts, settings, dry_run=dry_run)
            return taken

        if not dry_run:
            invocation.talk(take)
        elif invocation.look(_is_there, nothing=False):
            invocation.look(take, nothing=taken)
        else:
            invocation.run(take(None))
    if as_json:
        show.print_json(_as_json(taken, dry_run))
    else:
        click.echo("\n".join(_words(taken, dry_run)))


async def _is_there(_: CliRuntime) -> bool:
    return True


def _read(home: HermesHome, database: Database | None, taken: Taken) -> tuple[list[Route], list[Account]]:
    """What the files say, before anything is changed: if one can't be read, nothing is."""
    from everthread.hermes_import.allowlist import accounts_of
    from everthread.hermes_import.database import SCHEMAS
    from everthread.hermes_import.session_keys import routes_of

    entries = database.routing() if database is not None else {}
    # The table is the newer of the two; what is only in the file is of before it.
    routes, spoiled = routes_of(entries, home.routing())
    if spoiled:
        taken.leave("entries of the routing", "can't be understood", spoiled)
    accounts, left = accounts_of(home.access_variables(), home.approved())
    taken.not_taken += left
    if database is None:
        taken.leave("state.db", "there is none, so there are no conversations")
    else:
        taken.schema = database.schema
        if taken.schema not in SCHEMAS:
            known = f"{SCHEMAS[0]} to {SCHEMAS[-1]}"
            taken.leave("what is new in its database", f"is of version {taken.schema}; versions {known} are known")
    return routes, accounts


def _taking(runtime: CliRuntime | None, settings: Settings, taken: Taken, *, as_mine: bool, dry_run: bool) -> Taking:
    import time

    from everthread.cli.commands.import_.hermes_data import Taking

    now = runtime.clock.now() if runtime is not None else time.time()  # noqa: TID251 - there is no clock yet
    return Taking(runtime, settings, taken, now, as_mine=as_mine, dry_run=dry_run)


async def _take(
    runtime: CliRuntime | None,
    taking: Taking,
    home: HermesHome,
    database: Database | None,
    routes: list[Route],
    accounts: list[Account],
    settings: Settings,
    *,
    dry_run: bool,
) -> None:
    from everthread.agent.skills.folders import SkillFolders
    from everthread.cli.commands.import_.hermes_skills import take_skills
    from everthread.cli.output import bar
    from everthread.domain.model import NoteTarget

    taken, brought = taking.taken, _brought(settings.home)
    if database is not None:
        with bar("Importing", database.count()) as advance:
            await taking.sessions(database, routes, advance)
    await taking.guests(accounts, brought.accounts)
    for target in NoteTarget:
        await taking.notes(target, home.notes(target))
    folders = runtime.skills if runtime is not None else SkillFolders(settings.skills_path)
    skills = take_skills(home, folders, brought.skills, dry_run=dry_run)
    taken.skills, taken.not_taken = skills.names, [*taken.not_taken, *skills.not_taken]
    if runtime is not None and not dry_run:
        _remember(settings.home, brought, taken)
        if taken.tally.notes and (problem := await runtime.sync_notes(settings.owner)):
            click.echo(problem, err=True)
        await runtime.start()
    await taking.routing(routes, brought.places)
    if runtime is not None and not dry_run:
        _remember(settings.home, brought, taken)
        await runtime.drain()
    for name in home.there(*_NEVER):
        taken.leave(name, _NEVER[name])
    for name in home.others():
        taken.leave(f"profile {name}", f"is a home of its own; import {home.path / 'profiles' / name} too")


def _brought(home: Path) -> Brought:
    import msgspec

    from everthread.domain.errors import BadInput

    file = home / _BROUGHT
    try:
        return msgspec.json.decode(file.read_bytes(), type=Brought)
    except FileNotFoundError:
        return Brought()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        # Whoever was turned out here would come back in.
        raise BadInput(
            f"{file}: can't be read, and says whom and what earlier imports have brought; take it from a backup, or "
            "remove it to have all of that brought again"
        ) from None


def _remember(home: Path, brought: Brought, taken: Taken) -> None:
    import msgspec

    from everthread.config.edit import replace_file

    accounts = dict.fromkeys((*brought.accounts, *taken.guests))
    skills = dict.fromkeys((*brought.skills, *taken.skills))
    now = Brought(tuple(accounts), tuple(skills), taken.put_on or brought.places)
    if now != brought:
        replace_file(home / _BROUGHT, msgspec.json.encode(now).decode() + "\n")


def _words(taken: Taken, dry_run: bool) -> Iterator[str]:
    tally = taken.tally
    would = "Would import" if dry_run else "Imported"
    said = f"{show.counted(taken.messages, 'message')} in {show.counted(tally.turns, 'turn')}"
    yield f"{would} {said} of {show.counted(tally.sessions, 'session')} from {show.one_line(taken.source)}."
    if tally.same:
        yield f"{show.counted(tally.same, 'session')} had nothing new."
    for count, what in ((tally.notes, "note"), (len(taken.skills), "skill"), (len(taken.guests), "guest")):
        if count:
            yield f"{would} {show.counted(count, what)}."
    if taken.places:
        goes = "would go on" if dry_run else "goes on"
        yield f"{show.counted(len(taken.places), 'chat')} {goes} here where it was left."
    remarks = [f"{old} is {new} here: its id was taken." for old, new in tally.renamed.items()]
    remarks += [f"{session_id} {why}." for session_id, why in tally.left_out.items()]
    remarks += [f"{_counted(each.count, each.what)}: {each.why}." for each in taken.not_taken]
    if remarks:
        yield "Not taken, or not as it was:"
        yield from (f"  {show.one_line(remark)}" for remark in remarks[:_REMARKS_MAX])
    if len(remarks) > _REMARKS_MAX:
        yield f"  ... and {len(remarks) - _REMARKS_MAX} more; --json lists them all"


def _counted(count: int, what: str) -> str:
    return what if count == 1 else f"{count:,} {what}"


def _as_json(taken: Taken, dry_run: bool) -> dict[str, Any]:
    tally = taken.tally
    return {
        "source": taken.source,
        "schema": taken.schema,
        "sessions": tally.sessions,
        "turns": tally.turns,
        "messages": taken.messages,
        "same": tally.same,
        "renamed": tally.renamed,
        "left_out": tally.left_out,
        "places": taken.places,
        "notes": tally.notes,
        "skills": taken.skills,
        "guests": taken.guests,
        "not_taken": [{"what": each.what, "why": each.why, "count": each.count} for each in taken.not_taken],
        "dry_run": dry_run,
    }
