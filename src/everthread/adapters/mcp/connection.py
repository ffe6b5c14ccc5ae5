"""One connection to an MCP server. The only module here that imports the SDK, and so imported late."""

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

from everthread.adapters.mcp.results import result_text
from everthread.adapters.mcp.stdio import MESSAGE_BYTES_MAX, McpChildProcess
from everthread.adapters.mcp.text import one_line, redact
from everthread.adapters.mcp.tools import ListedTool, ServerUnavailable, ToolList
from everthread.config.schema import McpServer
from everthread.domain.errors import ToolFailed
from everthread.log_context import Private, outside_log_scope

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


class McpConnection:
    """A connection, run by its own task, because anyio's contexts must be entered and left in the same task.

    It may be called from any task, concurrently. A lost connection is not reopened: make another one.
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
        """Reason why the connection can't be used any more; empty while it is open or opening."""
        self.listing: ToolList | None = None
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
        timed_out = f"no answer within {open_s:g} s"
        self._timer = asyncio.get_running_loop().call_later(open_s, lambda: self._abort(timed_out + self._noise))
        self._task = outside_log_scope(lambda: asyncio.ensure_future(self._run()))

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    async def wait_opened(self) -> ToolList:
        """Wait until the connection is open, at most `open_s`. Raises `ServerUnavailable`."""
        await self._opened.wait()
        if self.lost or self.listing is None:
            raise ServerUnavailable(self.lost)
        return self.listing

    async def list_again(self) -> ToolList:
        """Request the current tools. Raises `ServerUnavailable`."""
        try:
            self.listing = await self._list_tools()
        except (MCPError, ValidationError, RuntimeError) as error:
            raise ServerUnavailable(self._reason(error)) from error
        return self.listing

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool and return its result as text. Raises `ToolFailed`, or `ServerUnavailable` if the connection
        is lost. Whether the call took effect is unknown then, so it is never repeated.
        """
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=dict(arguments)))
        try:
            # Not `call_tool`, which matches untrusted regular expressions of the schema in the event loop.
            result = await self._session.send_request(request, CallToolResult)
        except MCPError as error:
            if await self._is_lost_by(error):
                raise ServerUnavailable(self.lost) from error
            raise ToolFailed(self._reason(error)) from error
        except (ValidationError, RuntimeError, OSError, anyio.ClosedResourceError) as error:
            raise ToolFailed(self._reason(error)) from error
        text = result_text(result)
        if result.is_error:
            raise ToolFailed(text or "the tool failed without a message")
        return text or "(nothing was returned)"

    async def close(self) -> None:
        """Close the connection and stop the child process, within a time limit."""
        self._lose("closed")
        self._leave.set()
        if self.listing is None:
            self._scope.cancel()
        for escalate, bound_s in ((None, CLOSE_S), (self._scope.cancel, _STEP_S), (self._task.cancel, _STEP_S)):
            if escalate is not None:
                escalate()
            await asyncio.wait({self._task}, timeout=bound_s)
            if self._task.done():
                return
        log.warning("%s: the connection did not close", self._name)

    async def _run(self) -> None:
        why = "closed"
        try:
            with self._scope:
                async with self._streams() as (read, write):
                    self._left_out: list[str] = []
                    dispatcher = _TolerantDispatcher(read, write, self._left_out)
                    client_info = Implementation(name="everthread", version=version("everthread"))
                    async with ClientSession(
                        dispatcher=dispatcher, message_handler=self._on_message, client_info=client_info
                    ) as self._session:
                        await self._handshake()
                        self.listing = await self._list_tools()
                        self._timer.cancel()
                        self._opened.set()
                        await self._leave.wait()
        except Exception as error:  # noqa: BLE001 - a transport may raise anything
            why = self._reason(error)
            log.debug("%s: the connection has ended: %s", self._name, Private(why))
        finally:
            self._lose(why)

    async def _handshake(self) -> None:
        """Use the old handshake, which most servers know; servers without it report an unsupported version."""
        try:
            await self._session.initialize()
        except MCPError as error:
            if error.code != UNSUPPORTED_PROTOCOL_VERSION:
                raise
            await self._session.discover()

    async def _list_tools(self) -> ToolList:
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
        listed: list[ListedTool] = []
        for name, tool in sorted(found.items()):
            described = _listed_tool(tool)
            if len(msgspec.json.encode((described.parameters, described.annotations))) > SCHEMA_BYTES_MAX:
                self._left_out.append(f"the schema of {one_line(name, 64)} is over {SCHEMA_BYTES_MAX // 1024} KB")
            else:
                listed.append(described)
        if cursor or len(listed) > TOOLS_MAX:
            self._left_out.append(f"only its first {min(len(listed), TOOLS_MAX):,} tools are used")
        return ToolList(tuple(listed[:TOOLS_MAX]), tuple(self._left_out))

    async def _on_message(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_change()

    async def _is_lost_by(self, error: MCPError) -> bool:
        """Tell whether an error means that the connection is lost. Over HTTP, only this reveals a restarted server."""
        if self.lost:
            return True
        if self._server.command or not self._is_session_error(error):
            return False
        if error.code == CONNECTION_CLOSED:
            # If the transport failed, its error is a better reason than that of the call.
            await asyncio.wait({self._task}, timeout=_STEP_S)
        self._lose(self._reason(error))
        self._leave.set()
        return True

    def _is_session_error(self, error: MCPError) -> bool:
        """Tell whether the server rejects our session, rather than the call."""
        refused = error.code == INTERNAL_ERROR and self._status in (400, 404)
        return refused or error.code == CONNECTION_CLOSED or "session" in error.message.lower()

    def _abort(self, why: str) -> None:
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
        async def inspect(response: httpx2.Response) -> None:
            # A server may refuse GET, which opens the stream of its own messages.
            if response.request.method == "POST":
                self._status = response.status_code
            # The SDK limits the size of events, but not of a JSON response.
            if response.headers.get("content-type", "").startswith("application/json"):
                response.stream = _BoundedBody(cast("httpx2.AsyncByteStream", response.stream))

        # The stream of notifications may be silent for hours. Calls have their own time limit.
        timeout = httpx2.Timeout(HTTP_S, read=SILENT_S_MAX)
        headers = {"Accept-Encoding": "identity"} | headers
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [inspect]}) as client,
            streamable_http_client(
                self._server.url, http_client=client, max_sse_event_size=MESSAGE_BYTES_MAX
            ) as streams,
        ):
            yield streams

    @asynccontextmanager
    async def _child_streams(self) -> AsyncGenerator[tuple[Any, Any], None]:
        """Replace the SDK's transport, which reads lines of any length and fails on invalid UTF-8."""
        child = await McpChildProcess.spawn(self._server, self._environ, self._note_stderr)
        to_session, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, from_session = anyio.create_memory_object_stream[SessionMessage](0)

        async def receive() -> None:
            async with to_session:
                while (line := await child.read_line()) is not None:
                    message = self._parse(line)
                    if message is not None:
                        await to_session.send(message)
                self._lose(await self._exit_reason(child))
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

    def _parse(self, line: bytes) -> SessionMessage | None:
        if not line.strip():
            return None
        text = line.decode(errors="replace")
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
        except ValueError:
            self._noise = "; it writes other text than MCP to its standard output"
            log.debug("%s: not MCP: %s", self._name, Private(self._clean(text)))
            return None

    def _note_stderr(self, line: str) -> None:
        text = self._clean(line)
        if text:
            self._stderr = text
            log.debug("%s: %s", self._name, Private(text))

    async def _exit_reason(self, child: McpChildProcess) -> str:
        if child.fault:
            return child.fault
        status = await child.exit_status(_STATUS_S)
        what = "it closed its output" if status is None else f"it exited with status {status}"
        return f"{what}: {self._stderr}" if self._stderr else what

    # Messages

    def _clean(self, text: str) -> str:
        """Remove secrets from a text of the server, and put it on one line."""
        secrets = (*self._server.env.values(), *self._server.headers.values(), self._server.url)
        return one_line(redact(secrets, text[:10_000]))

    def _reason(self, error: Exception) -> str:
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


class _BoundedBody(httpx2.AsyncByteStream):
    """Body of a response, limited to the size of a message."""

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


class _TolerantDispatcher(JSONRPCDispatcher[TransportContext]):
    """Removes invalid tools from a list; the session would reject the whole list."""

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
            # Many servers omit it for tools without arguments.
            cast("dict[str, Any]", schema).setdefault("type", "object")
        try:
            validate_server_result("tools/list", "2025-11-25", {"tools": [tool]})
        except ValidationError:
            name = str(cast("dict[str, Any]", tool).get("name", "?")) if isinstance(tool, dict) else "?"
            self._left_out.append(f"the schema of {one_line(name, 64)} is not valid")
            return False
        return True


def _listed_tool(tool: Tool) -> ListedTool:
    description = (tool.description or tool.title or "").strip()
    if len(description) > DESCRIPTION_CHARS_MAX:
        description = description[: DESCRIPTION_CHARS_MAX - 1] + "…"
    annotations = tool.annotations.model_dump(mode="json", by_alias=True, exclude_none=True) if tool.annotations else {}
    return ListedTool(tool.name, description, tool.input_schema, annotations)
