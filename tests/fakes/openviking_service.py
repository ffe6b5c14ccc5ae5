"""A fake of OpenViking over HTTP: the sessions and memories of `FakeOpenViking`, one for each user of an account.

As strict as the real server: a request names its account and its user, and reaches no file of another user. Messages
are stored as often as they are sent.

Implements only the calls of Everthread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Coroutine, Iterator
from typing import Any

from tests.fakes.openviking import FakeOpenViking
from tests.fakes.service import FakeService, Request, ServiceError, ServiceReply, route, word_overlap

from everthread.adapters.memory.openviking.codec import SessionMessage, find_mark, memories_uri, sessions_uri

API = "/api/v1"
MESSAGES = "/messages.jsonl"

Json = dict[str, Any]


class FakeOpenVikingService(FakeService):
    def __init__(self, *, key: str = "") -> None:
        super().__init__(key=key)
        self.users: dict[tuple[str, str], FakeOpenViking] = {}
        """By account and user."""

    def texts(self, account: str, user: str) -> list[str]:
        """All texts that the server has of a user: in live messages, archives and memories."""
        store = self.users.get((account, user), FakeOpenViking())
        messages = [
            message.text
            for session in store.stored.values()
            for part in (session.live, *session.archives)
            for message in part
        ]
        return messages + [memory.content for memory in store.memories.values()]

    @route("GET", "/health")
    def _health(self, request: Request) -> ServiceReply:
        return 200, {"status": "ok", "auth_mode": "trusted"}

    # Sessions ---------------------------------------------------------------------------------------------------------

    @route("GET", f"{API}/sessions")
    def _list(self, request: Request) -> ServiceReply:
        return _ok([{"session_id": name} for name in self._store(request).stored])

    @route("POST", f"{API}/sessions")
    def _create(self, request: Request) -> ServiceReply:
        body: Json = request.body
        if body.keys() != {"session_id", "auto_commit_policy", "memory_extraction_config"}:
            raise ServiceError(422, "unknown fields")
        tags = body["memory_extraction_config"]["events"]["tags"]
        _run(self._store(request).create(self._user(request), body["session_id"], tags))
        return _ok({"session_id": body["session_id"]})

    @route("GET", f"{API}/sessions/{{name}}")
    def _get(self, request: Request, name: str) -> ServiceReply:
        return _ok(self._existing(request, name))

    @route("DELETE", f"{API}/sessions/{{name}}")
    def _delete(self, request: Request, name: str) -> ServiceReply:
        self._existing(request, name)
        _run(self._store(request).delete_session(self._user(request), name))
        return _ok(None)

    @route("PATCH", f"{API}/sessions/{{name}}/config")
    def _configure(self, request: Request, name: str) -> ServiceReply:
        self._existing(request, name)
        tags = request.body["memory_extraction_config"]["events"]["tags"]
        _run(self._store(request).set_tags(self._user(request), name, tags))
        return _ok(None)

    @route("POST", f"{API}/sessions/{{name}}/messages/batch", stores=True)
    def _append(self, request: Request, name: str) -> ServiceReply:
        self._existing(request, name)
        messages = [_message(body) for body in request.body["messages"]]
        _run(self._store(request).append(self._user(request), name, messages))
        return _ok({"added": len(messages)})

    @route("POST", f"{API}/sessions/{{name}}/commit")
    def _commit(self, request: Request, name: str) -> ServiceReply:
        self._existing(request, name)
        tags = request.body["extraction_metadata"]["event"]["tags"]
        return _ok({"task_id": _run(self._store(request).commit(self._user(request), name, tags))})

    @route("GET", f"{API}/tasks/(?P<task>.+)")
    def _task(self, request: Request, task: str) -> ServiceReply:
        return _ok({"status": _run(self._store(request).task_status(self._user(request), task))})

    # Files ------------------------------------------------------------------------------------------------------------

    @route("GET", f"{API}/fs/ls")
    def _folder(self, request: Request) -> ServiceReply:
        uri = self._own_uri(request, request.query["uri"])
        return _ok(_run(self._store(request).list_folder(self._user(request), uri)))

    @route("GET", f"{API}/content/read")
    def _read(self, request: Request) -> ServiceReply:
        uri, store = self._own_uri(request, request.query["uri"]), self._store(request)
        for found, messages in self._message_files(request):
            if found == uri:
                return _ok("\n".join(_line(message) for message in messages))
        if uri in store.memories:
            return _ok(store.memories[uri].content)
        raise ServiceError(404, "not found")

    @route("POST", f"{API}/content/write")
    def _write(self, request: Request) -> ServiceReply:
        body: Json = request.body
        uri = self._own_uri(request, body["uri"])
        _run(self._store(request).write(self._user(request), uri, body["content"], body["tags"]))
        return _ok(None)

    @route("DELETE", f"{API}/fs")
    def _remove(self, request: Request) -> ServiceReply:
        uri, store = self._own_uri(request, request.query["uri"]), self._store(request)
        is_recursive = request.query.get("recursive") == "true"
        if uri not in store.memories and not is_recursive:
            raise ServiceError(404, "not found")
        _run(store.remove(self._user(request), uri, recursive=is_recursive))
        return _ok(None)

    @route("GET", f"{API}/fs/attrs")
    def _attributes(self, request: Request) -> ServiceReply:
        uri = self._own_uri(request, request.query["uri"])
        tags = _run(self._store(request).tags(self._user(request), uri))
        if tags is None:
            raise ServiceError(404, "not found")
        return _ok({"attrs": {"tags": tags}})

    # Search -----------------------------------------------------------------------------------------------------------

    @route("POST", f"{API}/search/find")
    def _find(self, request: Request) -> ServiceReply:
        body: Json = request.body
        folder = self._own_uri(request, body["target_uri"])
        found = [
            (word_overlap(body["query"], memory.content), memory)
            for memory in self._store(request).memories.values()
            if memory.uri.startswith(f"{folder}/") and set(body.get("tags", ())) <= set(memory.tags)
        ]
        ranked = sorted(found, key=lambda pair: -pair[0])
        memories = [
            {"uri": one.uri, "score": score, "abstract": one.content, "tags": one.tags}
            for score, one in ranked
            if score or not body["query"]
        ]
        return _ok({"memories": memories[: body["limit"]]})

    @route("POST", f"{API}/search/grep")
    def _grep(self, request: Request) -> ServiceReply:
        user, pattern = self._user(request), re.compile(request.body["pattern"])
        lines = [(uri, _line(message)) for uri, messages in self._message_files(request) for message in messages]
        if self._own_uri(request, request.body["uri"]) == memories_uri(user):
            lines = [(uri, memory.content) for uri, memory in self._store(request).memories.items()]
        return _ok({"matches": [{"uri": uri, "content": line} for uri, line in lines if pattern.search(line)]})

    # ------------------------------------------------------------------------------------------------------------------

    def _user(self, request: Request) -> str:
        return request.headers.get("x-openviking-user", "")

    def _store(self, request: Request) -> FakeOpenViking:
        account, user = request.headers.get("x-openviking-account", ""), self._user(request)
        if not (account and user):
            raise ServiceError(401, "no account or no user")
        return self.users.setdefault((account, user), FakeOpenViking())

    def _own_uri(self, request: Request, uri: str) -> str:
        if not uri.startswith(f"viking://user/{self._user(request)}/") or "/../" in uri:
            raise ServiceError(403, "belongs to another user")
        return uri

    def _existing(self, request: Request, name: str) -> Any:
        info = _run(self._store(request).session(self._user(request), name))
        if info is None:
            raise ServiceError(404, "not found")
        return info

    def _message_files(self, request: Request) -> Iterator[tuple[str, list[SessionMessage]]]:
        folder = sessions_uri(self._user(request))
        for name, session in self._store(request).stored.items():
            yield f"{folder}/{name}{MESSAGES}", session.live
            for number, messages in enumerate(session.archives, 1):
                yield f"{folder}/{name}/history/archive_{number:03d}{MESSAGES}", messages


def _ok(result: object) -> ServiceReply:
    return 200, {"status": "ok", "result": result}


def _run(call: Coroutine[Any, Any, Any]) -> Any:
    """Run a method of `FakeOpenViking`, which never waits."""
    try:
        call.send(None)
    except StopIteration as returned:
        return returned.value
    raise AssertionError("the fake waited")


def _message(body: Json) -> SessionMessage:
    mark = find_mark(body.get("source_message_ids"))
    return SessionMessage(body["role"], body["content"], mark, body.get("created_at", ""))


def _line(message: SessionMessage) -> str:
    sources = [str(message.mark)] if message.mark is not None else []
    stored = {"role": message.role, "parts": [{"type": "text", "text": message.text}], "created_at": message.at}
    return json.dumps({**stored, "source_message_ids": sources}, ensure_ascii=False)
