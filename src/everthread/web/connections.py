"""Limits of HTTP connections: their number, and how long a client may send or read nothing."""

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
"""Time from the first byte of a request, or from the connection, to the end of the headers."""
STUCK_S_MAX = 30.0
"""Time in which a client must read something of its response."""


_TOO_MANY = HttpError(503, "Too many connections. Try again later.", "too_many_connections", {"Retry-After": "5"})


def connections_max() -> int:
    """Return the limit of connections: it leaves half of the open files to the rest of the process."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if files == resource.RLIM_INFINITY else min(CONNECTIONS_MAX, files // 2)


def _encode_refusal(problem: HttpError) -> bytes:
    """Encode a whole response for a connection that is about to be closed."""
    body = msgspec.json.encode(problem.body)
    headers = problem.headers | {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}", "Connection: close"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode() + body


class Connection(H11Protocol):
    """A connection that is closed if its client stays idle. Its turn goes on without it."""

    _head: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > connections_max():
            transport.write(_encode_refusal(_TOO_MANY))
            transport.close()
            return
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._start_head_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._head is None and self.conn.trailing_data[0]:
            # The next request arrived while this one was answered.
            self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self._stuck is not None:
            self._stuck.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_stuck_timer(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP in the format of all other errors, if a response can still be sent."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_encode_refusal(HttpError(400, "Invalid HTTP request.", "bad_request")))
        self.transport.close()

    def _start_head_timer(self) -> None:
        """Start the timer for the headers, unless a request is being answered: its body has a limit of its own."""
        if self.cycle and not self.cycle.response_complete:
            self._stop_head_timer()
        elif self._head is None and not self.transport.is_closing():
            self._head = self.loop.call_later(HEAD_S_MAX, self.transport.abort)

    def _stop_head_timer(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _start_stuck_timer(self, left: int) -> None:
        self._stuck = self.loop.call_later(STUCK_S_MAX, self._abort_if_stuck, left)

    def _abort_if_stuck(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.transport.abort()
        else:
            self._start_stuck_timer(left)
