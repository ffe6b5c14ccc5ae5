"""Commands that change the session or its transcript: `/new`, `/resume`, `/branch`, `/handoff`, `/undo` and others.

Each crosses one boundary. `/sessions` lists them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from msgspec import Struct

from everthread.commands.context import (
    NO_SESSION,
    CommandContext,
    CommandResult,
    current_session,
    fail,
    label_of,
    list_messages,
    resume_argument,
    resume_item,
    sentence,
)
from everthread.commands.recap import RECAP_TURNS, Recap, recap
from everthread.domain import titles
from everthread.domain.boundary import Boundary, Branch, New, Refusal, Reset, Resume, Rewind
from everthread.domain.errors import Ambiguous, BadInput, NoSuchSession
from everthread.domain.model import SUBAGENT_PLATFORM, Cause, ChatType, Session, SessionKey, SessionKind
from everthread.domain.text_format import local_time, pluralize, quote_start
from everthread.lifecycle import BoundaryResult
from everthread.lifecycle.session_lookup import find_session
from everthread.store.unit_of_work import UnitOfWork

LISTED_MAX = 10
_CHOICES_MAX = 50
_SCANNED_MAX = 200
_NUMBER = re.compile(r"[1-9][0-9]?")
_WITHOUT_CHATS = ("cli", "hooks", "http", SUBAGENT_PLATFORM)
"""Platforms that deliver no replies."""
_COUNT = re.compile(r"[1-9][0-9]{0,5}")


async def new(context: CommandContext, title: str) -> CommandResult:
    return await _start(context, New(title))


async def reset(context: CommandContext, title: str) -> CommandResult:
    return await _start(context, Reset(title))


async def branch(context: CommandContext, title: str) -> CommandResult:
    move = await _cross(context, Branch(title))
    if move.crossing.refusal is not None:
        return fail("There is no session to branch from yet. Send a message first.")
    return CommandResult(
        "\n".join([f"Branched: you are now in {_target(move)}, a copy with all turns so far.", *_departure(move)])
    )


async def uncompress(context: CommandContext, title: str) -> CommandResult:
    """Branch from the session before its last compression, with the full text."""
    session = await current_session(context)
    before = await context.runtime.store.read(lambda uow: _find_compressed_ancestor(uow, session)) if session else None
    if before is None:
        return fail("This session was never compressed. /branch copies it as it is.")
    move = await _cross(context, Branch(title, parent=before.id, as_it_was=True))
    if move.crossing.refusal is not None:
        return fail(f"{label_of(before)} is empty or was forgotten. /search finds what is left.")
    text = f"Branched: you are now in {_target(move)}, a copy with the full text from before the last summary."
    return CommandResult("\n".join([text, *_departure(move)]))


def _find_compressed_ancestor(uow: UnitOfWork, session: Session) -> Session | None:
    """The latest compressed ancestor of a session."""
    at: Session | None = session
    while at is not None and at.cause is Cause.BRANCH:
        at = uow.sessions.get(at.parent_id or "")
    return uow.sessions.get(at.parent_id or "") if at is not None and at.cause is Cause.COMPRESSION else None


async def resume(context: CommandContext, wanted: str) -> CommandResult:
    if not wanted:
        return await _list_choices(context)
    try:
        target = await context.runtime.store.read(lambda uow: _find(uow, wanted, context))
    except NoSuchSession as error:
        return _not_found(wanted, error)
    except Ambiguous as error:
        return CommandResult(
            sentence(error), ok=False, menu=tuple(resume_item(*one) for one in error.matches[:LISTED_MAX])
        )
    move = await _cross(context, Resume(target.id))
    if move.crossing.refusal is Refusal.ALREADY_THERE:
        where = label_of(target) if target.kind.remembered else f"your copy of {label_of(target)}"
        return fail(f"You are already in {where}.")
    if move.crossing.refusal is not None or move.to is None:
        return fail(f"{label_of(target)} is empty or was forgotten. /sessions lists the others.")
    session = move.to
    found = await context.runtime.store.read(lambda uow: recap(uow, session))
    where = label_of(session)
    if session.kind is not target.kind:
        where = f"{label_of(target)} in a copy, {where}"
    lines = [f"Resumed {where}, {pluralize(found.turns, 'turn')}.", *_departure(move)]
    return CommandResult("\n".join(lines), recap=found)


async def recap_current(context: CommandContext, turns: int = RECAP_TURNS) -> Recap | None:
    """The recap of the current session, for a front end that starts; `None` if there is no session."""
    session = await current_session(context)
    return await context.runtime.store.read(lambda uow: recap(uow, session, turns)) if session else None


async def handoff(context: CommandContext, platform: str) -> CommandResult:
    session = await current_session(context)
    if session is None:
        return fail(NO_SESSION)
    keys = await context.runtime.store.read(lambda uow: _keys_elsewhere(uow, context))
    wanted = platform.strip().lower()
    target = next((key for key in keys if key.platform == wanted), None)
    if target is None:
        known = sorted({key.platform for key in keys})
        where = f"Your platforms: {', '.join(known)}." if known else "Send me a message from another platform first."
        return fail(f"Usage: /handoff PLATFORM. {where}")
    crossing = await context.runtime.lifecycle.hand_over(
        target, session.id, f"Continuing {label_of(session)} here.", owner=context.owner
    )
    if crossing.refusal is Refusal.ALREADY_THERE:
        return fail(f"You are already in {label_of(session)} on {wanted}.")
    if crossing.cancelled and crossing.left:
        context.runtime.agent.stop(crossing.left, "stopped by /handoff")
    text = f"{label_of(session)} continues on {wanted} too. Messages on either side appear in both."
    return CommandResult("\n".join([text, *_list_unanswered(crossing)]), wrote_outbox=True)


def _keys_elsewhere(uow: UnitOfWork, context: CommandContext) -> list[SessionKey]:
    """The owner's direct chats on other platforms."""
    return [
        key
        for key in uow.sessions.keys_of(context.owner)
        if key.chat_type is ChatType.DM
        and key.platform not in (context.key.platform, *_WITHOUT_CHATS)
        and context.reaches(uow, key, context.owner)
    ]


async def undo(context: CommandContext, count: str) -> CommandResult:
    if count and not _COUNT.fullmatch(count):
        return fail(f"Invalid number {quote_start(count, 20)}. Usage: /undo [n], with n from 1.")
    move = await _cross(context, Rewind(int(count or "1")))
    if move.crossing.refusal is not None:
        return fail("There is nothing to undo.")
    parts = ["the unfinished answer"] if move.crossing.cancelled else []
    if move.crossing.hidden:
        parts.append(await context.runtime.store.read(lambda uow: _hidden_turns(uow, move.crossing)))
    wanted, undone = int(count or "1"), len(move.crossing.hidden) + move.crossing.cancelled
    fewer = f" There were only {undone}." if undone < wanted else ""
    return CommandResult(f"Undid {' and '.join(parts)}. The text is hidden and removed from memory.{fewer}")


async def sessions(context: CommandContext, _: str) -> CommandResult:
    here = await context.runtime.lifecycle.current(context.key)
    rows = await context.runtime.store.read(
        lambda uow: [(s, uow.turns.count(s)) for s in recent(uow, context.owner, LISTED_MAX)]
    )
    if not rows:
        return CommandResult("There are no sessions yet. Send a message to start one.")
    lines = [
        f"{'*' if here and here.session_id == session.id else ' '} {session.id}  {local_time(session.active_at)}  "
        f"{pluralize(turns, 'turn'):>9}  {session.title or '(no title)'}"
        for session, turns in rows
    ]
    return CommandResult("\n".join([*lines, "Resume one with /resume ID or /resume TITLE."]))


def recent(uow: UnitOfWork, owner: str, limit: int) -> list[Session]:
    """The owner's sessions, last active first; of a compressed one, only the newest continuation."""
    found = uow.sessions.recent(owner=owner, limit=_SCANNED_MAX, kind=SessionKind.CHAT.value)
    return [s for s in found if s.forgotten_seq is None and s.end_reason != "compressed"][:limit]


class _Move(Struct, frozen=True):
    """A crossed boundary and the sessions to report."""

    crossing: BoundaryResult
    to: Session | None = None
    left: Session | None = None
    left_argument: str = ""
    """The argument that resumes `left`."""


async def _cross(context: CommandContext, boundary: Boundary) -> _Move:
    crossing = await context.runtime.lifecycle.cross(
        context.key, boundary, owner=context.owner, command_id=context.order
    )
    if crossing.refusal is not None:
        return _Move(crossing)

    def read(uow: UnitOfWork) -> _Move:
        left = uow.sessions.get(crossing.left) if crossing.left else None
        to = uow.sessions.get(crossing.ref.session_id) if crossing.ref else None
        return _Move(crossing, to, left, resume_argument(uow, left) if left else "")

    if crossing.cancelled and crossing.left:
        context.runtime.agent.stop(crossing.left, f"stopped by /{crossing.kind}")
    # A few rows by id: a thread hop would cost more than the read.
    return await context.runtime.store.read_inline(read)


async def _start(context: CommandContext, boundary: New | Reset) -> CommandResult:
    move = await _cross(context, boundary)
    label = f": {label_of(move.to)}" if move.to and move.to.title else ""
    return CommandResult("\n".join([f"Started a new session{label}.", *_departure(move)]))


def _target(move: _Move) -> str:
    return label_of(move.to) if move.to else "no session"


def _departure(move: _Move) -> Sequence[str]:
    """Lines on the session that was left."""
    left = [f"You left {label_of(move.left)}. To return: /resume {move.left_argument}"] if move.left is not None else []
    return [*left, *_list_unanswered(move.crossing)]


def _list_unanswered(crossing: BoundaryResult) -> Sequence[str]:
    """Lines on messages of the previous session that get no answer."""
    lines: list[str] = []
    if crossing.cancelled:
        which = f"to {list_messages(crossing.unanswered)}" if crossing.unanswered else "in progress there"
        lines.append(f"The answer {which} was stopped. Its partial text is kept there.")
    if crossing.set_aside:
        lines.append(f"Set aside without an answer: {list_messages(crossing.set_aside)}.")
    return lines


async def _list_choices(context: CommandContext) -> CommandResult:
    rows = await context.runtime.store.read(lambda uow: _choices(uow, context))
    if not rows:
        return CommandResult("There is no other session yet. /new starts one.")
    lines = [f"{number:>3}  {local_time(one.active_at)}  {name}" for number, (one, name) in enumerate(rows, 1)]
    text = "\n".join([*lines, "Resume one with /resume NUMBER, /resume TITLE or /resume ID."])
    return CommandResult(text, menu=tuple(resume_item(one.id, name, local_time(one.active_at)) for one, name in rows))


def _choices(uow: UnitOfWork, context: CommandContext) -> list[tuple[Session, str]]:
    """The owner's other sessions with their titles or first words. Empty sessions are left out."""
    here = uow.sessions.ref(context.key)
    others = (s for s in recent(uow, context.owner, _SCANNED_MAX) if here is None or s.id != here.session_id)
    named = ((session, session.title or _first_words(uow, session)) for session in others)
    return list(islice((one for one in named if one[1]), _CHOICES_MAX))


def _first_words(uow: UnitOfWork, session: Session) -> str:
    """The first message of a session, else the latest visible one, else the one being answered; empty if none."""
    turns = uow.turns.view_with_set_aside(session, after=session.base_turn, up_to=session.base_turn + 1).turns
    if not turns and (last := uow.turns.last_visible(session, 1)):
        turns = uow.turns.view(session, after=last[0] - 1).turns
    if turns:
        return quote_start(turns[0].user_text)
    running = uow.slots.live(session.id)
    rows = uow.inbox.of_turn(running.ref.key, running.turn_id) if running else ()
    return quote_start(rows[0].inbound.text) if rows else ""


def _find(uow: UnitOfWork, wanted: str, context: CommandContext) -> Session:
    """The session of that id or title, else the one at that number of the list."""
    try:
        return find_session(uow, wanted, owner=context.owner)
    except NoSuchSession:
        rows = _choices(uow, context) if _NUMBER.fullmatch(wanted) else []
        if rows and int(wanted) <= len(rows):
            return rows[int(wanted) - 1][0]
        if len(wanted) > titles.TITLE_CHARS_MAX:
            raise BadInput("That is too long for a title or an id. /sessions lists your sessions.") from None
        raise


def _not_found(wanted: str, error: NoSuchSession) -> CommandResult:
    near = " or ".join(f'"{title}"' for _, title in error.similar)
    text = (
        f"There is no session {quote_start(wanted)}. {f'Did you mean {near}? ' if near else ''}/sessions lists yours."
    )
    return CommandResult(text, ok=False, menu=tuple(resume_item(*one) for one in error.similar))


def _hidden_turns(uow: UnitOfWork, crossing: BoundaryResult) -> str:
    """The number of undone turns and the first words of the oldest, if it belongs to this session."""
    first = uow.turns.get(crossing.left or "", crossing.hidden[0])
    return pluralize(len(crossing.hidden), "turn") + (f", from {quote_start(first.user_text)}" if first else "")
