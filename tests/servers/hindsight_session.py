"""A session with a running Hindsight, and queries for the server's contents."""

import json
import urllib.request
from typing import Any
from urllib.parse import quote

from tests.cleanup import close_with_loop
from tests.provider_backend import ProviderBackend
from tests.servers.hindsight_server import HindsightServer
from tests.servers.proxy import FaultProxyServer

from everthread.adapters.memory.hindsight.provider import Hindsight
from everthread.domain.events import Delivery, ForgetScope
from everthread.domain.model import ChatType, SessionKey, SessionRef
from everthread.testing.recording_provider import StoredEntry

KINDS = {"work": "delegation"}
KEEPS = r"POST /v1/default/banks/[^/]+/memories"


def asked(address: str, path: str, method: str = "GET") -> Any:
    with urllib.request.urlopen(urllib.request.Request(address + path, method=method), timeout=30) as answer:
        return json.loads(answer.read())


def documents(address: str, prefix: str) -> list[dict[str, Any]]:
    """All documents in banks with this name prefix, oldest first."""
    found: list[dict[str, Any]] = []
    for bank in asked(address, "/v1/default/banks")["banks"]:
        if bank["bank_id"].startswith(prefix):
            path = f"/v1/default/banks/{quote(bank['bank_id'], safe='')}/documents"
            ids = [one["id"] for one in asked(address, f"{path}?limit=1000")["items"]]
            found += [asked(address, f"{path}/{quote(each, safe='')}") for each in ids]
    return sorted(found, key=lambda one: (one["created_at"], one["id"]))


def held(address: str, prefix: str) -> list[StoredEntry]:
    effects: list[StoredEntry] = []
    for one in documents(address, prefix):
        about = one["document_metadata"]
        turn = int(about["turn"]) if "turn" in about else None
        kind = KINDS.get(about["kind"]) or about["kind"]
        effects.append(StoredEntry(about["session"], kind, one["original_text"], turn=turn))
    return effects


class Talk:
    """One session with a provider, entry by entry."""

    def __init__(self, provider: Hindsight, session_id: str, owner: str = "ann") -> None:
        self.provider = provider
        self.ref = SessionRef(session_id, 0, SessionKey("main", "cli", ChatType.DM, "1"), 1, owner)
        self.seq = self.turns = 0

    def delivery(self, attempt: int = 1, replay: int = 0) -> Delivery:
        key = f"{self.ref.session_id}:{self.seq}:hindsight:{replay}"
        return Delivery(key, self.seq, attempt, replay)

    async def say(self, text: str, *, again: bool = False, replay: int = 0) -> None:
        if not again:
            self.seq, self.turns = self.seq + 1, self.turns + 1
        delivery = self.delivery(2 if again else 1, replay)
        await self.provider.sync_turn(text, "I see.", ref=self.ref, delivery=delivery, turn=self.turns, at=86_400.0)

    async def open(self, parent: str = "") -> None:
        self.seq += 1
        delivery = self.delivery()
        await self.provider.on_session_switch(
            self.ref.session_id, parent_session_id=parent, ref=self.ref, delivery=delivery
        )

    async def note(self, content: str, version: int, action: str = "replace") -> None:
        self.seq += 1
        about = {"note_id": "n1", "version": version, "turn_id": None, "at": 86_400.0}
        await self.provider.on_memory_write(action, "user", content, about, ref=self.ref, delivery=self.delivery())

    async def forget(self, scope: ForgetScope, text: str = "", note_id: str = "") -> None:
        self.seq += 1
        await self.provider.forget(scope, ref=self.ref, delivery=self.delivery(), text=text, note_id=note_id)


async def ready(settings: dict[str, Any]) -> Hindsight:
    provider = close_with_loop(Hindsight)
    await provider.initialize(**settings)
    return provider


def texts(core: HindsightServer, prefix: str) -> dict[str, str]:
    return {one["id"]: one["original_text"] for one in documents(core.address, prefix)}


def operations(core: HindsightServer, bank: str) -> int:
    return asked(core.address, f"{bank}/operations?limit=100")["total"]


def memories(core: HindsightServer, bank: str) -> list[str]:
    """Ids of the memories. A memory that was created again has a new id."""
    return sorted(one["id"] for one in asked(core.address, f"{bank}/memories/list?limit=100")["items"])


def everything(core: HindsightServer, bank: str) -> str:
    """Documents, memories, and the stored requests to the server."""
    found = [asked(core.address, f"{bank}/{what}?limit=100") for what in ("documents", "memories/list")]
    for one in asked(core.address, f"{bank}/operations?limit=100")["operations"]:
        found.append(asked(core.address, f"{bank}/operations/{one['id']}?include_payload=true"))
    return json.dumps(found)


def back_end_of(
    core: HindsightServer, door: FaultProxyServer, settings: dict[str, Any], prefix: str
) -> ProviderBackend:
    def parent_of(session_id: str) -> str:
        about = {one["id"]: one["document_metadata"] for one in documents(core.address, prefix)}
        return about[f"{session_id}/opened"]["parent"]

    return ProviderBackend(
        f"{Hindsight.__module__}:{Hindsight.__qualname__}",
        settings,
        door,
        lambda: held(core.address, prefix),
        settles_s=5.0,
        parent_of=parent_of,
        keeps_closes=False,
        tool=("hindsight_recall", "query"),
    )
