"""Request validation of the stub model server."""

from typing import Any

import aiohttp
import pytest

from everthread.testing.model_server.server import ModelServer, Say

CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


USE: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}


def chat(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages)}


def message(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words} | fields


USER = {"role": "user", "content": "hello"}


CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}


RESULT = {"role": "tool", "tool_call_id": "c1", "content": "done"}


ASKED = message("user", text("hello"))


USING = message("assistant", USE)


ANSWERED = message("user", {"type": "tool_result", "tool_use_id": "c1", "content": "done"})


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([USER], 200),
        ([USER, CALLING, RESULT], 200),
        ([], 400),
        ([USER, RESULT], 400),
        ([USER, CALLING, USER], 400),
        ([USER, CALLING], 400),
        ([USER, CALLING, RESULT, RESULT], 400),
        ([USER | {"content": ""}], 400),
        ([USER | {"role": "robot"}], 400),
        ([USER, {"role": "assistant", "content": ""}, USER], 400),
        ([USER, CALLING | {"tool_calls": [CALL | {"function": {"name": "f", "arguments": "{"}}]}, RESULT], 400),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else " ".join(m["role"] for m in value),
)
async def test_invalid_chat_completions_are_refused(messages: list[dict[str, Any]], status: int) -> None:
    assert await posted("/chat/completions", chat(*messages)) == status


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([ASKED], 200),
        ([ASKED, USING, ANSWERED], 200),
        ([], 400),
        ([USING, ANSWERED], 400),
        ([ASKED, USING], 400),
        ([ASKED, USING, ASKED], 400),
        ([ASKED, ANSWERED], 400),
        ([ASKED, USING, message("user", text("so"), *ANSWERED["content"])], 400),
        ([message("user")], 400),
        ([message("user", text(" "))], 400),
        ([message("system", text("hello"))], 400),
        ([ASKED, message("assistant", USE | {"id": "a:b"}), ANSWERED], 400),
        ([message("user", *[text("x", cache_control={"type": "ephemeral"})] * 5)], 400),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else " ".join(m["role"] for m in value),
)
async def test_invalid_messages_are_refused(messages: list[dict[str, Any]], status: int) -> None:
    assert await posted("/messages", chat(*messages) | {"max_tokens": 5}) == status
    assert await posted("/messages", chat(*messages)) == 400


async def posted(path: str, body: dict[str, Any]) -> int:
    async with ModelServer([Say("Yes")]) as server, aiohttp.ClientSession() as session:
        response = await session.post(server.base_url + path, json=body, headers={"anthropic-version": "2023-06-01"})
        await response.read()
        return response.status
