"""One configured server, across its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from everthread.adapters.mcp.text import one_line
from everthread.adapters.mcp.tools import ListedTool, ServerUnavailable, ToolList
from everthread.config.schema import McpServer
from everthread.domain.backoff import Backoff
from everthread.domain.circuit_breaker import CircuitBreaker
from everthread.domain.errors import ToolFailed
from everthread.ports.clock import Clock

if TYPE_CHECKING:
    from everthread.adapters.mcp.connection import McpConnection

BACKOFF = Backoff(first_s=1.0, max_s=60.0)


class McpServerClient:
    """Client of a server. The next call reopens a lost connection; if that fails, calls fail immediately until an
    exponential backoff is over.
    """

    def __init__(
        self,
        name: str,
        settings: McpServer,
        clock: Clock,
        connect: Callable[[float, Callable[[], None]], McpConnection],
    ) -> None:
        """`connect` takes the time limit of opening, and a callback for changed tools."""
        self.name = name
        self.settings = settings
        self.listing = ToolList((), ())
        """The tools that the agent knows."""
        self._clock = clock
        self._connect = connect
        self._connection: McpConnection | None = None
        self._replaced: list[McpConnection] = []
        self._last_failed: McpConnection | None = None
        self._breaker = CircuitBreaker()
        self._has_announced = False
        """The server has announced a change of its tools."""
        self._must_list = False
        """The server has announced a change, and no call has listed the tools since."""
        self._listing_lock = asyncio.Lock()
        self._closed = False

    @property
    def changed(self) -> bool:
        """True if `refresh` may change the tools: announced, different after a reconnection, or a retry is due."""
        connection = self._connection
        if connection is None or self._closed or self._is_paused():
            return False
        return bool(connection.lost) or self._has_announced or connection.listing not in (None, self.listing)

    @property
    def problem(self) -> str:
        """Reason why the server, or a part of its tools, can't be used; empty if there is none."""
        lost = "" if self._connection is None else self._connection.lost
        return lost or one_line("; ".join(self.listing.left_out))

    async def refresh(self, wait_s: float, open_s: float) -> None:
        """Connect if necessary, and update the tools. Errors go to `problem`.

        A connection that needs longer than `wait_s` continues to open.
        """
        connection = self._connection
        must_list = connection is not None and not connection.lost and self._has_announced
        # Cleared before the request, so that a change during the response is not missed.
        self._has_announced = False
        try:
            if connection is None or connection.lost:
                connection = self._open(open_s)
            # If the limits are equal, the connection's own applies: it gives a better reason.
            async with asyncio.timeout(wait_s if wait_s < open_s else None):
                listing = await connection.wait_opened()
            if must_list:
                self._must_list = False
                async with asyncio.timeout(wait_s):
                    listing = await connection.list_again()
            must_list = False
            self.listing = listing
            self._breaker = CircuitBreaker()
        except (ServerUnavailable, TimeoutError):
            if connection is not None and (must_list or connection.lost):
                self._back_off()
        finally:
            self._has_announced |= must_list
            self._must_list |= must_list

    async def call(self, tool: ListedTool, arguments: Mapping[str, Any]) -> str:
        """Call a tool. Raises `ToolFailed`, also if the server no longer lists the tool as the caller knows it.
        Cancelling the call does not affect the server.
        """
        bound_s = self.settings.timeout_s
        try:
            connection = await self._ready_connection()
            async with asyncio.timeout(bound_s):
                await self._check_unchanged(connection, tool)
                return await connection.call(tool.name, arguments)
        except TimeoutError:
            raise ToolFailed(f"the MCP server {self.name} has not answered within {bound_s:g} s") from None
        except ServerUnavailable as error:
            raise ToolFailed(f"the MCP server {self.name} is not running: {error}; the rest works") from error

    async def _check_unchanged(self, connection: McpConnection, tool: ListedTool) -> None:
        """Raise `ToolFailed` if the tool has changed since it was listed: what was approved was another tool."""
        if self.settings.trust:
            return
        async with self._listing_lock:
            if self._must_list:
                # Cleared before the request, so that a change during the response is not missed.
                self._must_list = False
                try:
                    await connection.list_again()
                except BaseException:
                    self._must_list = True
                    raise
        listing = connection.listing
        if listing is None or tool not in listing.tools:
            raise ToolFailed(
                f"the MCP server {self.name} has changed or removed {one_line(tool.name, 64)} since this turn began, "
                "so it was not called; its new form is available in the next turn"
            )

    async def close(self) -> None:
        self._closed = True
        connections = [*self._replaced, *([] if self._connection is None else [self._connection])]
        await asyncio.gather(*(connection.close() for connection in connections))

    async def _ready_connection(self) -> McpConnection:
        connection = self._connection
        if connection is None or connection.lost:
            if connection is not None and self._is_paused():
                pause_s = self._breaker.open_until - self._clock.elapsed()
                raise ServerUnavailable(f"{connection.lost} (next try in {pause_s:.0f} s)")
            connection = self._open(self.settings.timeout_s)
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                await connection.wait_opened()
        except ServerUnavailable:
            self._back_off_once(connection)
            raise
        self._breaker = CircuitBreaker()
        return connection

    def _open(self, open_s: float) -> McpConnection:
        if self._closed:
            raise ServerUnavailable("closed")
        if self._connection is not None:
            self._replaced = [old for old in (*self._replaced, self._connection) if not old.has_ended]
        self._connection = self._connect(open_s, self._note_change)
        return self._connection

    def _back_off_once(self, failed: McpConnection) -> None:
        """Back off once for each attempt, however many calls waited for it."""
        if self._last_failed is not failed:
            self._last_failed = failed
            self._back_off()

    def _back_off(self) -> None:
        delay_s = BACKOFF.delay_s(self._breaker.failures + 1)
        self._breaker = self._breaker.after_failure(self._clock.elapsed(), delay_s)

    def _is_paused(self) -> bool:
        return self._breaker.is_open(self._clock.elapsed())

    def _note_change(self) -> None:
        self._has_announced = self._must_list = True
