"""`everthread sessions`: the group, and `sessions list`. Other verbs are imported when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everthread.cli.context import CliContext, list_options
from everthread.cli.lazy_group import LazyGroup
from everthread.cli.output import Result, render, table
from everthread.cli.session_output import newest_sessions, session_as_json, session_state
from everthread.domain.text_format import local_time, shorten

if TYPE_CHECKING:
    from everthread.domain.model import Session

_COMMANDS = {
    "list": ("sessions.group:list_sessions", "List sessions."),
    "browse": ("sessions.browse:browse_sessions", "Choose a session and show it."),
    "show": ("sessions.show:show_sessions", "Show the messages of a session."),
    "tree": ("sessions.tree:tree_sessions", "Draw the lineage of sessions."),
    "rename": ("sessions.edit:rename_sessions", "Rename a session."),
    "export": ("sessions.export:export_sessions", "Export sessions as JSON lines."),
    "import": ("sessions.import_:import_sessions", "Import sessions from a FILE."),
    "prune": ("sessions.prune:prune_sessions", "Delete sessions that ended long ago."),
    "delete": ("sessions.edit:delete_sessions", "Forget a session."),
    "reindex": ("sessions.reindex:reindex_sessions", "Rebuild the search index."),
}


@click.group(cls=LazyGroup, table=_COMMANDS)
def sessions() -> None:
    """List, show, export, import and delete sessions.

    A session is named by its id, the first characters of its id (4 or more), or its title.

    \b
    Examples:
      everthread sessions list --limit 5
      everthread sessions show "Trip to Lisbon"
      everthread sessions export --all -o everything.jsonl
    """


@click.command("list")
@list_options
def list_sessions(cli: CliContext, as_json: bool, limit: int) -> None:
    """List sessions of every owner, most recently active first.

    \b
    Examples:
      everthread sessions list
      everthread sessions list --limit 5 --json | jq -r '.[].title'
    """
    found = newest_sessions(cli, limit)
    render(
        Result(
            lambda: [session_as_json(session, turns) for session, turns in found],
            lambda: table(
                ("ID", "TITLE", "STATE", "TURNS", "LAST ACTIVE", "KEY"),
                [_row(session, turns) for session, turns in found],
                empty=f"No sessions yet in {cli.settings.home}.",
            ),
        ),
        as_json,
    )


def _row(session: Session, turns: int) -> tuple[str, ...]:
    return (
        session.id,
        shorten(session.title or "-"),
        session_state(session),
        str(turns),
        local_time(session.active_at),
        str(session.key),
    )
