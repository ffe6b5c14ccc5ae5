"""What a server has to offer, or why it has nothing to offer now.

One connection to an MCP server. The only module here that needs the SDK, and so the one that is imported late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import httpx2
import msgspec
from mcp import ClientSession, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import CallOptions
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp.types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    PaginatedRequestParams,
    Tool,
    ToolListChangedNotification,
    jsonrpc_message_adapter,
)
from mcp.types.methods import validate_server_result
from pydantic import ValidationError

from everthread.adapters.mcp.results import answer_of
from everthread.adapters.mcp.stdio import MESSAGE_BYTES_MAX, Child
from everthread.adapters.mcp.text import one_line, without
from everthread.adapters.mcp.tool_list import Away, Listed, Listing
from everthread.config.settings import McpServer
from everthread.domain.errors import ToolFailed

log = logging.getLogger("everthread.tools.mcp")

DESCRIPTION_CHARS_MAX = 2_000
SCHEMA_BYTES_MAX = 64 * 1024
TOOLS_MAX = 1_000
PAGES_MAX = 100
CLOSE_S = 4.0
HTTP_S = 10.0
SILENT_S_MAX = 86_400.0
_STEP_S = 1.0
_STATUS_S = 0.5


class Connection:
    """From its opening to its end, in a task of its own: what anyio enters in a task must be left in that task.

    It may be called from any task, by many at once. Once lost it stays lost; the next connection is another object.
    """

    def __init__(
        self,
        name: str,
        server: McpServer,
        environ: Mapping[str, str],
        *,
        open_s: float,
        on_change: Callable[[], None],
    ) -> None:
        self.lost = ""
        """Why it is of no more use; empty while it is, or may come to be."""
        self.listing: Listing | None = None
        self._name = name
        self._server = server
        self._environ = environ
        self._on_change = on_change
        self._stderr = ""
        self._noise = ""
        self._status = 0
        self._opened = asyncio.Event()
        self._leave = asyncio.Event()
        self._scope = anyio.CancelScope()
        too_late = f"no answer within {open_s:g} s"
        self._timer = asyncio.get_running_loop().call_later(open_s, lambda: self._give_up(too_late + self._noise))
        self._task = asyncio.ensure_future(self._live())

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def opened(self) -> Listing:
        """Wait until it can be used, for no longer than `open_s`; raises `Away` if it can't."""
        await self._opened.wait()
        if self.lost or self.listing is None:
            raise Away(self.lost)
        return self.listing

    async def listed_again(self) -> Listing:
        """The tools as they are now; raises `Away`."""
        try:
            self.listing = await self._listed()
        except (MCPError, ValidationError, RuntimeError) as error:
            raise Away(self._why(error)) from error
        return self.listing

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The answer in words. Raises `ToolFailed`, or `Away` if the connection ends before the answer is here; whether
        the server has done something by then is unknown, so a call is never sent twice.
        """
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=dict(arguments)))
        try:
            # Not `call_tool`: it runs the patterns of a stranger's schema over the answer, here in the event loop.
            result = await self._session.send_request(request, CallToolResult)
        except MCPError as error:
            if await self._is_the_end(error):
                raise Away(self.lost) from error
            raise ToolFailed(self._why(error)) from error
        except (ValidationError, RuntimeError, OSError, anyio.ClosedResourceError) as error:
            raise ToolFailed(self._why(error)) from error
        answer = answer_of(result)
        if result.is_error:
            raise ToolFailed(answer or "the tool failed without saying why")
        return answer or "(nothing was returned)"

    async def close(self) -> None:
        """End it, and the child with it, within a bound."""
        self._lose("closed")
        self._leave.set()
        if self.listing is None:
            self._scope.cancel()
        for hurry, bound_s in ((None, CLOSE_S), (self._scope.cancel, _STEP_S), (self._task.cancel, _STEP_S)):
            if hurry is not None:
                hurry()
            await asyncio.wait({self._task}, timeout=bound_s)
            if self._task.done():
                return
        log.warning("%s: the connection would not close", self._name)

    async def _live(self) -> None:
        why = "closed"
        try:
            with self._scope:
                async with self._streams() as (read, write):
                    self._left_out: list[str] = []
                    dispatcher = _Forgiving(read, write, self._left_out)
                    async with ClientSession(
                        dispatcher=dispatcher, message_handler=self._heard, client_info=_client_info()
                    ) as self._session:
                        await self._shake_hands()
                        self.listing = await self._listed()
                        self._timer.cancel()
                        self._opened.set()
                        await self._leave.wait()
        except Exception as error:  # noqa: BLE001 - a transport may raise anything, and a lost server is no crash
            why = self._why(error)
            log.debug("%s: the connection has ended: %s", self._name, why)
        finally:
            self._lose(why)

    async def _shake_hands(self) -> None:
        """The handshake that servers of all ages know; those that gave it up say so."""
        try:
            await self._session.initialize()
        except MCPError as error:
            if error.code != UNSUPPORTED_PROTOCOL_VERSION:
                raise
            await self._session.discover()

    async def _listed(self) -> Listing:
        found: dict[str, Tool] = {}
        self._left_out.clear()
        cursor = None
        for _ in range(PAGES_MAX):
            page = await self._session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            for tool in page.tools:
                found.setdefault(tool.name, tool)
            cursor = page.next_cursor
            if not cursor or len(found) > TOOLS_MAX:
                break
        listed: list[Listed] = []
        for name, tool in sorted(found.items()):
            if len(msgspec.json.encode(tool.input_schema)) > SCHEMA_BYTES_MAX:
                self._left_out.append(f"the schema of {one_line(name, 64)} is over {SCHEMA_BYTES_MAX // 1024} KB")
            else:
                listed.append(_listed(tool))
        if cursor or len(listed) > TOOLS_MAX:
            self._left_out.append(f"no more than its first {min(len(listed), TOOLS_MAX):,} tools are taken")
        return Listing(tuple(listed[:TOOLS_MAX]), tuple(self._left_out))

    async def _heard(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_change()

    async def _is_the_end(self, error: MCPError) -> bool:
        """Whether the connection is of no more use. By HTTP nothing else tells that the server has been restarted."""
        if self.lost:
            return True
        if self._server.command or not self._is_refused(error):
            return False
        if error.code == CONNECTION_CLOSED:
            # If it has broken, what broke it says more than what the call was told.
            await asyncio.wait({self._task}, timeout=_STEP_S)
        self._lose(self._why(error))
        self._leave.set()
        return True

    def _is_refused(self, error: MCPError) -> bool:
        """Whether it is we that are not known any more, and not the call that is wrong."""
        refused = error.code == INTERNAL_ERROR and self._status in (400, 404)
        return refused or error.code == CONNECTION_CLOSED or "session" in error.message.lower()

    def _give_up(self, why: str) -> None:
        self._lose(why)
        self._scope.cancel()

    def _lose(self, why: str) -> None:
        self.lost = self.lost or why or "closed"
        self._timer.cancel()
        self._opened.set()

    # Transports

    def _streams(self) -> AbstractAsyncContextManager[tuple[Any, Any]]:
        if self._server.command:
            return self._child_streams()
        headers = dict(self._server.headers)
        if urlsplit(self._server.url).path.rstrip("/").endswith("/sse"):
            return sse_client(self._server.url, headers=headers, timeout=HTTP_S, sse_read_timeout=SILENT_S_MAX)
        return self._http_streams(headers)

    @asynccontextmanager
    async def _http_streams(self, headers: dict[str, str]) -> AsyncGenerator[tuple[Any, Any], None]:
        async def look_at(response: httpx2.Response) -> None:
            # A server may well refuse the stream of its own messages, which is asked for with GET.
            if response.request.method == "POST":
                self._status = response.status_code
            # The SDK has a bound for each event of a stream, and none for an answer in one piece.
            if response.headers.get("content-type", "").startswith("application/json"):
                response.stream = _Bounded(cast("httpx2.AsyncByteStream", response.stream))

        # A server may be silent for hours on the stream by which it tells of changes. Calls have their own bound.
        timeout = httpx2.Timeout(HTTP_S, read=SILENT_S_MAX)
        headers = {"Accept-Encoding": "identity"} | headers
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [look_at]}) as client,
            streamable_http_client(
                self._server.url, http_client=client, max_sse_event_size=MESSAGE_BYTES_MAX
            ) as streams,
        ):
            yield streams

    @asynccontextmanager
    async def _child_streams(self) -> AsyncGenerator[tuple[Any, Any], None]:
        """Not the SDK's: it reads lines of any length, and dies of a byte that is no UTF-8."""
        child = await Child.spawned(self._server, self._environ, self._note_stderr)
        to_session, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, from_session = anyio.create_memory_object_stream[SessionMessage](0)

        async def receive() -> None:
            async with to_session:
                while (line := await child.line()) is not None:
                    message = self._parsed(line)
                    if message is not None:
                        await to_session.send(message)
                self._lose(await self._last_words(child))
                self._leave.set()

        async def send() -> None:
            async with from_session:
                async for message in from_session:
                    child.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receive)
                tasks.start_soon(send)
                try:
                    yield read, write
                finally:
                    tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await child.stop()
            for stream in (to_session, read, write, from_session):
                stream.close()

    def _parsed(self, line: bytes) -> SessionMessage | None:
        if not line.strip():
            return None
        text = line.decode(errors="replace")
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
        except ValueError:
            self._noise = ", and it writes to its standard output what is no MCP"
            log.debug("%s: not MCP: %s", self._name, self._clean(text))
            return None

    def _note_stderr(self, line: str) -> None:
        text = self._clean(line)
        if text:
            self._stderr = text
            log.debug("%s: %s", self._name, text)

    async def _last_words(self, child: Child) -> str:
        if child.fault:
            return child.fault
        status = await child.exit_status(_STATUS_S)
        what = "it closed its output" if status is None else f"it exited with status {status}"
        return f"{what}: {self._stderr}" if self._stderr else what

    # Words

    def _clean(self, text: str) -> str:
        """No key may be read in a line of ours, whatever a server says there."""
        secrets = (*self._server.env.values(), *self._server.headers.values(), self._server.url)
        return one_line(without(secrets, text[:10_000]))

    def _why(self, error: Exception) -> str:
        while isinstance(error, ExceptionGroup):
            error = cast("ExceptionGroup[Exception]", error).exceptions[0]
        match error:
            case FileNotFoundError() | NotADirectoryError():
                return f"{self._clean(str(error.filename))} was not found"
            case PermissionError() if error.filename:
                return f"{self._clean(str(error.filename))} may not be run"
            case httpx2.HTTPStatusError():
                return f"it answered with HTTP status {error.response.status_code}"
            case httpx2.TransportError():
                return self._clean(f"can't connect: {error}")
            case MCPError() if self._status >= 400:
                return self._clean(f"{error} (HTTP status {self._status})")
            case ValidationError():
                return "its answer is not valid MCP"
            case _:
                return self._clean(str(error)) or type(error).__name__


class _Bounded(httpx2.AsyncByteStream):
    """The body of an answer, up to the bound of a message."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async for piece in self._body:
            count += len(piece)
            if count > MESSAGE_BYTES_MAX:
                raise ValueError(f"it sent a message of more than {MESSAGE_BYTES_MAX // 1_000_000} MB")
            yield piece

    async def aclose(self) -> None:
        await self._body.aclose()


class _Forgiving(JSONRPCDispatcher[TransportContext]):
    """Takes a tool that is not valid out of a list, where the session would refuse the whole list."""

    def __init__(self, read: Any, write: Any, left_out: list[str]) -> None:
        super().__init__(read, write)
        self._left_out = left_out

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None, **more: Any
    ) -> dict[str, Any]:
        result = await super().send_raw_request(method, params, opts, **more)
        tools = result.get("tools")
        if method == "tools/list" and isinstance(tools, list):
            result["tools"] = [tool for tool in cast("list[Any]", tools) if self._is_valid(tool)]
        return result

    def _is_valid(self, tool: Any) -> bool:
        schema = cast("dict[str, Any]", tool).get("inputSchema") if isinstance(tool, dict) else None
        if isinstance(schema, dict):
            # Left out by many, for tools that take nothing.
            cast("dict[str, Any]", schema).setdefault("type", "object")
        try:
            validate_server_result("tools/list", "2025-11-25", {"tools": [tool]})
        except ValidationError:
            name = str(cast("dict[str, Any]", tool).get("name", "?")) if isinstance(tool, dict) else "?"
            self._left_out.append(f"the schema of {one_line(name, 64)} is not valid")
            return False
        return True


def _listed(tool: Tool) -> Listed:
    description = (tool.description or tool.title or "").strip()
    if len(description) > DESCRIPTION_CHARS_MAX:
        description = description[: DESCRIPTION_CHARS_MAX - 1] + "…"
    hints = tool.annotations
    return Listed(
        tool.name,
        description,
        tool.input_schema,
        read_only=hints is not None and hints.read_only_hint is True,
        idempotent=hints is not None and hints.idempotent_hint is True,
    )


def _client_info() -> Implementation:
    return Implementation(name="everthread", version=version("everthread"))
