"""`/search`: what was said, in any conversation."""

from __future__ import annotations

from everthread.commands.context import CommandContext, CommandResult, Offer, name_of, offer_of, refused
from everthread.domain.model import Role, Session
from everthread.domain.search_terms import snippet
from everthread.domain.text_format import local_time, one_line
from everthread.store.unit_of_work import UnitOfWork

FOUND_MAX = 10
QUERY_CHARS_MAX = 1_000
_SNIPPET_CHARS = 160
_WHO = {Role.USER: "you", Role.ASSISTANT: "answer", Role.TOOL: "tool", Role.SYSTEM: "system"}


async def search(desk: CommandContext, words: str) -> CommandResult:
    if not words:
        return refused('Usage: /search WORDS ("quoted text" is a phrase, a trailing * a beginning)')
    if len(words) > QUERY_CHARS_MAX:
        return refused(f"That is too much to search for; give at most {QUERY_CHARS_MAX} characters.")
    # What was just said is to be found as well.
    await desk.store.index()
    hits = await desk.store.read(lambda uow: uow.search.search(desk.owner, words, limit=FOUND_MAX))
    sessions = await desk.store.read(lambda uow: _sessions(uow, {hit.session_id for hit in hits}))
    lines: list[str] = []
    offers: list[Offer] = []
    for hit in hits:
        if (session := sessions.get(hit.session_id)) is not None:
            found = f"{_WHO[Role(hit.role)]}: {one_line(snippet(hit.content, words, _SNIPPET_CHARS))}"
            lines += [f"{local_time(hit.at)}  {name_of(session)}, turn {hit.number}", f"  {found}"]
            offers.append(offer_of(session.id, session.title or "", f"{local_time(hit.at)}  {found}"))
    if not lines:
        return CommandResult("Nothing was found; try fewer or other words.")
    if len(hits) == FOUND_MAX:
        lines.append(f"These are the newest {FOUND_MAX}; more words narrow it down.")
    lines.append("/resume TITLE or ID goes to a conversation.")
    return CommandResult("\n".join(lines), offers=tuple(offers))


def _sessions(uow: UnitOfWork, ids: set[str]) -> dict[str, Session]:
    return {key: session for key in ids if (session := uow.sessions.get(key)) is not None}
