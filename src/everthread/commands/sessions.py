"""The commands that leave a conversation, go to one, or take back what was said. Each crosses one boundary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from msgspec import Struct

from everthread.commands.context import (
    NONE_YET,
    CommandContext,
    CommandResult,
    excerpt,
    listed,
    name_of,
    offer_of,
    refused,
    session_here,
    way_to,
)
from everthread.commands.recap import EXCHANGES, Recap, recap
from everthread.domain import titles
from everthread.domain.boundary import Boundary, Branch, New, Refusal, Reset, Resume, Rewind
from everthread.domain.errors import Ambiguous, BadInput, NoSuchSession
from everthread.domain.model import HANDED_OVER, Cause, ChatType, Kind, Session, SessionKey
from everthread.domain.text_format import counted, local_time
from everthread.lifecycle import Crossing
from everthread.lifecycle.session_lookup import find_session
from everthread.store.unit_of_work import UnitOfWork

LISTED_MAX = 10
OFFERED_MAX = 50
_LOOKED_AT_MAX = 200
_NUMBER = re.compile(r"[1-9][0-9]?")
_NO_CHATS = ("cli", "hooks", "http", HANDED_OVER)
"""What is said there is not sent anywhere."""
_COUNT = re.compile(r"[1-9][0-9]{0,5}")


async def new(desk: CommandContext, title: str) -> CommandResult:
    return await _afresh(desk, New(title))


async def reset(desk: CommandContext, title: str) -> CommandResult:
    return await _afresh(desk, Reset(title))


async def branch(desk: CommandContext, title: str) -> CommandResult:
    move = await _cross(desk, Branch(title))
    if move.crossing.refusal is not None:
        return refused("There is no conversation to branch from yet; say something first.")
    return CommandResult(
        "\n".join([f"Branched: this is {_to(move)}, with all that was said so far.", *_what_was_left(move)])
    )


async def uncompress(desk: CommandContext, title: str) -> CommandResult:
    """A branch of what a summary stands for: the session that was left by the last compression, word for word."""
    session = await session_here(desk)
    before = await desk.store.read(lambda uow: _before_its_summary(uow, session)) if session else None
    if before is None:
        return refused("Nothing here was compressed; /branch goes on in a copy of this conversation.")
    move = await _cross(desk, Branch(title, parent=before.id, as_it_was=True))
    if move.crossing.refusal is not None:
        return refused(f"There is nothing to go back to in {name_of(before)}; /search finds what was said.")
    told = f"Branched: this is {_to(move)}, with all that was said before it was compressed, word for word."
    return CommandResult("\n".join([told, *_what_was_left(move)]))


def _before_its_summary(uow: UnitOfWork, session: Session) -> Session | None:
    """The session that was compressed last, of those that this one grew out of."""
    at: Session | None = session
    while at is not None and at.cause is Cause.BRANCH:
        at = uow.sessions.get(at.parent_id or "")
    return uow.sessions.get(at.parent_id or "") if at is not None and at.cause is Cause.COMPRESSION else None


async def resume(desk: CommandContext, wanted: str) -> CommandResult:
    if not wanted:
        return await _offer(desk)
    try:
        target = await desk.store.read(lambda uow: _meant(uow, wanted, desk))
    except NoSuchSession as error:
        return _not_there(wanted, error)
    except Ambiguous as error:
        return CommandResult(
            _sentence(error), ok=False, offers=tuple(offer_of(*one) for one in error.fitting[:LISTED_MAX])
        )
    move = await _cross(desk, Resume(target.id))
    if move.crossing.refusal is Refusal.ALREADY_THERE:
        return refused(f"You are in {name_of(target)} already.")
    if move.crossing.refusal is not None or move.to is None:
        return refused(f"There is nothing to go back to in {name_of(target)}; /sessions shows the others.")
    there = move.to
    seen = await desk.store.read(lambda uow: recap(uow, there))
    lines = [f"Back in {_to(move)}, {counted(seen.turns, 'turn')}.", *_what_was_left(move)]
    return CommandResult("\n".join(lines), recap=seen)


async def recap_here(desk: CommandContext, exchanges: int = EXCHANGES) -> Recap | None:
    """What was said last where the key is, for a front end that starts there; `None` if there is no conversation."""
    session = await session_here(desk)
    return await desk.store.read(lambda uow: recap(uow, session, exchanges)) if session else None


async def handoff(desk: CommandContext, platform: str) -> CommandResult:
    session = await session_here(desk)
    if session is None:
        return refused(NONE_YET)
    places = await desk.store.read(lambda uow: _elsewhere(uow, desk))
    wanted = platform.strip().lower()
    there = next((key for key in places if key.platform == wanted), None)
    if there is None:
        known = sorted({key.platform for key in places})
        where = f"you can go on at {' or '.join(known)}" if known else "you have not written from anywhere else yet"
        return refused(f"/handoff PLATFORM goes on elsewhere with this conversation; {where}.")
    crossing = await desk.lifecycle.hand_over(
        there, session.id, f"Going on here with {name_of(session)}.", owner=desk.owner
    )
    if crossing.refusal is Refusal.ALREADY_THERE:
        return refused(f"You are in {name_of(session)} at {wanted} already.")
    if crossing.cancelled and crossing.left:
        desk.agent.stop(crossing.left, "stopped by /handoff")
    goes_on = f"{name_of(session)} goes on at {wanted} as well; what is said there is seen here, and the other way."
    return CommandResult("\n".join([goes_on, *_left_undone(crossing)]), posts=True)


def _elsewhere(uow: UnitOfWork, desk: CommandContext) -> list[SessionKey]:
    """Where the owner writes to the agent alone, on other platforms."""
    return [
        key
        for key in uow.sessions.keys_of(desk.owner)
        if key.chat_type is ChatType.DM
        and key.platform not in (desk.key.platform, *_NO_CHATS)
        and desk.reaches(uow, key, desk.owner)
    ]


async def undo(desk: CommandContext, count: str) -> CommandResult:
    if count and not _COUNT.fullmatch(count):
        return refused(f"/undo {excerpt(count, 20)}: give the number of turns to take back, from 1; or nothing for 1.")
    move = await _cross(desk, Rewind(int(count or "1")))
    if move.crossing.refusal is not None:
        return refused("There is nothing to take back.")
    parts = ["the answer that was being written"] if move.crossing.cancelled else []
    parts += [await desk.store.read(lambda uow: _taken_back(uow, move.crossing))] if move.crossing.hidden else []
    asked, taken = int(count or "1"), len(move.crossing.hidden) + move.crossing.cancelled
    fewer = f" There were only {taken}." if taken < asked else ""
    return CommandResult(f"Took back {' and '.join(parts)}. It is hidden, and not remembered.{fewer}")


async def sessions(desk: CommandContext, _: str) -> CommandResult:
    here = await desk.lifecycle.current(desk.key)
    rows = await desk.store.read(lambda uow: [(s, uow.turns.count(s)) for s in recent(uow, desk.owner, LISTED_MAX)])
    if not rows:
        return CommandResult("There are no conversations yet.")
    lines = [
        f"{'*' if here and here.session_id == session.id else ' '} {session.id}  {local_time(session.active_at)}  "
        f"{counted(turns, 'turn'):>9}  {session.title or '(no title)'}"
        for session, turns in rows
    ]
    return CommandResult("\n".join([*lines, "/resume ID or /resume TITLE goes to one."]))


def recent(uow: UnitOfWork, owner: str, limit: int) -> list[Session]:
    """The owner's conversations, the last active first; of a compressed one, only what it goes on in."""
    found = uow.sessions.recent(owner=owner, limit=_LOOKED_AT_MAX, kind=Kind.CHAT.value)
    return [s for s in found if s.forgotten_seq is None and s.end_reason != "compressed"][:limit]


class _Move(Struct, frozen=True):
    """A boundary that was crossed, and what to tell of it."""

    crossing: Crossing
    to: Session | None = None
    left: Session | None = None
    back: str = ""


async def _cross(desk: CommandContext, boundary: Boundary) -> _Move:
    crossing = await desk.lifecycle.cross(desk.key, boundary, owner=desk.owner, order=desk.order)
    if crossing.refusal is not None:
        return _Move(crossing)

    def look(uow: UnitOfWork) -> _Move:
        left = uow.sessions.get(crossing.left) if crossing.left else None
        to = uow.sessions.get(crossing.ref.session_id) if crossing.ref else None
        return _Move(crossing, to, left, way_to(uow, left) if left else "")

    if crossing.cancelled and crossing.left:
        desk.agent.stop(crossing.left, f"stopped by /{crossing.kind}")
    # A few rows by their ids: handed to a thread and back, it would cost more than it does.
    return await desk.store.read_inline(look)


async def _afresh(desk: CommandContext, boundary: New | Reset) -> CommandResult:
    move = await _cross(desk, boundary)
    named = f": {name_of(move.to)}" if move.to and move.to.title else ""
    return CommandResult("\n".join([f"A new conversation{named}.", *_what_was_left(move)]))


def _to(move: _Move) -> str:
    return name_of(move.to) if move.to else "nowhere"


def _what_was_left(move: _Move) -> Sequence[str]:
    lines: list[str] = []
    if move.left is not None:
        lines.append(f"You left {name_of(move.left)}. To go back: /resume {move.back}")
    return [*lines, *_left_undone(move.crossing)]


def _left_undone(crossing: Crossing) -> Sequence[str]:
    """What will not be answered in the conversation that was left."""
    lines: list[str] = []
    if crossing.cancelled:
        asked = crossing.unanswered
        which = f"to {listed(asked)}" if asked else "that was being written there"
        lines.append(f"The answer {which} was stopped; what there is of it is kept there.")
    if crossing.set_aside:
        rows = crossing.set_aside
        lines.append(f"Set aside without an answer: {listed(rows)}.")
    return lines


async def _offer(desk: CommandContext) -> CommandResult:
    rows = await desk.store.read(lambda uow: _offered(uow, desk))
    if not rows:
        return CommandResult("There is no other conversation yet.")
    lines = [f"{number:>3}  {local_time(one.active_at)}  {name}" for number, (one, name) in enumerate(rows, 1)]
    text = "\n".join([*lines, "/resume NUMBER, /resume TITLE or /resume ID goes to one."])
    return CommandResult(text, offers=tuple(offer_of(one.id, name, local_time(one.active_at)) for one, name in rows))


def _offered(uow: UnitOfWork, desk: CommandContext) -> list[tuple[Session, str]]:
    """The others, with what they are known by. Where nothing was said yet, there is nothing to go back to."""
    here = uow.sessions.ref(desk.key)
    others = (s for s in recent(uow, desk.owner, _LOOKED_AT_MAX) if here is None or s.id != here.session_id)
    named = ((session, session.title or _first_words(uow, session)) for session in others)
    return list(islice((one for one in named if one[1]), OFFERED_MAX))


def _first_words(uow: UnitOfWork, session: Session) -> str:
    """What was said first there, or last if that was taken back, or what is being answered; empty if nothing was."""
    turns = uow.turns.view_for_people(session, after=session.base_turn, up_to=session.base_turn + 1).turns
    if not turns and (last := uow.turns.last_visible(session, 1)):
        turns = uow.turns.view(session, after=last[0] - 1).turns
    if turns:
        return excerpt(turns[0].user_text)
    running = uow.slots.live(session.id)
    rows = uow.inbox.of_turn(running.ref.key, running.turn_id) if running else ()
    return excerpt(rows[0].inbound.text) if rows else ""


def _meant(uow: UnitOfWork, wanted: str, desk: CommandContext) -> Session:
    """The session of that id or title; else, of a small number, the one that the list has there now."""
    try:
        return find_session(uow, wanted, owner=desk.owner)
    except NoSuchSession:
        rows = _offered(uow, desk) if _NUMBER.fullmatch(wanted) else []
        if rows and int(wanted) <= len(rows):
            return rows[int(wanted) - 1][0]
        if len(wanted) > titles.TITLE_CHARS_MAX:
            raise BadInput("That is too long for a title or an id; /sessions shows the ones there are.") from None
        raise


def _not_there(wanted: str, error: NoSuchSession) -> CommandResult:
    near = " or ".join(f'"{title}"' for _, title in error.near)
    text = f"There is no session {excerpt(wanted)}; {f'did you mean {near}? ' if near else ''}/sessions shows the ones"
    return CommandResult(f"{text} there are.", ok=False, offers=tuple(offer_of(*one) for one in error.near))


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]


def _taken_back(uow: UnitOfWork, crossing: Crossing) -> str:
    """How many turns were hidden, and what was said first in them, if it was said here."""
    first = uow.turns.get(crossing.left or "", crossing.hidden[0])
    return counted(len(crossing.hidden), "turn") + (f", from {excerpt(first.user_text)} on" if first else "")
