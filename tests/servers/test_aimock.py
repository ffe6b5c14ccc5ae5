"""Test both model clients against aimock, an independent stub server."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from everthread.adapters.models.anthropic import Anthropic
from everthread.adapters.models.openai_compat import OpenAICompat
from everthread.domain.errors import ModelError, ModelUnauthorized, ModelUnavailable, ModelUnknown
from everthread.domain.model import Message, Role
from everthread.ports.model import Answer, Delta, Finish, ModelClient, Prompt, Request, ToolSchema

pytestmark = [pytest.mark.server, pytest.mark.timeout(60)]

PROGRAM = Path(__file__).parents[2] / ".cache/node/node_modules/@copilotkit/aimock/dist/cli.js"
KEY = "sk-test-0123456789"
PROMPT = Prompt("gpt-4o", "Be brief.", (ToolSchema("look", "Look.", {"type": "object", "properties": {}}),))
TEXT = "Grüße 😀 你好, and a text that is longer than one chunk. " * 3
HUGE = json.dumps({"where": "ü" * 2_000_000}, ensure_ascii=False)
WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"


def fixture(says: str, response: dict[str, Any], **more: Any) -> dict[str, Any]:
    has_result = more.pop("has_result", None)
    match = {"userMessage": says} | ({} if has_result is None else {"hasToolResult": has_result})
    return {"match": match, "response": response} | more


FIXTURES = [
    fixture("greet", {"content": TEXT}, latency=10),
    fixture("think", {"content": "Yes.", "reasoning": "Hm, let me see."}),
    fixture("weather", {"content": "Sunny."}, has_result=True),
    fixture(
        "weather",
        {
            "content": "I look.",
            "toolCalls": [{"name": "look", "arguments": {"where": "über 😀"}}, {"name": "look", "arguments": {}}],
        },
        has_result=False,
    ),
    fixture("huge", {"toolCalls": [{"name": "look", "arguments": HUGE}]}, chunkSize=50_000),
    fixture("short", {"content": WORDS, "finishReason": "length"}),
    fixture("rate", {"error": {"message": "Rate limited", "type": "rate_limit_error"}, "status": 429, "retryAfter": 7}),
    fixture("boom", {"error": {"message": "Boom", "type": "server_error"}, "status": 500}),
    fixture("cut", {"content": WORDS}, truncateAfterChunks=4, latency=20, chunkSize=5),
    fixture("malformed", {"content": "x"}, chaos={"malformedRate": 1}),
    fixture("gone", {"content": "x"}, chaos={"disconnectRate": 1}),
    fixture("dropped", {"content": "x"}, chaos={"dropRate": 1}),
    fixture("slowly", {"content": WORDS * 20}, latency=50, chunkSize=5),
]


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    node = shutil.which("node")
    if node is None or not PROGRAM.exists():
        pytest.fail("aimock is not installed: use `make test-servers`")
    folder = tmp_path_factory.mktemp("aimock")
    (folder / "fixtures.json").write_text(json.dumps({"fixtures": FIXTURES}))
    # Three UTF-16 code units per chunk, so that surrogate pairs are sometimes split.
    command = [node, str(PROGRAM), "-p", "0", "-c", "3", "-f", str(folder / "fixtures.json"), "--validate-on-load"]
    environment = {"AIMOCK_API_KEYS": KEY, "HOME": str(folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) as process:
        try:
            assert process.stdout is not None
            said = ""
            while not (found := re.search(r"listening on (http://\S+)", said)):
                line = process.stdout.readline().decode()
                assert line, said
                said += line
            yield found[1] + "/v1"
        finally:
            process.kill()


@pytest.fixture(params=[OpenAICompat, Anthropic])
def make_client(request: pytest.FixtureRequest) -> type[OpenAICompat] | type[Anthropic]:
    return request.param


async def pieces(client: ModelClient, *tail: Message) -> list[Delta | Answer]:
    try:
        return [piece async for piece in client.stream(Request(client.head(PROMPT), b"", tail))]
    finally:
        await client.aclose()


async def answer(client: ModelClient, *tail: Message) -> Answer:
    last = (await pieces(client, *tail))[-1]
    assert isinstance(last, Answer)
    return last


async def fails(client: ModelClient, says: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await pieces(client, user(says))
    return caught.value


async def rest(stream: AsyncIterator[Delta | Answer]) -> list[Delta | Answer]:
    return [piece async for piece in stream]


def user(text: str) -> Message:
    return Message(Role.USER, text)


async def test_an_answer_is_streamed_in_pieces(make_client: Any, base_url: str) -> None:
    *deltas, last = await pieces(make_client(base_url, KEY), user("greet"))
    assert isinstance(last, Answer)
    assert len(deltas) > 20
    assert "".join(delta.text for delta in deltas if isinstance(delta, Delta)) == TEXT
    assert (last.message.content, last.finish) == (TEXT, Finish.STOP)


async def test_reasoning_is_separate_from_the_answer(make_client: Any, base_url: str) -> None:
    said = (await answer(make_client(base_url, KEY), user("think"))).message
    assert (said.content, said.reasoning) == ("Yes.", "Hm, let me see.")


async def test_usage_is_counted(base_url: str) -> None:
    usage = (await answer(OpenAICompat(base_url, KEY), user("greet"))).usage
    assert usage.input_tokens > 0
    assert usage.output_tokens > 0


async def test_a_turn_with_tools(make_client: Any, base_url: str) -> None:
    asked = await answer(make_client(base_url, KEY), user("weather"))
    first, second = asked.message.tool_calls
    assert (asked.message.content, asked.finish) == ("I look.", Finish.TOOLS)
    assert (first.name, json.loads(first.arguments)) == ("look", {"where": "über 😀"})
    assert (second.name, json.loads(second.arguments)) == ("look", {})
    assert first.id != second.id
    results = [Message(Role.TOOL, "sun", tool_call_id=call.id) for call in (first, second)]
    said = await answer(make_client(base_url, KEY), user("weather"), asked.message, *results)
    assert (said.message.content, said.finish) == ("Sunny.", Finish.STOP)


async def test_huge_arguments_are_taken_and_sent_back(make_client: Any, base_url: str) -> None:
    message = (await answer(make_client(base_url, KEY), user("huge"))).message
    [call] = message.tool_calls
    assert json.loads(call.arguments) == json.loads(HUGE)
    result = Message(Role.TOOL, "done", tool_call_id=call.id)
    assert (await answer(make_client(base_url, KEY), user("weather"), message, result)).message.content == "Sunny."


async def test_an_answer_cut_at_the_length_limit_is_reported(make_client: Any, base_url: str) -> None:
    assert (await answer(make_client(base_url, KEY), user("short"))).finish is Finish.LENGTH


async def test_a_rate_limit_error_has_a_retry_after_time(make_client: Any, base_url: str) -> None:
    error = await fails(make_client(base_url, KEY), "rate")
    assert isinstance(error, ModelUnavailable)
    assert error.retry_after_s == 7.0
    assert "Rate limited" in str(error)


@pytest.mark.parametrize("says", ["boom", "dropped", "cut", "gone", "malformed"])
async def test_server_and_connection_errors_are_retryable(make_client: Any, base_url: str, says: str) -> None:
    assert type(await fails(make_client(base_url, KEY), says)) is ModelUnavailable


async def test_text_before_a_broken_connection_is_streamed(make_client: Any, base_url: str) -> None:
    client = make_client(base_url, KEY)
    stream = client.stream(Request(client.head(PROMPT), b"", (user("cut"),)))
    first = await anext(stream)
    assert WORDS.startswith(first.text)
    with pytest.raises(ModelUnavailable):
        await rest(stream)
    await client.aclose()


async def test_an_unexpected_error_response_is_unknown(make_client: Any, base_url: str) -> None:
    assert type(await fails(make_client(base_url, KEY), "nobody foresaw this")) is ModelUnknown


@pytest.mark.parametrize("key", ["sk-wrong-0123456789", ""])
async def test_a_wrong_api_key_is_reported_without_its_value(make_client: Any, base_url: str, key: str) -> None:
    error = await fails(make_client(base_url, key, key_name="MY_KEY"), "greet")
    assert type(error) is ModelUnauthorized
    assert "MY_KEY" in str(error)
    assert "0123456789" not in str(error)


async def test_closing_a_stream_early_does_not_block(make_client: Any, base_url: str) -> None:
    client = make_client(base_url, KEY)
    async with asyncio.timeout(5):
        async with aclosing(client.stream(Request(client.head(PROMPT), b"", (user("slowly"),)))) as stream:
            assert isinstance(await anext(stream), Delta)
        await client.aclose()
