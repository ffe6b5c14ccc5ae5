"""Stub model endpoint for memory back ends: embeddings, chat, faults."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import sys
from typing import Any

import aiohttp
import pytest

from everthread.testing.backend_model.embedding import embed
from everthread.testing.backend_model.server import BackendModel


async def post(url: str, body: dict[str, Any], timeout_s: float = 5.0) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(timeout_s)) as client,
        client.post(url, json=body) as answer,
    ):
        return answer.status, await answer.json(content_type=None)


async def test_embeddings_are_returned_as_numbers_or_base64() -> None:
    async with BackendModel(dimensions=16) as model:
        url = f"{model.base_url}/embeddings"
        _, plain = await post(url, {"model": "m", "input": ["one", "two"]})
        assert [one["embedding"] for one in plain["data"]] == [embed("one", 16), embed("two", 16)]
        _, packed = await post(url, {"model": "m", "input": "one", "encoding_format": "base64", "dimensions": 32})
        raw = base64.b64decode(packed["data"][0]["embedding"])
        assert struct.unpack("<32f", raw) == pytest.approx(embed("one", 32), abs=1e-6)
        assert (await post(url, {"model": "m", "input": [[1, 2], [3]]}))[1]["data"][1]["embedding"] == embed("3", 16)
        assert (await post(url, {"model": "m"}))[0] == 400


async def test_chat_replies_are_whole_or_streamed_and_content_may_be_in_parts() -> None:
    async with BackendModel(lambda asked: f"heard {asked.texts[-1]}") as model:
        url = f"{model.base_url}/chat/completions"
        parts = [{"type": "text", "text": "hello"}]
        _, answer = await post(url, {"model": "m", "messages": [{"role": "user", "content": parts}]})
        assert answer["choices"][0]["message"]["content"] == "heard hello"
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "you"}]}
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as streamed:
            text = await streamed.text()
        said = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert "".join(one["choices"][0]["delta"].get("content") or "" for one in said if one["choices"]) == "heard you"


async def test_faults_are_injected_and_end() -> None:
    async with BackendModel() as model:
        url, body = f"{model.base_url}/embeddings", {"input": "x"}
        model.fail_next(2, 503)
        assert [(await post(url, body))[0] for _ in range(3)] == [503, 503, 200]
        model.hang()
        with pytest.raises(TimeoutError):
            await post(url, body, timeout_s=0.1)
        waiting = asyncio.ensure_future(post(url, body))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        model.heal()
        assert (await waiting)[0] == 200
        model.delay(0.2)
        began = asyncio.get_running_loop().time()
        await post(url, body)
        assert asyncio.get_running_loop().time() - began >= 0.2
        assert (model.failed, model.asked["/v1/embeddings"]) == (2, 6)


async def test_requests_with_a_refused_word_fail_and_others_are_answered() -> None:
    async with BackendModel() as model:
        url = f"{model.base_url}/embeddings"
        model.refuse("hemlock")
        assert [(await post(url, {"input": text}))[0] for text in ("hemlock", "bees", "of hemlock")] == [500, 200, 500]
        model.heal()
        assert (await post(url, {"input": "hemlock"}))[0] == 200


async def test_faults_of_a_process_are_injected_over_http() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "everthread.testing.backend_model.server", "--dimensions", "8"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        root = f"http://127.0.0.1:{int(await process.stdout.readline())}"
        assert (await post(f"{root}/faults", {"fail_next": 1, "status": 429}))[0] == 200
        assert (await post(f"{root}/v1/embeddings", {"input": "x"}))[0] == 429
        assert (await post(f"{root}/v1/embeddings", {"input": "x"}))[0] == 200
        assert (await post(f"{root}/faults", {}))[1] == {"asked": {"/v1/embeddings": 2}, "failed": 1}
        assert (await post(f"{root}/faults", {"hang": 3}))[0] == 400
    finally:
        process.terminate()
        await process.wait()
