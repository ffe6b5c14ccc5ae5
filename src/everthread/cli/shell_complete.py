"""Shell completion of sessions, notes and settings. Errors yield no completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from everthread.cli.context import CliContext

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from everthread.store.unit_of_work import UnitOfWork

_ITEMS_MAX = 30

Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def _safe(complete: Callable[[CliContext, str], list[CompletionItem]]) -> Completer:
    def safe(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        cli = context.find_object(CliContext)
        try:
            return complete(cli, incomplete) if cli is not None else []
        except Exception:  # noqa: BLE001 - an error message would disturb the line being typed
            return []

    return safe


def _sessions(cli: CliContext, incomplete: str) -> list[CompletionItem]:
    """Complete ids, with titles as help; and titles of one word, which need no quotes."""
    from click.shell_completion import CompletionItem

    from everthread.cli.session_output import newest_sessions

    found = [(session.id, session.title or "") for session, _ in newest_sessions(cli, _ITEMS_MAX)]
    ids = [CompletionItem(key, help=title or None) for key, title in found if key.startswith(incomplete.upper())]
    words = [title for _, title in found if title.isidentifier() and title.lower().startswith(incomplete.lower())]
    return [*(CompletionItem(word) for word in words if incomplete), *ids]


def _notes(cli: CliContext, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from everthread.domain.model import NoteTarget
    from everthread.domain.text_format import shorten

    def read(uow: UnitOfWork) -> list[tuple[str, str]]:
        notes = [note for target in NoteTarget for note in uow.notes.current(cli.settings.owner, target)]
        return [(note.note_id, note.content) for note in notes]

    found = cli.read(lambda runtime: runtime.store.read(read), default=[])
    items = [CompletionItem(key, help=shorten(text)) for key, text in found if key.startswith(incomplete.upper())]
    return items[:_ITEMS_MAX]


def _settings(cli: CliContext, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from everthread.cli.settings_view import as_json, leaves

    excluded = {"home", "config", "env", "mcp", "warnings"}
    keys = [".".join(path) for path, _ in leaves(as_json(cli.settings)) if path[0] not in excluded]
    return [CompletionItem(key) for key in keys if key.startswith(incomplete)]


complete_sessions = _safe(_sessions)
complete_notes = _safe(_notes)
complete_settings = _safe(_settings)
