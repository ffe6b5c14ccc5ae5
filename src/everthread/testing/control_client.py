"""Client for the control interface of a test platform that runs in another process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

import aiohttp
import msgspec

LogEntryT = TypeVar("LogEntryT")


class ControlClient(Generic[LogEntryT]):
    """Send JSON calls below one path of the platform and record its log. `line` is the type of a log entry."""

    def __init__(self, base_url: str, path: str, line: type[LogEntryT]) -> None:
        self.base_url = base_url
        self.log: list[LogEntryT] = []
        """Log entries up to the last `refresh`."""
        self._path = path
        self._lines = list[line]

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def refresh(self, timeout_s: float = 0.0) -> None:
        """Update `log`. If there are no new entries, wait up to `timeout_s` for one."""
        self.log += await self._call("watch", {"after": len(self.log), "timeout_s": timeout_s}, self._lines)

    async def until(self, condition: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
        """Poll the log until the condition holds."""
        deadline = time.monotonic() + timeout_s
        await self.refresh()
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"timed out waiting for {what}; last log entries: {self.log[-5:]}")
            await self.refresh(min(left, 1.0))

    async def _call(self, name: str, body: object, kind: Any) -> Any:
        url = f"{self.base_url}/{self._path}/{name}"
        async with self._http.post(url, data=msgspec.json.encode(body)) as response:
            answer = await response.read()
            if response.status != 200:
                raise AssertionError(f"/{self._path}/{name}: {response.status} {answer.decode()}")
        return msgspec.json.decode(answer, type=kind)
