"""A fake of Hindsight over HTTP: banks, documents, and the operations that ingest them.

As strict as the real server: a request with other fields, an id that is no UUID or a query without a word is rejected.
Operation ids are global; a known one is ignored, whatever its content. The text of a request stays with its operation
until the operation is deleted. A bank is created by its first document.

Implements only the calls of Everthread.
"""

from __future__ import annotations

import uuid
from typing import Any

from tests.fakes.service import FakeService, Request, ServiceError, ServiceReply, route, word_overlap

BANK = "/v1/default/banks/{bank}"
ITEM_FIELDS = {
    "content",
    "document_id",
    "update_mode",
    "metadata",
    "tags",
    "observation_scopes",
    "context",
    "timestamp",
}

Json = dict[str, Any]


class FakeHindsight(FakeService):
    def __init__(self, *, key: str = "") -> None:
        super().__init__(key=key)
        self.banks: dict[str, dict[str, Json]] = {}
        """Documents by bank and id."""
        self.operations: dict[str, Json] = {}
        self.ingested = 0
        self._failing: int = 0

    def fail_ingestion(self, requests: int = 1) -> None:
        """Accept the next documents, and fail to ingest them. A retry fails too."""
        self._failing = requests

    def texts(self, bank: str) -> list[str]:
        """All texts that the server has for a bank: in documents and in the requests that it keeps."""
        documents = [document["original_text"] for document in self.banks.get(bank, {}).values()]
        return documents + [one["item"]["content"] for one in self.operations.values() if one["bank"] == bank]

    @route("GET", "/health")
    def _health(self, request: Request) -> ServiceReply:
        return 200, {"status": "healthy"}

    # Documents --------------------------------------------------------------------------------------------------------

    @route("POST", f"{BANK}/memories", stores=True)
    def _retain(self, request: Request, bank: str) -> ServiceReply:
        body: Json = request.body
        if not body.keys() <= {"items", "async", "operation_id"} or body.get("async") is not True:
            raise ServiceError(422, "unknown fields")
        (item,) = body["items"]
        if not item.keys() <= ITEM_FIELDS or item["update_mode"] != "replace" or not item["content"].strip():
            raise ServiceError(422, "an item that can't be stored")
        operation_id = str(uuid.UUID(body.get("operation_id") or str(uuid.uuid4())))
        if operation_id not in self.operations:
            is_failed = self._failing > 0
            self._failing -= is_failed
            operation = {"id": operation_id, "bank": bank, "status": "failed" if is_failed else "completed"}
            self.operations[operation_id] = {**operation, "item": item}
            if not is_failed:
                self._ingest(bank, item)
        return 200, {"success": True, "bank_id": bank, "items_count": 1, "operation_id": operation_id}

    @route("GET", f"{BANK}/documents")
    def _list(self, request: Request, bank: str) -> ServiceReply:
        query = request.query
        if not query.keys() <= {"limit", "offset", "tags", "q"}:
            raise ServiceError(422, "unknown parameters")
        found = [
            document
            for document in self._bank(bank).values()
            if query.get("tags", "") in ("", *document["tags"]) and query.get("q", "") in document["original_text"]
        ]
        begin = int(query["offset"])
        return 200, {"items": [{"id": one["id"]} for one in found[begin : begin + int(query["limit"])]]}

    @route("GET", f"{BANK}/documents/(?P<document>.+)")
    def _get(self, request: Request, bank: str, document: str) -> ServiceReply:
        return 200, self._find(self._bank(bank), document)

    @route("DELETE", f"{BANK}/documents/(?P<document>.+)")
    def _delete(self, request: Request, bank: str, document: str) -> ServiceReply:
        self._find(self._bank(bank), document)
        del self.banks[bank][document]
        return 200, {"success": True}

    @route("DELETE", BANK)
    def _delete_bank(self, request: Request, bank: str) -> ServiceReply:
        self._bank(bank)
        del self.banks[bank]
        self.operations = {id: one for id, one in self.operations.items() if one["bank"] != bank}
        return 200, {"success": True}

    # Operations -------------------------------------------------------------------------------------------------------

    @route("GET", f"{BANK}/operations")
    def _list_operations(self, request: Request, bank: str) -> ServiceReply:
        found = [one for one in self._operations(bank).values() if one["status"] == request.query["status"]]
        listed = [
            {"id": one["id"], "status": one["status"], "task_type": "retain", "document_id": one["item"]["document_id"]}
            for one in found
        ]
        begin = int(request.query["offset"])
        return 200, {"operations": listed[begin : begin + int(request.query["limit"])]}

    @route("GET", f"{BANK}/operations/{{operation}}")
    def _status(self, request: Request, bank: str, operation: str) -> ServiceReply:
        one = self._operations(bank).get(operation)
        if one is None:
            return 200, {"operation_id": operation, "status": "not_found"}
        payload = {"task_payload": {"contents": [one["item"]]}} if request.query.get("include_payload") else {}
        return 200, {"operation_id": operation, "status": one["status"], **payload}

    @route("POST", f"{BANK}/operations/{{operation}}/retry")
    def _retry(self, request: Request, bank: str, operation: str) -> ServiceReply:
        self._find(self._operations(bank), operation)
        return 200, {"success": True}

    @route("DELETE", f"{BANK}/operations/{{operation}}/delete")
    def _delete_operation(self, request: Request, bank: str, operation: str) -> ServiceReply:
        self._find(self._operations(bank), operation)
        del self.operations[operation]
        return 200, {"success": True}

    @route("POST", f"{BANK}/health/llm")
    def _models(self, request: Request, bank: str) -> ServiceReply:
        return 200, {"operations": [{"operation": "retain", "ok": True}]}

    # Recall -----------------------------------------------------------------------------------------------------------

    @route("POST", f"{BANK}/memories/recall")
    def _recall(self, request: Request, bank: str) -> ServiceReply:
        return 200, {"results": self._matching(request, bank), "source_facts": {}}

    @route("POST", f"{BANK}/reflect")
    def _reflect(self, request: Request, bank: str) -> ServiceReply:
        return 200, {"text": " ".join(fact["text"] for fact in self._matching(request, bank))}

    def _matching(self, request: Request, bank: str) -> list[Json]:
        query: str = request.body["query"]
        if not any(character.isalnum() for character in query):
            raise ServiceError(422, "a query without a word")
        scored = [(word_overlap(query, one["original_text"]), one) for one in self._bank(bank).values()]
        return [
            {"text": one["original_text"], "document_id": one["id"], "metadata": one["document_metadata"]}
            for score, one in sorted(scored, key=lambda pair: -pair[0])
            if score
        ]

    # ------------------------------------------------------------------------------------------------------------------

    def _ingest(self, bank: str, item: Json) -> None:
        self.ingested += 1
        self.banks.setdefault(bank, {})[item["document_id"]] = {
            "id": item["document_id"],
            "original_text": item["content"],
            "tags": item["tags"],
            "document_metadata": item["metadata"],
        }

    def _bank(self, bank: str) -> dict[str, Json]:
        return self._find(self.banks, bank)

    def _operations(self, bank: str) -> dict[str, Json]:
        return {id: one for id, one in self.operations.items() if one["bank"] == bank}

    @staticmethod
    def _find(among: dict[str, Any], key: str) -> Any:
        if key not in among:
            raise ServiceError(404, "not found")
        return among[key]
