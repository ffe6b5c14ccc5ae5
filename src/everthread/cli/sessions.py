"""`everthread sessions`: what conversations there are, and what can be done with them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from everthread.cli import show
from everthread.cli.opened import Invocation, home_option, json_option, limit_option, pass_invocation

if TYPE_CHECKING:
    from everthread.domain.model import Session
    from everthread.ports import UnitOfWork

# Each verb's module, and how its own help begins; a module is loaded when its verb is used.
_VERBS = {
    "list": ("sessions", "List sessions."),
    "browse": ("sessions_browse", "Choose a session and read it."),
    "show": ("sessions_show", "Show what was said."),
    "tree": ("sessions_tree", "Draw which session grew out of which."),
    "rename": ("sessions_rename", "Give a session another title."),
    "export": ("sessions_export", "Write sessions as lines of JSON."),
    "import": ("sessions_import", "Take in the sessions of a FILE."),
    "prune": ("sessions_prune", "Remove sessions that ended long ago."),
    "delete": ("sessions_delete", "Forget a session."),
}


class _Verbs(click.Group):
    """Imports the one verb that is asked for; each is called VERB_sessions in its module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        return getattr(import_module(f"everthread.cli.{_VERBS[cmd_name][0]}"), f"{cmd_name}_sessions")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, words) for verb, (_, words) in _VERBS.items()])


@click.group(cls=_Verbs)
def sessions() -> None:
    """Look at conversations, name them, copy them, remove them.

    Wherever a session is named, its id will do, the beginning of it (4 characters or more), or its title.

    \b
    Examples:
      everthread sessions list --limit 5
      everthread sessions show "Trip to Lisbon"
      everthread sessions export --all -o everything.jsonl
    """


@click.command("list")
@json_option
@limit_option
@home_option
@pass_invocation
def list_sessions(invocation: Invocation, as_json: bool, limit: int) -> None:
    """List sessions of every owner, the last active first.

    \b
    Examples:
      everthread sessions list
      everthread sessions list --limit 5 --json | jq -r '.[].title'
    """
    found = newest(invocation, limit)
    if as_json:
        show.print_json([session_as_json(session, turns) for session, turns in found])
    elif not found:
        click.echo(f"No sessions yet in {invocation.settings.home}.")
    else:
        rows = [
            (
                *(session.id, show.shortened(session.title or "-"), state(session), str(turns)),
                *(show.local_time(session.active_at), str(session.key)),
            )
            for session, turns in found
        ]
        click.echo(show.table(("ID", "TITLE", "STATE", "TURNS", "LAST ACTIVE", "KEY"), rows))


def newest(invocation: Invocation, limit: int) -> Sequence[tuple[Session, int]]:
    """Conversations of every owner, the last active first, each with how many turns it shows."""

    def listed(uow: UnitOfWork) -> Sequence[tuple[Session, int]]:
        return [(session, uow.turns.count(session)) for session in uow.sessions.conversations(limit)]

    found = invocation.glance(limit)
    return invocation.look(lambda runtime: runtime.store.read(listed), nothing=[]) if found is None else found


def state(session: Session) -> str:
    return "open" if session.ended_at is None else f"ended ({session.end_reason})"


def session_as_json(session: Session, turns: int) -> dict[str, Any]:
    return {
        "id": session.id,
        "title": session.title,
        "state": "open" if session.ended_at is None else "ended",
        "end_reason": session.end_reason,
        "turns": turns,
        "last_active": show.iso_time(session.active_at),
        "opened": show.iso_time(session.opened_at),
        "key": str(session.key),
        "owner": session.owner,
        "kind": session.kind.value,
        "cause": session.cause.value,
        "parent": session.parent_id,
    }


def named(session: Session) -> str:
    """A session for a sentence: its title, if it has one, and its id."""
    return f'"{show.one_line(session.title)}" ({session.id})' if session.title else session.id


def nothing_there(text: str, invocation: Invocation) -> Exception:
    from everthread.domain.errors import NotFound

    return NotFound(f"there is no {text[:100]!r}: nothing is kept in {invocation.settings.home} yet")
