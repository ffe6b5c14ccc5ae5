"""`/search`: search the messages of all sessions."""

from __future__ import annotations

from everthread.commands.context import CommandContext, CommandResult, MenuItem, fail, label_of, resume_item
from everthread.domain.model import Role
from everthread.domain.search_terms import snippet
from everthread.domain.text_format import local_time, one_line

HITS_MAX = 10
QUERY_CHARS_MAX = 1_000
_SNIPPET_CHARS = 160
_WHO = {Role.USER: "you", Role.ASSISTANT: "answer", Role.TOOL: "tool", Role.SYSTEM: "system"}


async def search(context: CommandContext, words: str) -> CommandResult:
    if not words:
        return fail('Usage: /search WORDS ("quoted text" finds a phrase, word* a prefix)')
    if len(words) > QUERY_CHARS_MAX:
        return fail(f"The query is too long. Use at most {QUERY_CHARS_MAX} characters.")
    # Include the newest messages.
    await context.runtime.store.index()
    hits = await context.runtime.store.read(lambda uow: uow.search.search(context.owner, words, limit=HITS_MAX))
    sessions = await context.runtime.store.read(
        lambda uow: {hit.session_id: uow.sessions.get(hit.session_id) for hit in hits}
    )
    lines: list[str] = []
    menu: list[MenuItem] = []
    for hit in hits:
        if (session := sessions[hit.session_id]) is not None:
            found = f"{_WHO[Role(hit.role)]}: {one_line(snippet(hit.content, words, _SNIPPET_CHARS))}"
            lines += [f"{local_time(hit.at)}  {label_of(session)}, turn {hit.number}", f"  {found}"]
            menu.append(resume_item(session.id, session.title or "", f"{local_time(hit.at)}  {found}"))
    if not lines:
        return CommandResult("Nothing found. Try fewer or other words.")
    if len(hits) == HITS_MAX:
        lines.append(f"These are the newest {HITS_MAX} matches. Add words to narrow the search.")
    lines.append("Resume a session with /resume TITLE or /resume ID.")
    return CommandResult("\n".join(lines), menu=tuple(menu))
