"""A fake of Honcho 3 over HTTP. No package registry has its server; the client library is available.

Strict rules: names are `[a-zA-Z0-9_-]`. A request has 1 to 100 messages of at most 25,000 characters each, else 422.
Repeated messages are appended again. Deleting a session returns 202 and happens later; messages written meanwhile are
lost, then the session is a 404 and its name cannot be reused. Conclusions are derived some time later.

Implements only the calls of Everthread and of the official client's tests.
"""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime
from typing import Any, cast

from tests.fakes.service import FakeService, Request, ServiceError, ServiceReply, route, word_overlap

MESSAGES_MAX = 100
CONTENT_CHARS_MAX = 25_000
CONCLUSION_CHARS_MAX = 65_535
NAME_CHARS_MAX = 512
PAGE_SIZE_MAX = 100

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_W = "/v3/workspaces/{w}"
_S = _W + "/sessions/{s}"
_P = _W + "/peers/{p}"
Json = dict[str, Any]


class FakeHoncho(FakeService):
    def __init__(self, *, key: str = "", derives_s: float = 0.0, deletes_s: float = 0.05) -> None:
        super().__init__(key=key)
        self._derives_s = derives_s
        self._deletes_s = deletes_s
        self._numbers = itertools.count(1)
        self.workspaces: dict[str, Json] = {}
        self.peers: dict[str, Json] = {}
        self.sessions: dict[str, Json] = {}
        self.members: dict[str, dict[str, Json]] = {}
        self.gone: set[str] = set()
        """Names of deleted sessions."""
        self.messages: list[Json] = []
        self.conclusions: list[Json] = []
        self._waiting = 0

    # Workspaces, peers, sessions --------------------------------------------------------------------------------------

    @route("POST", "/v3/workspaces")
    def _workspace(self, request: Request) -> ServiceReply:
        return 200, self._got_or_created(self.workspaces, request.body, {"configuration": {}})

    @route("POST", _W + "/peers")
    def _peer(self, request: Request, w: str) -> ServiceReply:
        self._in(w)
        return 200, self._got_or_created(self.peers, request.body, {"workspace_id": w, "configuration": {}})

    @route("POST", _W + "/sessions")
    def _session(self, request: Request, w: str) -> ServiceReply:
        self._in(w)
        if _name(request.body) in self.gone:
            raise ServiceError(404, "the session was deleted")
        fresh: Json = {"workspace_id": w, "is_active": True, "configuration": {}}
        session = self._got_or_created(self.sessions, request.body, fresh)
        peers: Json = request.body.get("peers") or {}
        for peer, configuration in peers.items():
            self._got_or_created(self.peers, {"id": peer}, {"workspace_id": w, "configuration": {}})
            self.members.setdefault(session["id"], {})[peer] = configuration or {}
        return 201, session

    @route("PUT", _S)
    def _change_session(self, request: Request, w: str, s: str) -> ServiceReply:
        session = self._living(s)
        if request.body.get("metadata") is not None:
            session["metadata"] = request.body["metadata"]
        return 200, session

    @route("DELETE", _S)
    def _delete_session(self, request: Request, w: str, s: str) -> ServiceReply:
        session = self._living(s)
        if session["is_active"]:
            session["is_active"] = False
            self.later(self._deletes_s, lambda: self._remove(s))
        return 202, {"message": "Session deletion initiated"}

    @route("POST", _W + "/sessions/list")
    def _list_sessions(self, request: Request, w: str) -> ServiceReply:
        return 200, _page(request, [one for one in self.sessions.values() if _fits(one, request)])

    @route("GET", _S + "/context")
    def _context(self, request: Request, w: str, s: str) -> ServiceReply:
        said = [one for one in self.messages if one["session_id"] == s]
        return 200, {"id": s, "messages": said, "summary": None}

    # Messages ---------------------------------------------------------------------------------------------------------

    @route("POST", _S + "/messages", stores=True)
    def _append(self, request: Request, w: str, s: str) -> ServiceReply:
        given: list[Json] = request.body.get("messages") or []
        if not 1 <= len(given) <= MESSAGES_MAX or any(len(one["content"]) > CONTENT_CHARS_MAX for one in given):
            raise ServiceError(422, "1 to 100 messages of at most 25000 characters")
        session = self._living(s)
        kept = [self._message(w, s, one) for one in given]
        if session["is_active"]:
            self.messages += kept
            self._derive(kept)
        return 201, kept

    @route("POST", _S + "/messages/list")
    def _list_messages(self, request: Request, w: str, s: str) -> ServiceReply:
        self._living(s)
        return 200, _page(request, [one for one in self.messages if one["session_id"] == s and _fits(one, request)])

    @route("PUT", _S + "/messages/{m}")
    def _change_message(self, request: Request, w: str, s: str, m: str) -> ServiceReply:
        message = _the(self.messages, m)
        message["metadata"] = request.body["metadata"]
        return 200, message

    @route("POST", _W + "/search")
    def _search(self, request: Request, w: str) -> ServiceReply:
        self._in(w)
        return 200, _found(request, self.messages, request.body.get("limit", 10))

    @route("POST", _P + "/search")
    def _search_peer(self, request: Request, w: str, p: str) -> ServiceReply:
        own = [one for one in self.messages if one["peer_id"] == p]
        return 200, _found(request, own, request.body.get("limit", 10))

    # Conclusions ------------------------------------------------------------------------------------------------------

    @route("POST", _W + "/conclusions", stores=True)
    def _conclude(self, request: Request, w: str) -> ServiceReply:
        given: list[Json] = request.body.get("conclusions") or []
        if not 1 <= len(given) <= MESSAGES_MAX or any(
            not 1 <= len(one["content"]) <= CONCLUSION_CHARS_MAX for one in given
        ):
            raise ServiceError(422, "1 to 100 conclusions of at most 65535 characters")
        for one in given:
            if one.get("session_id") is not None:
                self._living(one["session_id"])
        kept = [self._conclusion(**one) for one in given]
        self.conclusions += kept
        return 201, kept

    @route("POST", _W + "/conclusions/list")
    def _list_conclusions(self, request: Request, w: str) -> ServiceReply:
        return 200, _page(request, [one for one in self.conclusions if _fits(one, request)])

    @route("POST", _W + "/conclusions/query")
    def _query(self, request: Request, w: str) -> ServiceReply:
        return 200, _found(request, self.conclusions, request.body.get("top_k", 10))

    @route("DELETE", _W + "/conclusions/{c}")
    def _delete_conclusion(self, request: Request, w: str, c: str) -> ServiceReply:
        self.conclusions.remove(_the(self.conclusions, c))
        return 204, None

    @route("GET", _W + "/queue/status")
    def _queue(self, request: Request, w: str) -> ServiceReply:
        self._in(w)
        done = len(self.messages)
        return 200, {
            "total_work_units": done + self._waiting,
            "completed_work_units": done,
            "in_progress_work_units": 0,
            "pending_work_units": self._waiting,
        }

    # Representation of a peer -----------------------------------------------------------------------------------------

    @route("POST", _P + "/representation")
    def _representation(self, request: Request, w: str, p: str) -> ServiceReply:
        return 200, {"representation": "\n".join(self._of(p))}

    @route("POST", _P + "/chat")
    def _chat(self, request: Request, w: str, p: str) -> ServiceReply:
        best = sorted(self._of(p), key=lambda text: -word_overlap(request.body["query"], text))
        return 200, {"content": best[0] if best else None}

    @route("GET", _P + "/card")
    def _card(self, request: Request, w: str, p: str) -> ServiceReply:
        return 200, {"peer_card": self.peers.get(p, {}).get("card")}

    @route("PUT", _P + "/card")
    def _set_card(self, request: Request, w: str, p: str) -> ServiceReply:
        _the(list(self.peers.values()), p)["card"] = request.body["peer_card"]
        return 200, {"peer_card": request.body["peer_card"]}

    # ------------------------------------------------------------------------------------------------------------------

    def _in(self, workspace: str) -> None:
        if workspace not in self.workspaces:
            raise ServiceError(404, "no such workspace")

    def _living(self, session: str) -> Json:
        if session not in self.sessions:
            raise ServiceError(404, "no such session")
        return self.sessions[session]

    def _remove(self, session: str) -> None:
        self.gone.add(session)
        self.sessions.pop(session, None)
        self.messages = [one for one in self.messages if one["session_id"] != session]
        self.conclusions = [one for one in self.conclusions if one["session_id"] != session]

    def _got_or_created(self, records: dict[str, Json], body: Json, fresh: Json) -> Json:
        name = _name(body)
        if name not in records:
            records[name] = {"id": name, "metadata": {}, "created_at": _now(), **fresh}
        if body.get("metadata") is not None:
            records[name]["metadata"] = body["metadata"]
        return records[name]

    def _message(self, workspace: str, session: str, given: Json) -> Json:
        return {
            "id": f"m{next(self._numbers)}",
            "content": given["content"],
            "peer_id": given["peer_id"],
            "session_id": session,
            "workspace_id": workspace,
            "metadata": given.get("metadata") or {},
            "created_at": given.get("created_at") or _now(),
            "token_count": len(given["content"]) // 4,
        }

    def _conclusion(self, content: str, observer_id: str, observed_id: str, session_id: str | None = None) -> Json:
        return {
            "id": f"c{next(self._numbers)}",
            "content": content,
            "observer_id": observer_id,
            "observed_id": observed_id,
            "session_id": session_id,
            "created_at": _now(),
        }

    def _derive(self, messages: list[Json]) -> None:
        for one in messages:
            observed = self.members.get(one["session_id"], {}).get(one["peer_id"], {})
            if observed.get("observe_me") is False:
                continue
            self._waiting += 1
            if self._derives_s:
                self.later(self._derives_s, lambda one=one: self._derived(one))
            else:
                self._derived(one)

    def _derived(self, message: Json) -> None:
        self._waiting -= 1
        peer, session = message["peer_id"], message["session_id"]
        if session in self.sessions:
            self.conclusions.append(self._conclusion(f"{peer} said: {message['content']}", peer, peer, session))

    def _of(self, peer: str) -> list[str]:
        return [one["content"] for one in self.conclusions if one["observed_id"] == peer]


def _name(body: Json) -> str:
    name = str(body.get("id", ""))
    if not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        raise ServiceError(422, "a name is made of letters, digits, _ and -")
    return name


def _the(things: list[Json], id: str) -> Json:
    for one in things:
        if one["id"] == id:
            return one
    raise ServiceError(404, "no such thing")


def _fits(one: Json, request: Request) -> bool:
    body: Json = request.body or {}
    filters: Json = body.get("filters") or {}
    return all(_is(one.get(name), wanted) for name, wanted in filters.items())


def _is(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, dict):
        return value == wanted
    parts, held = cast(Json, wanted), cast(Json, value)
    if set(parts) == {"in"}:
        return value in parts["in"]
    return isinstance(value, dict) and all(_is(held.get(key), part) for key, part in parts.items())


def _found(request: Request, among: list[Json], limit: int) -> list[Json]:
    if not 1 <= limit <= PAGE_SIZE_MAX:
        raise ServiceError(422, "1 to 100 results")
    scored = [(word_overlap(request.body["query"], one["content"]), one) for one in among if _fits(one, request)]
    return [one for score, one in sorted(scored, key=lambda pair: -pair[0]) if score][:limit]


def _page(request: Request, items: list[Json]) -> Json:
    page, size = int(request.query.get("page", 1)), int(request.query.get("size", 50))
    if not 1 <= size <= PAGE_SIZE_MAX:
        raise ServiceError(422, "1 to 100 on a page")
    if request.query.get("reverse") == "true":
        items = items[::-1]
    pages = -(-len(items) // size)
    return {
        "items": items[(page - 1) * size : page * size],
        "page": page,
        "size": size,
        "total": len(items),
        "pages": pages,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat()
