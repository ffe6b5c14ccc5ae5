"""Whoever stands beside a platform for tests, in another process than it: asks it to do things, and watches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

import aiohttp
import msgspec

Line = TypeVar("Line")


class Bystander(Generic[Line]):
    """Speaks JSON with what is under one path of the platform. `line` is the kind of what it sees there."""

    def __init__(self, base_url: str, path: str, line: type[Line]) -> None:
        self.base_url = base_url
        self.seen: list[Line] = []
        """All that was seen when one last looked."""
        self._path = path
        self._lines = list[line]

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def look(self, timeout_s: float = 0.0) -> None:
        """Bring `seen` up to date; if there is nothing new, wait for it for so long."""
        self.seen += await self._call("watch", {"after": len(self.seen), "timeout_s": timeout_s}, self._lines)

    async def until(self, condition: Callable[[], object], what: str, patience_s: float = 30.0) -> None:
        """Watch until the condition holds of what was seen."""
        deadline = time.monotonic() + patience_s
        await self.look()
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"it never came to pass: {what}; seen last: {self.seen[-5:]}")
            await self.look(min(left, 1.0))

    async def _call(self, name: str, body: object, kind: Any) -> Any:
        url = f"{self.base_url}/{self._path}/{name}"
        async with self._http.post(url, data=msgspec.json.encode(body)) as response:
            answer = await response.read()
            if response.status != 200:
                raise AssertionError(f"/{self._path}/{name}: {response.status} {answer.decode()}")
        return msgspec.json.decode(answer, type=kind)
