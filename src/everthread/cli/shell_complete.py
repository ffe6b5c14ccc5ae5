"""What a shell is told when a word is completed. Whatever goes wrong, it is told nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from everthread.cli.context import CliContext, CliRuntime

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from everthread.store.unit_of_work import UnitOfWork

_OFFERED_MAX = 30

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def _safely(offered: Callable[[CliContext, str], list[CompletionItem]]) -> Complete:
    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
        invocation = context.find_object(CliContext)
        try:
            return offered(invocation, begun) if invocation is not None else []
        except Exception:  # noqa: BLE001 - there is nowhere to tell it: the person is in the middle of a line
            return []

    return complete


def _sessions(invocation: CliContext, begun: str) -> list[CompletionItem]:
    """Ids with their titles; and titles that are one word, which need no quotes."""
    from click.shell_completion import CompletionItem

    from everthread.cli.session_output import newest

    found = [(session.id, session.title or "") for session, _ in newest(invocation, _OFFERED_MAX)]
    ids = [CompletionItem(key, help=title or None) for key, title in found if key.startswith(begun.upper())]
    words = [title for _, title in found if title.isidentifier() and title.lower().startswith(begun.lower())]
    return [*(CompletionItem(word) for word in words if begun), *ids]


def _notes(invocation: CliContext, begun: str) -> list[CompletionItem]:
    async def look(runtime: CliRuntime) -> list[tuple[str, str]]:
        from everthread.domain.model import NoteTarget

        def current(uow: UnitOfWork) -> list[tuple[str, str]]:
            owner = runtime.settings.owner
            return [(n.note_id, n.content) for target in NoteTarget for n in uow.notes.current(owner, target)]

        return await runtime.store.read(current)

    from click.shell_completion import CompletionItem

    from everthread.cli.output import shortened

    found = invocation.look(look, nothing=[])
    offered = [CompletionItem(key, help=shortened(text)) for key, text in found if key.startswith(begun.upper())]
    return offered[:_OFFERED_MAX]


def _settings(invocation: CliContext, begun: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from everthread.cli.settings_view import as_json, leaves

    apart = {"home", "config", "env", "mcp", "warnings"}
    keys = [".".join(way) for way, _ in leaves(as_json(invocation.settings)) if way[0] not in apart]
    return [CompletionItem(key) for key in keys if key.startswith(begun)]


sessions = _safely(_sessions)
notes = _safely(_notes)
settings = _safely(_settings)
