"""A fake of the Mem0 platform over HTTP, with the paths and shapes of its client library 2.2.

Unpleasant behaviour: additions are queued, cannot be found before they are processed, and may fail long after they were
accepted. Verbatim texts are stored as often as they are sent. A filter with a user and no run excludes all entries with
a run. Lists are paged, newest first. Deleting by filter happens later, and is refused without a filter. Every path ends
with a slash.

Implements only the calls of Everthread and of the official client's tests.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from tests.fakes.service import FakeService, Request, ServiceError, ServiceReply, route, word_overlap

from everthread.testing.backend_model.extraction import facts_in

PAGE_SIZE_MAX = 100
ENTITIES = ("user_id", "agent_id", "app_id", "run_id")

Json = dict[str, Any]


class FakeMem0(FakeService):
    invalid_status = 400
    scheme = "Token"

    def __init__(self, *, key: str = "", takes_in_s: float = 0.0, deletes_s: float = 0.0) -> None:
        super().__init__(key=key)
        self._takes_in_s = takes_in_s
        self._deletes_s = deletes_s
        self._spoiled = 0
        self.memories: list[Json] = []
        """Oldest first."""
        self.events: dict[str, Json] = {}

    def spoil_next(self, requests: int = 1) -> None:
        """Accept the next additions, and fail them during processing."""
        self._spoiled = requests

    @route("GET", "/v1/ping/")
    def _ping(self, request: Request) -> ServiceReply:
        return 200, {"status": "ok", "org_id": "o1", "project_id": "p1", "user_email": None}

    @route("POST", "/v3/memories/add/", stores=True)
    def _add(self, request: Request) -> ServiceReply:
        body: Json = request.body
        if not isinstance(body.get("messages"), list) or not body["messages"]:
            raise ServiceError(400, "no messages")
        if not any(body.get(name) for name in ENTITIES):
            raise ServiceError(400, "at least one of user_id, agent_id, app_id, run_id")
        event: Json = {"id": str(uuid.uuid4()), "event_type": "ADD", "status": "PENDING", "results": []}
        self.events[event["id"]] = event
        is_spoiled = self._spoiled > 0
        self._spoiled -= is_spoiled

        def carried_out() -> None:
            event["status"] = "FAILED" if is_spoiled else "SUCCEEDED"
            if not is_spoiled:
                self._take_in(body)

        self._soon(self._takes_in_s, carried_out)
        return 200, {"message": "queued", "status": "PENDING", "event_id": event["id"]}

    @route("GET", "/v1/event/{id}/")
    def _event(self, request: Request, id: str) -> ServiceReply:
        if id not in self.events:
            raise ServiceError(404, "no such event")
        return 200, self.events[id]

    @route("POST", "/v3/memories/")
    def _list(self, request: Request) -> ServiceReply:
        page, size = int(request.query.get("page", 1)), int(request.query.get("page_size", 50))
        if not 1 <= size <= PAGE_SIZE_MAX:
            raise ServiceError(400, "1 to 100 on a page")
        found = self._fitting(request.body)[::-1]
        more = "http://fake/next" if page * size < len(found) else None
        shown = [_shown(one) for one in found[(page - 1) * size : page * size]]
        return 200, {"count": len(found), "next": more, "previous": None, "results": shown}

    @route("POST", "/v3/memories/search/")
    def _search(self, request: Request) -> ServiceReply:
        body: Json = request.body
        if not str(body.get("query", "")).strip():
            raise ServiceError(400, "no query")
        scored = [(word_overlap(body["query"], one["memory"]), one) for one in self._fitting(body)]
        best = [pair for pair in sorted(scored, key=lambda pair: -pair[0]) if pair[0]][: body.get("top_k", 10)]
        return 200, {"results": [{**_shown(one), "score": score} for score, one in best]}

    @route("PUT", "/v1/memories/{id}/")
    def _update(self, request: Request, id: str) -> ServiceReply:
        memory = self._the(id)
        memory["memory"] = request.body.get("text") or memory["memory"]
        memory["metadata"] = request.body.get("metadata") or memory["metadata"]
        return 200, _shown(memory)

    @route("DELETE", "/v1/memories/{id}/")
    def _delete(self, request: Request, id: str) -> ServiceReply:
        self.memories.remove(self._the(id))
        return 200, {"message": "Memory deleted successfully!"}

    @route("DELETE", "/v1/memories/")
    def _delete_all(self, request: Request) -> ServiceReply:
        whose = {name: request.query[name] for name in ENTITIES if request.query.get(name)}
        if not whose:
            raise ServiceError(400, "at least one filter")
        gone = [one for one in self.memories if whose.items() <= one.items()]

        def deleted() -> None:
            self.memories[:] = [one for one in self.memories if one not in gone]

        self._soon(self._deletes_s, deleted)
        return 200, {"message": "Memories deleted successfully!"}

    @route("DELETE", "/v2/entities/user/{name}/")
    def _delete_user(self, request: Request, name: str) -> ServiceReply:
        gone = [one for one in self.memories if one["user_id"] == name]
        if not gone:
            raise ServiceError(404, "no such entity")
        self.memories[:] = [one for one in self.memories if one not in gone]
        return 200, {"message": "Entity deleted successfully!"}

    # ------------------------------------------------------------------------------------------------------------------

    def _soon(self, seconds: float, act: Any) -> None:
        if seconds:
            self.later(seconds, act)
        else:
            act()

    def _the(self, id: str) -> Json:
        for one in self.memories:
            if one["id"] == id:
                return one
        raise ServiceError(404, "no such memory")

    def _take_in(self, body: Json) -> None:
        whose = {name: body.get(name) for name in ENTITIES}
        messages: list[Json] = body["messages"]
        if body.get("infer", True):
            said = [fact for one in messages if one["role"] == "user" for fact in facts_in(one["content"])]
            known = {one["memory"] for one in self.memories if whose.items() <= one.items()}
            texts = [fact for fact in dict.fromkeys(said) if fact not in known]
        else:
            texts = [str(one["content"]) for one in messages]
        at = datetime.now(UTC).isoformat()
        for text in texts:
            about = {"memory": text, "metadata": body.get("metadata"), "created_at": at, "updated_at": at}
            self.memories.append({"id": str(uuid.uuid4()), **whose, **about})

    def _fitting(self, body: Json | None) -> list[Json]:
        filters = (body or {}).get("filters")
        if not filters:
            raise ServiceError(400, "filters are required")
        named = _names(filters)
        if not named & set(ENTITIES):
            raise ServiceError(400, "filters name no user, agent, app or run")
        return [
            one
            for one in self.memories
            if _fits(one, filters) and all(one[name] is None for name in ENTITIES if name not in named)
        ]


def _shown(memory: Json) -> Json:
    return {**memory, "categories": [], "expiration_date": None}


def _names(filters: Json) -> set[str]:
    found: set[str] = set()
    for name, value in filters.items():
        if name in ("AND", "OR", "NOT"):
            for one in value:
                found |= _names(one)
        elif name in (*ENTITIES, "metadata", "created_at", "updated_at", "categories", "keywords"):
            found.add(name)
        else:
            raise ServiceError(400, f"no such field: {name}")
    return found


def _fits(memory: Json, filters: Json) -> bool:
    for name, value in filters.items():
        if name == "AND":
            is_it = all(_fits(memory, one) for one in value)
        elif name == "OR":
            is_it = any(_fits(memory, one) for one in value)
        elif name == "NOT":
            is_it = not any(_fits(memory, one) for one in value)
        elif name == "metadata":
            is_it = value.items() <= (memory["metadata"] or {}).items()
        else:
            is_it = memory[name] is not None if value == "*" else memory[name] == value
        if not is_it:
            return False
    return True
