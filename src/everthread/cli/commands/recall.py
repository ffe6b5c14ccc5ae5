"""`everthread recall`: show what memory recalls for a question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext, CliRuntime, common_options
from everthread.cli.output import Result, iso_time, render
from everthread.domain.text_format import local_time, one_line, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from everthread.memory.recall import Recall
    from everthread.ports.memory import RecallItem

_QUERY_CHARS_MAX = 10_000
_LINES_MAX = 6


@click.command()
@click.argument("query")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Show at most N items, best first.")
@common_options
def recall(cli: CliContext, query: str, limit: int | None, as_json: bool) -> None:
    """Show what memory recalls for QUERY, and the source of each item.

    The limits are those of a turn: memory.recall_s seconds and memory.recall_tokens tokens.

    \b
    Examples:
      everthread recall "When do I fly to Lisbon?"
      everthread recall "green tea" --limit 3 --json
    """
    if not query.strip() or len(query) > _QUERY_CHARS_MAX:
        raise click.UsageError(f"QUERY must have 1 to {_QUERY_CHARS_MAX} characters")

    async def ask(runtime: CliRuntime) -> tuple[Recall, dict[str, str]]:
        from everthread.domain.model import ChatType, SessionKey, SessionRef

        settings = runtime.settings
        # A key of its own, so that nothing is omitted for being in the transcript already.
        key = SessionKey(settings.profile, "cli", ChatType.DM, "recall")
        found = await runtime.memory.recall(
            query,
            ref=SessionRef("", 0, key, 0, settings.owner),
            deadline_s=settings.memory.recall_s,
            budget_tokens=settings.memory.recall_tokens,
        )
        ids = {item.session_id for item in found.items}
        sessions = await runtime.store.read(lambda uow: [uow.sessions.get(session_id) for session_id in ids])
        return found, {session.id: session.title for session in sessions if session and session.title}

    answer = cli.read(ask, default=None)
    items = answer[0].items[:limit] if answer else ()
    titles = answer[1] if answer else {}
    missing = answer[0].missing if answer else ()

    def text() -> Iterator[str]:
        for number, item in enumerate(items, start=1):
            yield f"{number}. {_source(item, titles)}"
            lines = [one_line(line) for line in item.text.splitlines() if line.strip()]
            yield "\n".join(f"   {line}" for line in lines[:_LINES_MAX])
        if not items:
            yield "Nothing recalled."
        for name in missing:
            click.echo(f"{name} failed or did not answer within memory.recall_s seconds.", err=True)

    render(Result({"items": [_as_json(item, titles) for item in items], "missing": list(missing)}, text), as_json)


def _source(item: RecallItem, titles: dict[str, str]) -> str:
    title = titles.get(item.session_id)
    parts = [
        f'"{shorten(title)}" ({item.session_id})' if title else item.session_id,
        f"turn {item.turn}" if item.turn is not None else "",
        local_time(item.at) if item.at is not None else "",
        f"from {' and '.join((item.provider, *item.also))}",
        f"score {item.score:.2f}" if item.score else "",
    ]
    return one_line(", ".join(part for part in parts if part))


def _as_json(item: RecallItem, titles: dict[str, str]) -> dict[str, Any]:
    return {
        "text": item.text,
        "provider": item.provider,
        "also": list(item.also),
        "session": item.session_id or None,
        "title": titles.get(item.session_id),
        "turn": item.turn,
        "at": iso_time(item.at),
        "score": item.score or None,
    }
