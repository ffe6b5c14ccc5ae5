"""Map HTTP conversations to session keys, and check who owns a session. All checks of ownership are here."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.boundary import Refusal, Resume
from everthread.domain.errors import Erased, NotFound
from everthread.domain.model import ChatType, Session, SessionKey, SessionKind, SessionRef
from everthread.gateway.server import HTTP, Gateway
from everthread.store.unit_of_work import UnitOfWork
from everthread.web.errors import HttpError, no_such_session
from everthread.web.request import ApiCall

KEY_HEADER, ID_HEADER, TURN_HEADER = "X-Session-Key", "X-Session-Id", "X-Turn-Id"
NAME_CHARS_MAX = 128
SESSION_ID_CHARS_MAX = 128
_NAME = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,126}[\x21-\x7e])?")


class Conversation(Struct, frozen=True):
    """A conversation of a caller: the name they chose, and its session key."""

    name: str
    key: SessionKey
    session: Session | None = None
    """The session that the caller named: the message must not go to another one."""


def owned_session(uow: UnitOfWork, session_id: str, owner: str) -> Session | None:
    """Read the owner's session of that id. Every session id of a client passes through here."""
    session = uow.sessions.get(session_id) if len(session_id) <= SESSION_ID_CHARS_MAX else None
    if (
        session is None
        or session.owner != owner
        or session.forgotten_seq is not None
        or session.kind is SessionKind.NOTES
    ):
        return None
    return session


async def find_owned_session(gateway: Gateway, session_id: str, owner: str) -> Session:
    session = await gateway.store.read_inline(lambda uow: owned_session(uow, session_id, owner))
    if session is None:
        raise no_such_session()
    return session


def conversation_named(gateway: Gateway, owner: str, name: str) -> Conversation:
    """Derive the key of a named conversation. It contains the owner, unless it is the owner of this installation."""
    if not _NAME.fullmatch(name):
        raise HttpError(
            400, f"{KEY_HEADER} must be 1 to {NAME_CHARS_MAX} ASCII characters, without spaces at the ends.", "bad_key"
        )
    settings = gateway.settings
    user = None if owner == settings.owner else owner
    return Conversation(name, SessionKey(settings.profile, HTTP, ChatType.DM, name, None, user))


async def conversation_of(call: ApiCall) -> Conversation | None:
    """Read the conversation that the headers name, if any. Changes nothing."""
    name, session_id = call.header(KEY_HEADER), call.header(ID_HEADER)
    if session_id is None:
        return None if name is None else conversation_named(call.gateway, call.caller.owner, name)
    session = await find_owned_session(call.gateway, session_id, call.caller.owner)
    name = f"id-{session.id}" if name is None else name
    return replace(conversation_named(call.gateway, call.caller.owner, name), session=session)


async def move_to_session(call: ApiCall, conversation: Conversation, session: Session) -> SessionRef:
    """Bind the conversation to the tip of that session."""
    gateway, owner = call.gateway, call.caller.owner

    here, tip = await gateway.store.read_inline(
        lambda uow: (uow.sessions.ref(conversation.key), uow.sessions.tip(session.id))
    )
    if here is not None and tip is not None and (here.session_id, here.owner) == (tip.id, owner):
        return here
    try:
        crossed = await gateway.lifecycle.cross(conversation.key, Resume(session.id), owner=owner)
    except (NotFound, Erased):
        raise no_such_session() from None
    if crossed.ref is None or crossed.refusal not in (None, Refusal.ALREADY_THERE):
        raise HttpError(409, "That session has no turn to continue from.", "nothing_there")
    if crossed.left is not None and crossed.cancelled:
        gateway.agent.stop(crossed.left)
    return crossed.ref


def conversation_headers(conversation: Conversation, session_id: str = "", turn_id: str = "") -> dict[str, str]:
    """Build the response headers that identify conversation, session and turn."""
    headers = {KEY_HEADER: conversation.name, ID_HEADER: session_id, TURN_HEADER: turn_id}
    return {name: value for name, value in headers.items() if value}
