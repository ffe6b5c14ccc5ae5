"""One configured server, through all its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from everthread.adapters.mcp.text import one_line
from everthread.adapters.mcp.tool_list import Away, Listing
from everthread.config.settings import McpServer
from everthread.domain.backoff import Backoff
from everthread.domain.circuit_breaker import CircuitBreaker
from everthread.domain.errors import ToolFailed
from everthread.ports.clock import Clock

if TYPE_CHECKING:
    from everthread.adapters.mcp.connection import Connection

BACKOFF = Backoff(first_s=1.0, max_s=60.0)


class Server:
    """Keeps a connection while there is one to be had. A lost one is made again by the next call; if that fails, calls
    fail at once until a pause is over, twice as long each time.
    """

    def __init__(
        self,
        name: str,
        settings: McpServer,
        clock: Clock,
        connect: Callable[[float, Callable[[], None]], Connection],
    ) -> None:
        """`connect` takes the time an opening may take, and what to call when the server's tools have changed."""
        self.name = name
        self.settings = settings
        self.listing = Listing((), ())
        """The tools as the agent was told."""
        self._clock = clock
        self._connect = connect
        self._connection: Connection | None = None
        self._replaced: list[Connection] = []
        self._failed: Connection | None = None
        self._breaker = CircuitBreaker()
        self._announced = False
        """The server has said that its tools are others now."""
        self._closed = False

    @property
    def changed(self) -> bool:
        """Whether `refresh` may bring other tools: the server said so, came back with others, or may be tried again."""
        connection = self._connection
        if connection is None or self._closed or self._is_paused():
            return False
        return bool(connection.lost) or self._announced or connection.listing not in (None, self.listing)

    @property
    def problem(self) -> str:
        """Why it can't be used, or else what of it can't; empty if all is well."""
        lost = "" if self._connection is None else self._connection.lost
        return lost or one_line("; ".join(self.listing.left_out))

    async def refresh(self, wait_s: float, open_s: float) -> None:
        """Connect if there is no connection, and take over the tools as they are now. What is wrong is in `problem`.

        A connection that takes longer than `wait_s` goes on being opened.
        """
        connection = self._connection
        asked = connection is not None and not connection.lost and self._announced
        # Before the question: a change while it is answered is one more.
        self._announced = False
        try:
            if connection is None or connection.lost:
                connection = self._begin(open_s)
            # With only one bound it is the connection's own, which says more about why.
            async with asyncio.timeout(wait_s if wait_s < open_s else None):
                listing = await connection.opened()
            if asked:
                async with asyncio.timeout(wait_s):
                    listing = await connection.listed_again()
            asked = False
            self.listing = listing
            self._breaker = CircuitBreaker()
        except (Away, TimeoutError):
            if connection is not None and (asked or connection.lost):
                self._pause()
        finally:
            self._announced |= asked

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Raises `ToolFailed`. Whoever stops waiting leaves the server as it is."""
        bound_s = self.settings.timeout_s
        try:
            connection = await self._connected()
            async with asyncio.timeout(bound_s):
                return await connection.call(tool, arguments)
        except TimeoutError:
            raise ToolFailed(f"the MCP server {self.name} has not answered within {bound_s:g} s") from None
        except Away as away:
            raise ToolFailed(f"the MCP server {self.name} is not running: {away}; the rest works") from away

    async def close(self) -> None:
        self._closed = True
        connections = [*self._replaced, *([] if self._connection is None else [self._connection])]
        await asyncio.gather(*(connection.close() for connection in connections))

    async def _connected(self) -> Connection:
        connection = self._connection
        if connection is None or connection.lost:
            if connection is not None and self._is_paused():
                pause_s = self._breaker.open_until - self._clock.now()
                raise Away(f"{connection.lost} (next try in {pause_s:.0f} s)")
            connection = self._begin(self.settings.timeout_s)
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                await connection.opened()
        except Away:
            self._pause_after(connection)
            raise
        self._breaker = CircuitBreaker()
        return connection

    def _begin(self, open_s: float) -> Connection:
        if self._closed:
            raise Away("closed")
        if self._connection is not None:
            self._replaced = [old for old in (*self._replaced, self._connection) if not old.ended]
        self._connection = self._connect(open_s, self._note_change)
        return self._connection

    def _pause_after(self, failed: Connection) -> None:
        """Once for each attempt, however many calls waited for it."""
        if self._failed is not failed:
            self._failed = failed
            self._pause()

    def _pause(self) -> None:
        delay_s = BACKOFF.delay_s(self._breaker.failures + 1)
        self._breaker = self._breaker.after_failure(self._clock.now(), delay_s)

    def _is_paused(self) -> bool:
        return self._breaker.is_open(self._clock.now(), BACKOFF.max_s)

    def _note_change(self) -> None:
        self._announced = True
