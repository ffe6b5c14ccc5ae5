"""Connections of clients that take their time: how many there may be, and how long they may send or read nothing."""

from __future__ import annotations

import asyncio
import resource
from http import HTTPStatus

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from everthread.web.errors import HttpError

CONNECTIONS_MAX = 4096
HEAD_S_MAX = 15.0
"""From the first byte of a request, or from the beginning of a connection, to the end of its head."""
STUCK_S_MAX = 30.0
"""How long a client may take in nothing of what it is sent."""


_TOO_MANY = HttpError(503, "too many are connected; try again", "too_many_connections", {"Retry-After": "5"})


def connections_max() -> int:
    """As many as leave half of the files that the process may open for all else that it does."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if files == resource.RLIM_INFINITY else min(CONNECTIONS_MAX, files // 2)


def _refusal(problem: HttpError) -> bytes:
    """A whole answer, for whoever is not listened to any further."""
    body = msgspec.json.encode(problem.body)
    headers = {
        **problem.headers,
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
    }
    status = f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}"
    return "\r\n".join([status, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode() + body


class Connection(H11Protocol):
    """One that is closed if its client keeps it open for nothing. What a turn does goes on without it."""

    _head: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > connections_max():
            transport.write(_refusal(_TOO_MANY))
            transport.close()
            return
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._head is None and self.conn.trailing_data[0]:
            # The next request has begun to come while this one was answered.
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._stuck is not None:
            self._stuck.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is told so in the shape of all other refusals, as far as it can be."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_refusal(HttpError(400, "this is no HTTP request that can be read", "bad_request")))
        self.transport.close()

    def _await_head(self) -> None:
        """While a request is answered its body has a limit of its own; what comes else is a head, or no good."""
        if self.cycle and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._head is None and not self.transport.is_closing():
            self._head = self.loop.call_later(HEAD_S_MAX, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _watch(self, left: int) -> None:
        self._stuck = self.loop.call_later(STUCK_S_MAX, self._look, left)

    def _look(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.transport.abort()
        else:
            self._watch(left)
