"""`/api/sessions`: list, read, fork, rename and delete sessions. Ownership is checked before."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from everthread.domain import titles
from everthread.domain.boundary import Branch
from everthread.domain.export_format import written
from everthread.domain.model import Message, Session, Turn
from everthread.lifecycle import ForgetSession, export
from everthread.lifecycle.export import write_out
from everthread.log_file import empty
from everthread.store.unit_of_work import UnitOfWork
from everthread.web import schemas as shapes
from everthread.web.errors import HttpError
from everthread.web.ownership import (
    NAME_CHARS_MAX,
    Conversation,
    conversation_named,
    find_owned_session,
    move_to_session,
)
from everthread.web.request import ApiCall
from everthread.web.sse import EventStream

log = logging.getLogger("everthread.web")

SESSIONS_USUAL, SESSIONS_MAX = 20, 200
TURNS_USUAL, TURNS_MAX = 50, 500
PAGE_CHARS_MAX = 4_000_000
_AT_ONCE = 20
_LAST = 2**53


class SessionSaid(Struct):
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
    """Where it was begun."""


class SessionPage(Struct):
    data: list[SessionSaid]
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
    """What stands for the turns before the first one, if there is such a thing."""


Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class Fork(Struct):
    title: Annotated[str, Meta(max_length=titles.TITLE_CHARS_MAX)] | None = None
    key: Name | None = None
    as_it_was: bool = False


class Go(Struct):
    key: Name


class Rename(Struct):
    title: Annotated[str, Meta(min_length=1, max_length=titles.TITLE_CHARS_MAX)]


class Continued(Struct):
    """A session, and the name under which its conversation goes on (`X-Session-Key`)."""

    session: SessionSaid
    key: str


class Deleted(Struct):
    id: str
    deleted: bool = True


async def list_sessions(call: ApiCall) -> Response:
    limit = call.number("limit", SESSIONS_USUAL, SESSIONS_MAX)
    before, owner = _cursor_of(call), call.caller.owner

    def look(uow: UnitOfWork) -> tuple[tuple[Session, ...], list[SessionSaid]]:
        found = uow.sessions.page(owner, limit, before)
        return found, [_said(uow, session) for session in found]

    some, said = await call.gateway.store.read(look)
    last = some[-1] if len(some) == limit else None
    return _json(SessionPage(said, _cursor(last) if last is not None else None))


async def show_session(call: ApiCall) -> Response:
    return _json(await call.gateway.store.read(lambda uow: _said(uow, call.its_session)))


async def list_messages(call: ApiCall) -> Response:
    limit = call.number("limit", TURNS_USUAL, TURNS_MAX)
    after = _number_of(call)
    session, first = call.its_session, after == 0
    if first:
        after = session.floor
    summary, said, chars, seen = None, list[StoredMessage](), 0, 0
    while after < session.last_turn and seen < limit and chars < PAGE_CHARS_MAX:
        up_to = min(after + _AT_ONCE, after + limit - seen, session.last_turn)
        view = await call.gateway.store.read(
            lambda uow, after=after, up_to=up_to: uow.turns.view_for_people(session, up_to=up_to, after=after)
        )
        summary = view.summary if first and summary is None else summary
        said += [_message(turn, message) for turn in view.turns for message in turn.messages]
        chars += sum(len(message.content) for turn in view.turns for message in turn.messages)
        seen, after = seen + len(view.turns), up_to
    return _json(MessagePage(said, str(after) if after < session.last_turn else None, summary))


async def fork_session(call: ApiCall) -> Response:
    asked, gateway, session = await call.read(Fork), call.gateway, call.its_session
    if asked.title:
        titles.clean(asked.title)
    place = conversation_named(gateway, call.caller.owner, asked.key or f"fork-{gateway.new_id()}")
    branch = Branch(asked.title or "", parent=session.id, as_it_was=asked.as_it_was)
    crossed = await gateway.lifecycle.cross(place.key, branch, owner=call.caller.owner)
    if crossed.cancelled and crossed.left:
        gateway.agent.stop(crossed.left, "stopped by a fork")
    if crossed.refusal is not None or crossed.ref is None:
        raise HttpError(409, "there is nothing to fork in that session", "nothing_there")
    return await _gone(call, place, crossed.ref.session_id, 201)


async def resume_session(call: ApiCall) -> Response:
    place = conversation_named(call.gateway, call.caller.owner, (await call.read(Go)).key)
    ref = await move_to_session(call, place, call.its_session)
    return await _gone(call, place, ref.session_id, 200)


async def rename_session(call: ApiCall) -> Response:
    asked, session = await call.read(Rename), call.its_session
    await call.gateway.lifecycle.rename(session.id, asked.title, owner=call.caller.owner)
    now = await find_owned_session(call.gateway, session.id, call.caller.owner)
    return _json(await call.gateway.store.read(lambda uow: _said(uow, now)))


async def delete_session(call: ApiCall) -> Response:
    """Forget it, as `everthread forget` does."""
    gateway, session, owner = call.gateway, call.its_session, call.caller.owner
    gateway.agent.stop(session.id, "stopped because its session is forgotten")
    await gateway.lifecycle.forget(ForgetSession(session.id), owner=owner)
    try:
        await gateway.command_context(session.key, owner).notebook.sync(owner)
        # An error in the log may quote the session.
        await asyncio.to_thread(empty, gateway.settings.home)
    except OSError as error:
        log.warning("forgotten, but note files or the log were not updated: %s", error)
    return _json(Deleted(session.id))


async def export_session(call: ApiCall) -> Response:
    """The lines that `everthread sessions export` writes."""
    gateway, session = call.gateway, call.its_session
    chosen = await gateway.store.read(lambda uow: export.chosen(uow, [session.id]))
    # The export includes its ancestors, which have the same owner.
    mine = [one for one in chosen if one.owner == call.caller.owner]

    async def lines() -> AsyncGenerator[bytes, None]:
        async for line in write_out(gateway.store, mine, gateway.clock.now(), version("everthread")):
            yield written(line)

    name = {"Content-Disposition": f'attachment; filename="{session.id}.jsonl"'}
    return EventStream(lines(), name, media_type="application/x-ndjson")


def _said(uow: UnitOfWork, session: Session) -> SessionSaid:
    return SessionSaid(
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


def _message(turn: Turn, message: Message) -> StoredMessage:
    return StoredMessage(
        turn.number,
        turn.turn_id,
        _time(turn.at),
        turn.status.value,
        message.role.value,
        message.content,
        shapes.encode_tool_calls(message.tool_calls),
        message.tool_call_id or "",
        turn.inherited,
    )


async def _gone(call: ApiCall, place: Conversation, session_id: str, status: int) -> Response:
    session = await find_owned_session(call.gateway, session_id, call.caller.owner)
    said = await call.gateway.store.read(lambda uow: _said(uow, session))
    return _json(Continued(said, place.name), status)


def _json(value: Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- Cursors: opaque to clients, and nothing in them is trusted ------------------------------------------------------


def _cursor(session: Session) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((session.active_at, session.id))).decode()


def _cursor_of(call: ApiCall) -> tuple[float, str] | None:
    text = call.request.query_params.get("cursor")
    if text is None:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text[:500].encode()), type=tuple[float, str])
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        raise _no_cursor() from None


def _number_of(call: ApiCall) -> int:
    text = call.request.query_params.get("cursor", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise _no_cursor()
    return min(int(text), _LAST)


def _no_cursor() -> HttpError:
    return HttpError(400, "cursor must be the next_cursor of an answer before", "bad_cursor")
