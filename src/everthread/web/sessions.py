"""`/api/sessions`: list, read, fork, rename and delete sessions. Ownership is checked before."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from everthread.agent.skills.history import plan_repairs
from everthread.domain import titles
from everthread.domain.boundary import Branch
from everthread.domain.export_format import encode_line
from everthread.domain.model import Message, Session, Turn
from everthread.lifecycle import ForgetSession, export
from everthread.lifecycle.export import export_lines
from everthread.lifecycle.forget import forgotten_sessions
from everthread.store.unit_of_work import UnitOfWork
from everthread.web.errors import HttpError
from everthread.web.ownership import (
    NAME_CHARS_MAX,
    Conversation,
    conversation_named,
    find_owned_session,
    move_to_session,
)
from everthread.web.request import ApiCall
from everthread.web.responses import EventStream, json_response
from everthread.web.schemas import encode_tool_calls

SESSIONS_DEFAULT, SESSIONS_MAX = 20, 200
TURNS_DEFAULT, TURNS_MAX = 50, 500
PAGE_CHARS_MAX = 4_000_000
_TURNS_PER_READ = 20
_NUMBER_MAX = 2**53


class SessionView(Struct):
    id: str
    title: str | None
    state: str
    end_reason: str | None
    turns: int
    last_active: str
    opened: str
    kind: str
    cause: str
    parent: str | None
    platform: str
    """The platform of its first message."""


class SessionPage(Struct):
    data: list[SessionView]
    next_cursor: str | None


class StoredMessage(Struct, omit_defaults=True):
    turn: int
    turn_id: str
    at: str
    status: str
    role: str
    content: str
    tool_calls: list[dict[str, Any]] = []
    tool_call_id: str = ""
    inherited: bool = False


class MessagePage(Struct):
    data: list[StoredMessage]
    next_cursor: str | None
    summary: str | None = None
    """The summary of the turns before the first one, if there is one."""


Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class ForkRequest(Struct):
    title: Annotated[str, Meta(max_length=titles.TITLE_CHARS_MAX)] | None = None
    key: Name | None = None
    as_it_was: bool = False


class ResumeRequest(Struct):
    key: Name


class RenameRequest(Struct):
    title: Annotated[str, Meta(min_length=1, max_length=titles.TITLE_CHARS_MAX)]


class SessionContinued(Struct):
    """A session, and the name under which its conversation goes on (`X-Session-Key`)."""

    session: SessionView
    key: str


class SessionDeleted(Struct):
    id: str
    deleted: bool = True
    skills: list[str] = []
    """Skills that it wrote: removed, or restored to their text from before."""
    skills_kept: list[str] = []
    """Skills that it wrote and somebody else changed later: their newest text is kept and may repeat it."""


async def list_sessions(call: ApiCall) -> Response:
    """List your conversations, most recently active first."""
    limit = call.query_number("limit", SESSIONS_DEFAULT, SESSIONS_MAX)
    before, owner = _parse_cursor(call), call.caller.owner

    def read(uow: UnitOfWork) -> SessionPage:
        page = uow.sessions.page(owner, limit, before)
        return SessionPage([_view(uow, one) for one in page], _cursor(page[-1]) if len(page) == limit else None)

    return json_response(await call.gateway.store.read(read))


async def show_session(call: ApiCall) -> Response:
    """Get one conversation."""
    return json_response(await call.gateway.store.read(lambda uow: _view(uow, call.session)))


async def list_messages(call: ApiCall) -> Response:
    """List the messages of a conversation; `limit` counts turns."""
    limit = call.query_number("limit", TURNS_DEFAULT, TURNS_MAX)
    after = _parse_turn_number(call)
    session, first = call.session, after == 0
    if first:
        after = session.floor
    summary, messages, chars, seen = None, list[StoredMessage](), 0, 0
    while after < session.last_turn and seen < limit and chars < PAGE_CHARS_MAX:
        up_to = min(after + _TURNS_PER_READ, after + limit - seen, session.last_turn)
        view = await call.gateway.store.read(
            lambda uow, after=after, up_to=up_to: uow.turns.view_with_set_aside(session, up_to=up_to, after=after)
        )
        summary = view.summary if first and summary is None else summary
        messages += [_stored_message(turn, message) for turn in view.turns for message in turn.messages]
        chars += sum(len(message.content) for turn in view.turns for message in turn.messages)
        seen, after = seen + len(view.turns), up_to
    return json_response(MessagePage(messages, str(after) if after < session.last_turn else None, summary))


async def fork_session(call: ApiCall) -> Response:
    """Branch into a copy. The original does not change."""
    fork, gateway, session = await call.read(ForkRequest), call.gateway, call.session
    if fork.title:
        titles.clean(fork.title)
    conversation = conversation_named(gateway, call.caller.owner, fork.key or f"fork-{gateway.new_id()}")
    branch = Branch(fork.title or "", parent=session.id, as_it_was=fork.as_it_was)
    crossed = await gateway.lifecycle.cross(conversation.key, branch, owner=call.caller.owner)
    if crossed.cancelled and crossed.left:
        gateway.agent.stop(crossed.left, "stopped by a fork")
    if crossed.refusal is not None or crossed.ref is None:
        raise HttpError(409, "That session has no turn to fork from.", "nothing_there")
    return await _continued(call, conversation, crossed.ref.session_id, 201)


async def resume_session(call: ApiCall) -> Response:
    """Bind a name of your choice to a conversation."""
    conversation = conversation_named(call.gateway, call.caller.owner, (await call.read(ResumeRequest)).key)
    ref = await move_to_session(call, conversation, call.session)
    return await _continued(call, conversation, ref.session_id, 200)


async def rename_session(call: ApiCall) -> Response:
    """Rename a conversation."""
    rename, session = await call.read(RenameRequest), call.session
    await call.gateway.lifecycle.rename(session.id, rename.title, owner=call.caller.owner)
    return json_response(await _read_view(call, session.id))


async def delete_session(call: ApiCall) -> Response:
    """Forget a conversation, as `everthread forget` does."""
    gateway, session, owner = call.gateway, call.session, call.caller.owner
    gateway.agent.stop(session.id, "stopped because its session is forgotten")
    what = ForgetSession(session.id)
    sessions = await gateway.store.read(lambda uow: forgotten_sessions(uow, what, owner))
    changes = await asyncio.to_thread(gateway.skill_changes)
    repairs = plan_repairs(changes[::-1], sessions)
    await gateway.lifecycle.forget(what, owner=owner)
    skills = [repair.skill for repair in repairs if repair.restores]
    kept = [repair.skill for repair in repairs if not repair.restores]
    return json_response(SessionDeleted(session.id, skills=skills, skills_kept=kept))


async def export_session(call: ApiCall) -> Response:
    """Export a conversation as `everthread sessions export` does."""
    gateway, session = call.gateway, call.session
    chosen = await gateway.store.read(lambda uow: export.select_sessions(uow, [session.id]))
    # The export includes its ancestors, which have the same owner.
    mine = [one for one in chosen if one.owner == call.caller.owner]

    async def lines() -> AsyncGenerator[bytes, None]:
        async for line in export_lines(gateway.store, mine, gateway.clock.now(), version("everthread")):
            yield encode_line(line)

    name = {"Content-Disposition": f'attachment; filename="{session.id}.jsonl"'}
    return EventStream(lines(), name, media_type="application/x-ndjson")


def _view(uow: UnitOfWork, session: Session) -> SessionView:
    return SessionView(
        session.id,
        session.title,
        "open" if session.ended_at is None else "ended",
        session.end_reason,
        uow.turns.count(session),
        _time(session.active_at),
        _time(session.opened_at),
        session.kind.value,
        session.cause.value,
        session.parent_id,
        session.key.platform,
    )


def _stored_message(turn: Turn, message: Message) -> StoredMessage:
    return StoredMessage(
        turn.number,
        turn.turn_id,
        _time(turn.at),
        turn.status.value,
        message.role.value,
        message.content,
        encode_tool_calls(message.tool_calls),
        message.tool_call_id or "",
        turn.inherited,
    )


async def _continued(call: ApiCall, conversation: Conversation, session_id: str, status: int) -> Response:
    return json_response(SessionContinued(await _read_view(call, session_id), conversation.name), status)


async def _read_view(call: ApiCall, session_id: str) -> SessionView:
    session = await find_owned_session(call.gateway, session_id, call.caller.owner)
    return await call.gateway.store.read(lambda uow: _view(uow, session))


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- Cursors: opaque to clients, and nothing in them is trusted ------------------------------------------------------


def _cursor(session: Session) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((session.active_at, session.id))).decode()


def _parse_cursor(call: ApiCall) -> tuple[float, str] | None:
    text = call.request.query_params.get("cursor")
    if text is None:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text[:500].encode()), type=tuple[float, str])
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        raise _bad_cursor() from None


def _parse_turn_number(call: ApiCall) -> int:
    text = call.request.query_params.get("cursor", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise _bad_cursor()
    return min(int(text), _NUMBER_MAX)


def _bad_cursor() -> HttpError:
    return HttpError(400, "cursor must be the next_cursor of the page before.", "bad_cursor")
