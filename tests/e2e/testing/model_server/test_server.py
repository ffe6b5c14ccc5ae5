"""Stub model server: as a process, and without streaming."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from everthread.adapters.models.anthropic import Anthropic
from everthread.adapters.models.openai_compat import OpenAICompat
from everthread.domain.errors import ModelUnauthorized
from everthread.domain.model import Message, Role, ToolCall
from everthread.ports.model import Answer, ModelClient, Prompt, Request
from everthread.testing.model_server.server import ModelServer, Say

HELLO = Message(Role.USER, "hello")


@asynccontextmanager
async def running(*options: str) -> AsyncIterator[str]:
    """Run the server in a process of its own and yield its base URL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "everthread.testing.model_server.server",
        "--port",
        "0",
        *options,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}/v1"
    finally:
        process.terminate()
        await process.wait()


async def answer(client: ModelClient, *tail: Message) -> Answer:
    *_, last = [piece async for piece in client.stream(Request(client.head(Prompt("m", "s")), b"", tail))]
    assert isinstance(last, Answer)
    return last


async def test_the_process_calls_its_tool_and_then_answers(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running(
        "--tool", 'look:{"where": "up"}', "--log", str(log), "--delay-ms", "1", "--key", "k"
    ) as base_url:
        for client in (OpenAICompat(base_url, "k"), Anthropic(base_url, "k")):
            asked = (await answer(client, HELLO)).message
            assert asked.tool_calls == (ToolCall("call_stub", "look", '{"where": "up"}'),)
            result = Message(Role.TOOL, "sky", tool_call_id="call_stub")
            said = (await answer(client, HELLO, asked, result)).message
            assert len(said.content.split()) == 60
            await client.aclose()
        stranger = OpenAICompat(base_url, "other")
        with pytest.raises(ModelUnauthorized):
            await answer(stranger, HELLO)
        await stranger.aclose()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["path"] for line in lines] == ["/v1/chat/completions"] * 2 + ["/v1/messages"] * 2 + [
        "/v1/chat/completions"
    ]
    assert lines[0]["body"]["messages"][-1] == {"role": "user", "content": "hello"}


def chat(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages)}


def message(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


USER = {"role": "user", "content": "hello"}


async def test_without_streaming_an_answer_is_one_object() -> None:
    async with ModelServer([Say("Yes")]) as server, aiohttp.ClientSession() as session:
        response = await session.post(server.base_url + "/chat/completions", json=chat(USER))
        assert (await response.json())["choices"][0]["message"]["content"] == "Yes"
        models = await session.get(server.base_url + "/models")
        assert [model["id"] for model in (await models.json())["data"]] == ["stub"]
