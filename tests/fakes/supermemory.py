"""A fake of the Supermemory service over HTTP, with the paths and shapes of its client library 5.0.

Unpleasant behaviour: documents are queued, cannot be found and have no text before they are processed, and may fail
long after they were accepted. Adding to an existing document appends to it, unless the text is identical. Deleting
handles each id separately, and reports unknown ones.

Implements only the calls of Everthread and of the official client's tests.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.fakes.service import FakeService, Request, ServiceError, ServiceReply, route, word_overlap

IDS_MAX = 100
PAGE_SIZE_MAX = 200
ID_CHARS_MAX = 100

_NS = "/ns/{ns}"
Json = dict[str, Any]


class FakeSupermemory(FakeService):
    invalid_status = 400

    def __init__(self, *, key: str = "", takes_in_s: float = 0.0) -> None:
        super().__init__(key=key)
        self._takes_in_s = takes_in_s
        self._spoiled = 0
        self.spaces: dict[str, dict[str, Json]] = {}
        """Documents of each namespace, by id."""

    def spoil_next(self, documents: int = 1) -> None:
        """Accept the next documents, and fail them during processing."""
        self._spoiled = documents

    @route("POST", _NS + "/document", stores=True)
    def _add(self, request: Request, ns: str) -> ServiceReply:
        body: Json = request.body
        content = body.get("content")
        if not isinstance(content, str) or not content.strip():
            raise ServiceError(400, "content is empty")
        space = self.spaces.setdefault(ns, {})
        id = str(body.get("id") or f"d{len(space) + 1}")
        if len(id) > ID_CHARS_MAX:
            raise ServiceError(400, "the id is too long")
        document = space.get(id)
        if document is None:
            document = space[id] = {"id": id, "given": "", "content": None, "metadata": {}, "at": _now(), "work": 0}
        elif content == document["given"]:
            return 202, {"id": id, "status": document["status"]}
        document["given"] = f"{document['given']}\n{content}" if document["given"] else content
        document["metadata"] |= body.get("metadata") or {}
        return 202, self._queued(ns, document)

    @route("PATCH", _NS + "/document/{id}", stores=True)
    def _replace(self, request: Request, ns: str, id: str) -> ServiceReply:
        document = self._the(ns, id)
        body: Json = request.body
        if body.get("metadata") is not None:
            document["metadata"] = body["metadata"]
        if body.get("content") is None:
            return 200, {"id": id, "status": document["status"]}
        document["given"] = body["content"]
        return 200, self._queued(ns, document)

    @route("GET", _NS + "/document/{id}")
    def _get(self, request: Request, ns: str, id: str) -> ServiceReply:
        return 200, _shown(self._the(ns, id), with_content=True)

    @route("DELETE", _NS + "/document")
    def _delete(self, request: Request, ns: str) -> ServiceReply:
        ids: list[str] = request.body.get("ids") or []
        if not 1 <= len(ids) <= IDS_MAX:
            raise ServiceError(400, "1 to 100 ids")
        space = self.spaces.get(ns, {})
        unknown = [{"id": id, "error": "Document not found"} for id in ids if space.pop(id, None) is None]
        return 200, {"count": len(ids) - len(unknown), "errors": unknown}

    @route("POST", _NS + "/list/documents")
    def _list(self, request: Request, ns: str) -> ServiceReply:
        page, limit = int(request.query.get("page", 1)), int(request.query.get("limit", 50))
        if not 1 <= limit <= PAGE_SIZE_MAX:
            raise ServiceError(400, "1 to 200 on a page")
        body: Json = request.body or {}
        include: Json = body.get("include") or {}
        found = [one for one in self.spaces.get(ns, {}).values() if _fits(one, body.get("filter"))]
        shown = [_shown(one, with_content=bool(include.get("content"))) for one in found]
        pages = {
            "currentPage": page,
            "limit": limit,
            "totalItems": len(shown),
            "totalPages": -(-len(shown) // limit),
        }
        documents = shown[(page - 1) * limit : page * limit]
        return 200, {"documents": documents, "chunks": [], "memories": [], "pagination": pages}

    @route("POST", _NS + "/search")
    def _search(self, request: Request, ns: str) -> ServiceReply:
        body: Json = request.body
        taken_in = [one for one in self.spaces.get(ns, {}).values() if one["content"] is not None]
        scored = [
            (word_overlap(body["query"], one["content"]), one) for one in taken_in if _fits(one, body.get("filter"))
        ]
        best = [pair for pair in sorted(scored, key=lambda pair: -pair[0]) if pair[0]][: body.get("limit", 10)]
        return 200, {"results": [_result(score, one) for score, one in best], "searchTime": 1}

    @route("POST", _NS + "/profile")
    def _profile(self, request: Request, ns: str) -> ServiceReply:
        facts = [one for one in self.spaces.get(ns, {}).values() if one["metadata"].get("kind") == "note"]
        static = [{"id": f"{one['id']}-m", "memory": one["content"]} for one in facts if one["content"] is not None]
        return 200, {"profile": {"static": static, "dynamic": [], "buckets": {}}}

    @route("DELETE", _NS)
    def _retire(self, request: Request, ns: str) -> ServiceReply:
        if ns not in self.spaces:
            raise ServiceError(404, "no such namespace")
        count = len(self.spaces.pop(ns))
        done = {"namespace": ns, "deletedDocumentsCount": count, "deletedMemoriesCount": count}
        return 200, {"status": "deleted", **done}

    @route("GET", "/ns")
    def _spaces(self, request: Request) -> ServiceReply:
        return 200, {"namespaces": [], "pagination": {"currentPage": 1, "totalItems": 0, "totalPages": 0}}

    # ------------------------------------------------------------------------------------------------------------------

    def _the(self, ns: str, id: str) -> Json:
        document = self.spaces.get(ns, {}).get(id)
        if document is None:
            raise ServiceError(404, "no such document")
        return document

    def _queued(self, ns: str, document: Json) -> Json:
        document["status"] = "queued"
        document["work"] += 1
        work, is_spoiled = document["work"], self._spoiled > 0
        self._spoiled -= is_spoiled

        def taken_in() -> None:
            if document["work"] != work:
                return
            document["status"] = "failed" if is_spoiled else "done"
            if not is_spoiled:
                document["content"] = document["given"]

        if self._takes_in_s:
            self.later(self._takes_in_s, taken_in)
        else:
            taken_in()
        return {"id": document["id"], "status": "queued"}


def _shown(document: Json, *, with_content: bool) -> Json:
    return {
        "id": document["id"],
        "title": None,
        "type": "text",
        "summary": None,
        "content": document["content"] if with_content else None,
        "metadata": document["metadata"],
        "system": {
            "status": document["status"],
            "dreamingStatus": "done",
            "createdAt": document["at"],
            "updatedAt": document["at"],
        },
    }


def _result(score: float, document: Json) -> Json:
    return {
        "id": f"{document['id']}-1",
        "chunk": document["content"],
        "metadata": document["metadata"],
        "similarity": score,
        "isLatest": True,
        "isInference": False,
        "system": {"updatedAt": document["at"], "createdAt": document["at"]},
    }


def _fits(document: Json, wanted: Json | None) -> bool:
    if wanted is None:
        return True
    if wanted["operator"] == "and":
        return all(_fits(document, one) for one in wanted["operands"])
    is_it = document["metadata"].get(wanted["field"]) == wanted["value"]
    return is_it if wanted["operator"] == "eq" else not is_it


def _now() -> str:
    return datetime.now(UTC).isoformat()
