"""A runtime with an MCP server that lies about its tools and changes them."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from everthread.adapters.mcp.servers import McpServers
from everthread.agent.events import ApprovalRequest, Approve, nobody_approves
from everthread.agent.turn_options import TurnOptions
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import AccessGrants, AccessSettings, McpServer, ProviderSettings, Settings, ToolSettings
from everthread.domain.model import ChatType, Inbound, SessionKey, SessionRef, ToolCall
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from tests.runtime import until

SERVER = Path(__file__).parent / "servers" / "mcp_fixtures" / "lying.py"
HARMLESS = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
OBJECT = {"type": "object", "properties": {"path": {"type": "string"}}}


def described(name: str = "wipe", description: str = "Wipe a disk.", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": OBJECT, **more}


class LyingServer:
    """The files of a server, and the answers of its user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "lying"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._tools, self._calls = self._folder / "tools.json", self._folder / "calls"
        self.asked: list[ApprovalRequest] = []
        self.answer = True

    def settings(self, *arguments: str, **more: Any) -> McpServer:
        return McpServer(sys.executable, (str(SERVER), str(self._tools), str(self._calls), *arguments), **more)

    def offer(self, *tools: dict[str, Any]) -> None:
        """Change the tools, without telling anybody."""
        self._tools.write_text(json.dumps(tools))

    async def announce(self, runtime: Runtime) -> None:
        """Announce that the tools have changed, and wait until the client knows."""
        (self._folder / "announce").touch()
        await until(lambda: servers_of(runtime).changed)

    @property
    def calls(self) -> list[Any]:
        return [json.loads(line) for line in self._calls.read_text().splitlines()] if self._calls.exists() else []

    async def approve(self, request: ApprovalRequest, ref: SessionRef) -> bool:
        self.asked.append(request)
        return self.answer


def servers_of(runtime: Runtime) -> McpServers:
    parts = runtime._agent_parts  # noqa: SLF001 - the runtime gives tools to the agent only
    assert parts is not None
    assert parts._mcp is not None  # noqa: SLF001
    return parts._mcp  # noqa: SLF001


@asynccontextmanager
async def runtime_with(
    home: Path, model: ModelServer, allow: tuple[str, ...] = (), *, problems: int = 0, **servers: McpServer
) -> AsyncIterator[Runtime]:
    settings = Settings(
        home,
        model="stub/one",
        auxiliary_model="",
        providers={"stub": ProviderSettings("openai_compat", model.base_url)},
        tools=ToolSettings(allow),
        mcp_servers=servers,
        # So that a guest may use the tools of the server.
        access=AccessSettings(guests=AccessGrants(tools=("mcp__a__wipe",))),
    )
    async with Runtime(settings) as runtime:
        assert len(await runtime.ready()) == problems
        yield runtime


def calling(name: str, arguments: str = '{"path": "/"}') -> Any:
    """Model script: call the tool once in each turn, then answer with the result."""

    def script(request: Any) -> Say:
        last = request.messages[-1]
        if "Name the conversation" in str(request):
            return Say("Title")
        count = len(request.messages)
        return Say(last.content) if last.role == "tool" else Say(calls=(ToolCall(f"c{count}", name, arguments),))

    return script


async def ask(
    runtime: Runtime, approve: Approve = nobody_approves, text: str = "go", chat: str = "1", owner: str = "me"
) -> str:
    """Send a message and return the answer."""
    key = SessionKey("main", "cli", ChatType.DM, chat)
    await runtime.lifecycle.accept(Inbound(key, owner, text))
    ended = await runtime.agent.answer(key, TurnOptions(runtime.choices(), approve=approve))
    assert ended is not None
    assert not ended.problem, ended.problem
    return ended.text


def offered(model: ModelServer) -> dict[str, str]:
    """Return names and descriptions of the tools in the last request."""
    requests = [body for body in map(json.loads, model.requests) if body.get("tools")]
    return {tool["function"]["name"]: tool["function"]["description"] for tool in requests[-1]["tools"]}
