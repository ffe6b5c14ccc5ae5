"""A minimal memory provider with an HTTP server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

from everthread.domain.errors import Unavailable
from everthread.domain.events import Delivery
from everthread.domain.model import SessionRef
from everthread.ports.memory import Capability, MemoryProvider, RecallItem


class HttpProvider(MemoryProvider):
    """Posts every turn to a server, one request each."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__()
        self.name = name
        self.capabilities = Capability.RECALL
        self._url = f"http://127.0.0.1:{port}/turns"
        self._client: aiohttp.ClientSession | None = None

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        payload = {"id": delivery.key, "session": ref.session_id, "user": user, "assistant": assistant}
        await self._post(msgspec.json.encode(payload))

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        await self._post(msgspec.json.encode({"query": query}))
        return ()

    async def shutdown(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _post(self, body: bytes) -> None:
        if self._client is None:
            self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10))
        try:
            async with self._client.post(self._url, data=body) as answer:
                await answer.read()
        except aiohttp.ClientError as error:
            raise Unavailable(self.name, str(error)) from error
