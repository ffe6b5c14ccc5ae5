"""A service that gives scripted replies."""

from __future__ import annotations

from typing import Any

from tests.fakes.service import FakeService, Request, ServiceReply


class ScriptedService(FakeService):
    """Replies by method and path. Each call takes the next reply of its list; the last one is repeated.

    A path without a script is answered with 404.
    """

    def __init__(self) -> None:
        super().__init__()
        self._replies: dict[str, list[ServiceReply]] = {}

    def script(self, call: str, *replies: Any, status: int = 200) -> None:
        """Set the replies to a call such as `GET /path`."""
        self._replies[call] = [(status, reply) for reply in replies]

    @property
    def calls(self) -> list[str]:
        return [f"{request.method} {request.path}" for request in self.requests]

    def _answer(self, request: Request) -> tuple[ServiceReply, bool]:
        replies = self._replies.get(f"{request.method} {request.path}")
        if not replies:
            return (404, {"detail": "not found"}), False
        return (replies.pop(0) if len(replies) > 1 else replies[0]), False
