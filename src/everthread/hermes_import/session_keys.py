"""Session keys of Hermes conversations, and the session that each key is bound to. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from msgspec import Struct

from everthread.domain.model import KEY_CHARS_MAX, SUBAGENT_PLATFORM, ChatType, SessionKey, replace_surrogates
from everthread.hermes_import.lineage import LinkedSession, Relation

TERMINAL = "cli"
HERE = "hermes"
"""The chat of every session that is not from a messaging platform."""
_AT_HOME = ("cli", "tui", "acp", "api", "api_server", "desktop", "dashboard", "webui", "local", "cron", "webhook")


class Route(Struct, frozen=True):
    """An entry of `sessions.json` or `gateway_routing`."""

    session_key: str
    session_id: str
    platform: str
    chat_type: str = "dm"
    chat: str = ""
    thread: str | None = None
    user: str | None = None
    name: str = ""
    finalised: bool = False
    """The session has expired and memory was notified. The next message begins a new session."""
    suspended: bool = False
    updated_at: float = 0.0

    @property
    def skip_reason(self) -> str:
        """The reason why the next message begins a new session; empty if it continues this one."""
        if self.finalised:
            return "had expired in Hermes; the next message there starts a new session"
        return "was suspended in Hermes; the next message there starts a new session" if self.suspended else ""


def routes_of(entries: Mapping[str, object], older: Mapping[str, object] | None = None) -> tuple[list[Route], int]:
    """Parse the entries, as JSON or already decoded, by key. Return them and the number of invalid ones.

    As in Hermes, `older` supplies entries that are missing or invalid.
    """
    found: list[Route] = []
    invalid = 0
    sources = (entries, older or {})
    for key in dict.fromkeys(key for source in sources for key in source):
        if key.startswith("_"):
            continue
        read = (_route(key, source[key]) for source in sources if key in source)
        route = next((route for route in read if route is not None), None)
        invalid += route is None
        found += [route] if route is not None else []
    return found, invalid


def _route(key: str, written: object) -> Route | None:
    try:
        entry: object = json.loads(written) if isinstance(written, str) else written
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    fields = cast("dict[str, Any]", entry)
    inner = fields.get("origin")
    origin = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
    parts = key.split(":")
    thread, user = _text(origin.get("thread_id")), _text(origin.get("user_id"))
    session_id = fields.get("session_id")
    platform = _text(origin.get("platform") or fields.get("platform")) or (parts[2] if len(parts) > 2 else "")
    chat_type = _text(origin.get("chat_type") or fields.get("chat_type")) or (parts[3] if len(parts) > 3 else "dm")
    chat = _text(origin.get("chat_id")) or (parts[4] if len(parts) > 4 else "")
    if not isinstance(session_id, str) or not session_id or not platform or not chat:
        return None
    if not origin:
        thread, user = _parse_key_end(chat_type, parts[5:])
    # Older versions use another name for the flag.
    flag = fields["expiry_finalized"] if "expiry_finalized" in fields else fields.get("memory_flushed")
    return Route(
        key,
        session_id,
        platform,
        chat_type,
        chat,
        thread or None,
        user or None,
        _text(origin.get("user_name") or fields.get("display_name")),
        bool(flag),
        bool(fields.get("suspended")),
        _local_time(fields.get("updated_at")),
    )


def _parse_key_end(chat_type: str, behind: Sequence[str]) -> tuple[str, str]:
    """Return the thread and the user from the parts of a Hermes key after the chat."""
    if len(behind) > 1 or chat_type.lower() in ("dm", "thread"):
        return (*behind, "", "")[0], (*behind, "", "")[1]
    # A single part is the user: by default, each user of a group has a separate conversation.
    return "", (*behind, "")[0]


def key_of_route(route: Route, profile: str) -> SessionKey:
    chat_type = _chat_type(route.chat_type)
    # A group has one conversation for each user or one for all. In the first case, Hermes's key ends with the user.
    alone = chat_type is not ChatType.DM and route.user is not None and route.session_key.endswith(f":{route.user}")
    return _key(profile, route.platform, chat_type, route.chat, route.thread, route.user if alone else None)


def key_of_member(member: LinkedSession, route: Route | None, profile: str) -> SessionKey:
    """Return the session key of a session, from its route or its row."""
    row = member.row
    if member.relation is Relation.DELEGATE:
        return _key(profile, SUBAGENT_PLATFORM, ChatType.DM, f"{HERE}-{row.id}", None, None)
    if row.source == "cron":
        return _key(profile, "cron", ChatType.DM, HERE, None, None)
    if row.source in _AT_HOME:
        return _key(profile, TERMINAL, ChatType.DM, HERE, None, None)
    if route is not None:
        return key_of_route(route, profile)
    chat_type = _chat_type(row.chat_type or "dm")
    chat = row.chat_id or row.user_id or HERE
    session_key = row.session_key or ""
    alone = chat_type is not ChatType.DM and row.user_id and session_key.endswith(f":{row.user_id}")
    return _key(profile, row.source, chat_type, chat, row.thread_id, row.user_id if alone else None)


def _key(
    profile: str, platform: str, chat_type: ChatType, chat: str, thread: str | None, user: str | None
) -> SessionKey:
    parts = [replace_surrogates(part)[:100] if part else None for part in (platform.lower(), chat, thread, user)]
    key = SessionKey(profile, parts[0] or TERMINAL, chat_type, parts[1] or HERE, parts[2], parts[3])
    if len(str(key)) > KEY_CHARS_MAX:
        key = SessionKey(profile, parts[0] or TERMINAL, chat_type, (parts[1] or HERE)[:20])
    return key


def _chat_type(written: str) -> ChatType:
    try:
        return ChatType(written.lower())
    except ValueError:
        return ChatType.DM if written.lower() in ("private", "") else ChatType.GROUP


def _local_time(written: object) -> float:
    """Parse a local time. Hermes writes no time zone."""
    try:
        return datetime.fromisoformat(str(written)).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _text(value: object) -> str:
    return "" if value is None or isinstance(value, dict | list) else str(value)
