"""The supported and unsupported parameters of a chat request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tests.gateway import echo
from tests.http_gateway import http_gateway

from everthread.testing.model_server.server import ModelServer

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


async def sent(model: ModelServer) -> list[dict[str, Any]]:
    return [msgspec.json.decode(body) for body in model.requests]


async def test_unsupported_parameters_are_rejected_and_unknown_ones_ignored(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        for more in (
            {"n": 2},
            {"stop": ["x"]},
            {"response_format": {"type": "json_object"}},
            {"logprobs": True},
            {"tool_choice": "required"},
            {"functions": [{}]},
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            {"messages": [{"role": "system", "content": "hi"}]},
            {"messages": []},
            {"messages": "hi"},
        ):
            assert (await fixture.ask("POST", "/v1/chat/completions", body | more)).status == 400, more
        harmless = {"temperature": 0.1, "user": "x", "seed": 3, "n": 1, "metadata": {"a": "b"}, "max_tokens": 7}
        parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
        answer = await fixture.ask("POST", "/v1/chat/completions", body | harmless | {"messages": parts})
        assert answer.text == "You said ab"
        assert (await sent(model))[-1]["max_tokens"] == 7
        tools = await fixture.ask("POST", "/v1/chat/completions", body | {"tools": [WEATHER]}, X_Session_Key="desk")
        assert tools.status == 400
        other = await fixture.ask("POST", "/v1/chat/completions", body | {"model": "stub/two"}, X_Session_Key="desk")
        assert (other.status, other.code) == (400, "model_not_chosen")
        same = await fixture.ask("POST", "/v1/chat/completions", body | {"model": "stub/one"}, X_Session_Key="desk")
        assert same.status == 200
