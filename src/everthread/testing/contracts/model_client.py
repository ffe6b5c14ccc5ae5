"""Contract of model clients. Subclass `ModelContract` in a test module and define a fixture:

    class TestMyClient(ModelContract):
        protocol = Protocol.CHAT                        # the protocol of the stub server

        @pytest.fixture
        def make_client(self):
            return MyClient                             # (base_url, api_key, *, key_name, connect_s, idle_s)

The client talks to the stub server of `everthread.testing.model_server.server`, which is as strict as a real endpoint.
Run by tests/contract/test_openai_compat_client.py and tests/contract/test_anthropic_client.py.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from email.utils import formatdate
from itertools import pairwise
from typing import Protocol as Shape

import pytest
from msgspec.structs import replace

from everthread.domain.errors import (
    ContextTooLong,
    ModelError,
    ModelRefused,
    ModelUnauthorized,
    ModelUnavailable,
    ModelUnknown,
    ModelWithoutTools,
)
from everthread.domain.model import Message, Role, Thought, ToolCall
from everthread.ports.model import Answer, Delta, Finish, ModelClient, Prompt, Request, ToolSchema, Usage
from everthread.testing import in_loop
from everthread.testing.model_server.replies import End, Fail, Protocol, Raw, ReasoningFormat, Reply, Say, frames
from everthread.testing.model_server.server import ModelServer, Script

KEY = "sk-contract-0123456789"
LOOK = ToolSchema("look", "Look somewhere.", {"type": "object", "properties": {"where": {"type": "string"}}})
PROMPT = Prompt("stub", "You are helpful. Grüße!", (LOOK, ToolSchema("rest", "Do nothing.", {})))
FOREVER_S = 30.0
SENT_AT = {"Date": formatdate(2_000_000_000, usegmt=True)}


class MakeClient(Shape):
    def __call__(
        self, base_url: str, api_key: str, *, key_name: str, connect_s: float, idle_s: float
    ) -> ModelClient: ...


def user(text: str) -> Message:
    return Message(Role.USER, text)


def assistant(text: str, *calls: ToolCall) -> Message:
    return Message(Role.ASSISTANT, text, tool_calls=calls)


def result(call_id: str, text: str) -> Message:
    return Message(Role.TOOL, text, tool_call_id=call_id)


class ModelContract:
    protocol: Protocol

    @pytest.fixture
    def make_client(self) -> MakeClient:
        raise NotImplementedError

    @pytest.fixture
    def talk(self, make_client: MakeClient) -> ModelChat:
        return ModelChat(make_client)

    # --- Answers ---------------------------------------------------------------------------------------------------

    @in_loop
    async def test_an_answer_is_streamed_and_then_returned_whole(self, talk: ModelChat) -> None:
        text = "Grüße aus Köln, 你好 😀. " * 20
        # Chunks that arrive together may be passed on together.
        async with talk.with_server([Say(text, reasoning="Let me see.", chunks=9, delay_s=0.02)]):
            *deltas, answer = await talk.say("hello")
        assert all(isinstance(delta, Delta) for delta in deltas)
        assert len(deltas) > 10
        assert "".join(delta.text for delta in deltas if isinstance(delta, Delta)) == text
        assert "".join(delta.reasoning for delta in deltas if isinstance(delta, Delta)) == "Let me see."
        assert isinstance(answer, Answer)
        assert answer.message == Message(Role.ASSISTANT, text, reasoning="Let me see.")
        assert answer.finish is Finish.STOP

    @in_loop
    async def test_tool_calls_are_assembled(self, talk: ModelChat) -> None:
        calls = (ToolCall("c1", "look", '{"where": "über dem Tor 🏰"}'), ToolCall("c2", "rest", "{}"))
        async with talk.with_server([Say("I look.", calls, chunks=5)]):
            answer = await talk.ask("where?")
        assert (answer.message.content, answer.message.tool_calls, answer.finish) == ("I look.", calls, Finish.TOOLS)

    @in_loop
    async def test_bytes_may_be_split_anywhere(self, talk: ModelChat) -> None:
        say = Say("Grüße 你好 😀\r\n\u2028", (ToolCall("c1", "look", '{"where": "äöü 😀"}'),), chunks=3)
        stream = b"".join(frames(self.protocol, say, "stub"))
        one_by_one = Raw(tuple(stream[at : at + 1] for at in range(len(stream))))
        async with talk.with_server([say, one_by_one]):
            assert await talk.ask("hello") == await talk.ask("hello")

    @in_loop
    async def test_surrogate_pairs_may_be_split(self, talk: ModelChat) -> None:
        call = ToolCall("c1", "look", '{"where": "äöü 😀"}')
        say = Say("one 😀 two 😀", (call,), reasoning="😀😀")
        # Placeholder characters, replaced below by the two halves of a surrogate pair.
        stand_in = Say("one ¹² two ¹²", (replace(call, arguments='{"where": "äöü ¹²"}'),), "¹²¹²", chunks=100)
        pieces = [
            frame.replace("¹".encode(), b"\\ud83d").replace("²".encode(), b"\\uDE00")
            for frame in frames(self.protocol, stand_in, "stub")
        ]
        async with talk.with_server([Raw(tuple(pieces))]):
            *deltas, answer = await talk.say("hello")
        assert isinstance(answer, Answer)
        assert (answer.message.content, answer.message.tool_calls) == (say.text, say.calls)
        assert answer.message.reasoning == say.reasoning
        assert "".join(delta.text for delta in deltas if isinstance(delta, Delta)) == say.text

    @in_loop
    async def test_ten_megabytes_of_arguments_are_accepted(self, talk: ModelChat) -> None:
        call = ToolCall("c1", "look", '{"where": "' + "ä" * 5_000_000 + '"}')
        async with talk.with_server([Say(calls=(call,), chunks=40), Say(calls=(call,))]):
            assert (await talk.ask("in pieces")).message.tool_calls == (call,)
            assert (await talk.ask("at once")).message.tool_calls == (call,)

    @in_loop
    async def test_megabytes_can_be_sent(self, talk: ModelChat) -> None:
        async with talk.with_server([Say("Long."), Say("Long.")]) as server:
            turn = talk.client.encode((user("x" * 3_000_000), assistant("y")))
            assert (await talk.ask("and now?", history=turn)).message.content == "Long."
            assert turn in server.requests[0]

    @in_loop
    async def test_usage_counts_cached_tokens_too(self, talk: ModelChat) -> None:
        async with talk.with_server([Say("Yes.", usage=Usage(120, 7, 100))]):
            assert (await talk.ask("hello")).usage == Usage(120, 7, 100)

    @in_loop
    async def test_an_incomplete_tool_call_is_dropped(self, talk: ModelChat) -> None:
        whole, cut = ToolCall("c1", "rest", "{}"), ToolCall("c2", "look", '{"where": "ov')
        async with talk.with_server(
            [Say("I", (cut,), finish=Finish.LENGTH), Say("I", (whole, cut), finish=Finish.LENGTH)]
        ):
            first, second = await talk.ask("hello"), await talk.ask("hello")
        assert (first.message, first.finish) == (assistant("I"), Finish.LENGTH)
        assert (second.message, second.finish) == (assistant("I", whole), Finish.TOOLS)

    @in_loop
    async def test_a_refusal_differs_from_an_answer(self, talk: ModelChat) -> None:
        async with talk.with_server([Say("I would rather not.", finish=Finish.REFUSED)]):
            answer = await talk.ask("hello")
        assert (answer.message.content, answer.finish) == ("I would rather not.", Finish.REFUSED)

    @in_loop
    async def test_ids_of_calls_are_unique_in_a_turn(self, talk: ModelChat) -> None:
        call = ToolCall("call_0", "rest", "{}")
        asked = (user("rest"), assistant("", call), result("call_0", "rested"))
        async with talk.with_server([Say(calls=(call, ToolCall("", "rest", "{}"), call))]):
            answer = await talk.ask_with(asked)
        ids = [found.id for found in answer.message.tool_calls]
        assert len({*ids, "call_0", ""}) == 5, ids

    # --- Reasoning -------------------------------------------------------------------------------------------------

    @property
    def forms(self) -> list[ReasoningFormat]:
        """Reasoning formats of the protocol."""
        return [
            form for form in ReasoningFormat if (form is ReasoningFormat.BLOCKS) is (self.protocol is Protocol.MESSAGES)
        ]

    @in_loop
    async def test_reasoning_before_a_call_is_sent_back_within_the_turn(self, talk: ModelChat) -> None:
        for form in self.forms:
            calls = (ToolCall("c1", "look", '{"where": "up"}'), ToolCall("c2", "rest", "{}"))
            thinking = Say("I look.", calls, reasoning="Hm 😀, let me see. " * 9, chunks=7)
            again = Say(calls=(ToolCall("c3", "rest", "{}"),), reasoning="And rest.")
            async with talk.with_server([thinking, again, Say("Done.")], thinks=form):
                first = await talk.ask("where?")
                tail = (user("where?"), first.message, result("c1", "the sky"), result("c2", "rested"))
                second = await talk.ask_with(tail)
                tail = (*tail, second.message, result("c3", "rested"))
                assert (await talk.ask_with(tail)).message.content == "Done.", form
                # Without its reasoning, the model must refuse the request.
                without = tuple(replace(message, thought=None) for message in tail)
                with pytest.raises(ModelRefused):
                    await talk.ask_with(without)

    @in_loop
    async def test_reasoning_of_earlier_turns_is_not_sent(self, talk: ModelChat) -> None:
        for form in self.forms:
            call = ToolCall("c1", "rest", "{}")
            async with talk.with_server([Say("", (call,), reasoning="Deep."), Say("Done.")], thinks=form) as server:
                answer = await talk.ask("rest")
                turn = (user("rest"), replace(answer.message, thought=None), result("c1", "rested"), assistant("Done."))
                await talk.ask("and now?", history=talk.client.encode(turn))
                assert b"Deep" not in server.requests[1]
                assert b"sig-" not in server.requests[1]

    @in_loop
    async def test_unreadable_reasoning_is_left_out(self, talk: ModelChat) -> None:
        for content in ("", "{}", "[]", "nonsense", "[1]", '{"calls": 1}', "null"):
            said = replace(assistant("", ToolCall("c1", "rest", "{}")), thought=Thought(content))
            async with talk.with_server([Say("Fine.")]):
                tail = (user("rest"), said, result("c1", "rested"))
                assert (await talk.ask_with(tail)).message.content == "Fine."

    @in_loop
    async def test_a_connection_is_used_again(self, talk: ModelChat) -> None:
        async with talk.with_server([Say("One.", chunks=3), Fail(429, "slow down"), Say("Two.", chunks=3)]) as server:
            await talk.ask("1")
            with pytest.raises(ModelUnavailable):
                await talk.ask("2")
            await talk.ask("3")
            assert server.connections == 1

    @in_loop
    async def test_a_late_end_of_stream_does_not_cost_the_connection(self, talk: ModelChat) -> None:
        pieces = (*frames(self.protocol, Say("One."), "stub"), b": bye\n\n", b": bye\n\n")
        async with talk.with_server([Raw(pieces, delay_s=0.01), Say("Two.")]) as server:
            await talk.ask("1")
            await talk.ask("2")
            assert server.connections == 1

    # --- Requests --------------------------------------------------------------------------------------------------

    @in_loop
    async def test_requests_are_the_same_bytes_up_to_their_tails(self, talk: ModelChat) -> None:
        call = ToolCall("c1", "look", '{"where":"up"}')
        turns = [
            (user("first"), assistant("Hello.")),
            (user("zweitens ü"), assistant("", call), result("c1", "sky"), assistant("The sky.")),
            (user("third"), assistant("Yes.")),
        ]
        async with talk.with_server(lambda _: Say("Yes.")) as server:
            head, pieces = talk.client.head(PROMPT), [talk.client.encode(turn) for turn in turns]
            for count in range(len(turns) + 1):
                await talk.ask(f"now {count}", history=b",".join(pieces[:count]), recall=f"recalled {count}")
            kept = [head + b",".join(pieces[:count]) for count in range(len(turns) + 1)]
            assert [body.startswith(start) for body, start in zip(server.requests, kept, strict=True)] == [True] * 4
            assert all(later.startswith(earlier) for earlier, later in pairwise(kept))
            assert talk.client.head(PROMPT) == head

    @in_loop
    async def test_recall_follows_the_users_message_only(self, talk: ModelChat) -> None:
        call = ToolCall("c1", "rest", "{}")
        asked = (user("the question"), assistant("", call), result("c1", "the result"))
        async with talk.with_server([Say("Yes.")]) as server:
            await talk.ask_with(asked, recall="what I recall")
            [body] = server.requests
        assert body.count(b"what I recall") == 1
        assert body.index(b"the question") < body.index(b"what I recall") < body.index(b"the result")

    @in_loop
    async def test_messages_that_a_strict_endpoint_would_refuse_are_corrected(self, talk: ModelChat) -> None:
        odd = ToolCall("functions.look:0", "look at, \n ü", '{"where": ')
        listed = ToolCall("c2", "rest", "[1]")
        turns = [
            (user(""), assistant("")),
            (user("  \n"), assistant(" ", odd, listed), result(odd.id, ""), result("c2", "\ud83d half")),
            (user("half \ude00"), assistant("ok", ToolCall("c3", "", "")), result("c3", "no"), user("and this")),
            (user("deep"), assistant("", ToolCall("c4", "rest", '{"a":' * 100_000)), result("c4", "no")),
        ]
        async with talk.with_server([Say("Fine."), Say("Fine.")]) as server:
            history = b",".join(talk.client.encode(turn) for turn in turns)
            assert (await talk.ask("\udfff", history=history, recall="\udfff")).message.content == "Fine."
            assert (await talk.ask_with(turns[1], history=history)).message.content == "Fine."
            assert b"half ?" in server.requests[0]

    @in_loop
    async def test_a_prompt_needs_neither_tools_nor_a_system_text(self, talk: ModelChat) -> None:
        async with talk.with_server([Say("Yes.")]):
            assert (await talk.ask("hello", prompt=Prompt("stub", ""))).message.content == "Yes."

    # --- Errors ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("fail", "error"),
        [
            (Fail(400, "nonsense"), ModelRefused),
            (Fail(418, "a teapot"), ModelRefused),
            (Fail(307, "elsewhere", headers={"Location": "http://127.0.0.1:9/"}), ModelRefused),
            (Fail(400, "This model's maximum context length is 8192 tokens."), ContextTooLong),
            (Fail(400, "prompt is too long: 210000 tokens > 200000 maximum"), ContextTooLong),
            (Fail(413, "big"), ContextTooLong),
            (Fail(400, "registry.ollama.ai/library/gemma:2b does not support tools"), ModelWithoutTools),
            (Fail(404, "No endpoints found that support tool use."), ModelWithoutTools),
            (Fail(500, "tools param requires --jinja flag"), ModelWithoutTools),
            (Fail(400, "foo/bar is not a valid model ID"), ModelUnknown),
            (Fail(404, 'model "x" not found, try pulling it first'), ModelUnknown),
            (Fail(401, "no"), ModelUnauthorized),
            (Fail(403, "no"), ModelUnauthorized),
            *((Fail(status, "busy"), ModelUnavailable) for status in (408, 409, 429, 500, 502, 503, 529)),
        ],
        ids=lambda value: f"{value.status} {value.message}" if isinstance(value, Fail) else "",
    )
    @in_loop
    async def test_each_error_response_is_translated(
        self, talk: ModelChat, fail: Fail, error: type[ModelError]
    ) -> None:
        async with talk.with_server([fail]):
            raised = await talk.fails("hello")
        assert type(raised) is error
        assert "127.0.0.1" in str(raised)

    @in_loop
    async def test_an_error_is_one_short_line_without_the_key(self, talk: ModelChat) -> None:
        fails = [Fail(status, f"first {KEY}\nsecond\t" + "long " * 1000) for status in (400, 401, 403, 404, 429, 500)]
        async with talk.with_server(fails):
            for _ in fails:
                error = await talk.fails("hello")
                assert len(str(error).splitlines()) == 1
                assert len(str(error)) < 400
                assert KEY not in f"{error!r}{error.__cause__!r}"

    @pytest.mark.parametrize("key", ["sk-wrong-0123456789", ""])
    @in_loop
    async def test_a_wrong_or_missing_key_is_reported_by_its_name(self, talk: ModelChat, key: str) -> None:
        async with talk.with_server([], key=KEY, sent_key=key):
            error = await talk.fails("hello")
        assert isinstance(error, ModelUnauthorized)
        assert "THE_KEY" in str(error)
        assert "0123456789" not in str(error)

    @in_loop
    async def test_an_unknown_model_is_reported(self, talk: ModelChat) -> None:
        async with talk.with_server([], models=("other",)):
            assert isinstance(await talk.fails("hello"), ModelUnknown)

    @pytest.mark.parametrize(
        ("headers", "wait"),
        [
            ({"Retry-After": "7"}, 7.0),
            ({"retry-after": "0.5"}, 0.5),
            ({"Retry-After-Ms": "1500", "Retry-After": "2"}, 1.5),
            ({"Retry-After": formatdate(2_000_000_060, usegmt=True), **SENT_AT}, 60.0),
            ({"Retry-After": formatdate(1_000_000_000, usegmt=True), **SENT_AT}, 0.0),
            ({"Retry-After": "-3"}, 0.0),
            ({"Retry-After": formatdate(2_000_000_060)}, None),
            ({"Retry-After": "soon"}, None),
            ({"Retry-After": "inf"}, None),
            ({}, None),
        ],
        ids=str,
    )
    @in_loop
    async def test_the_retry_delay_is_passed_on(
        self, talk: ModelChat, headers: dict[str, str], wait: float | None
    ) -> None:
        async with talk.with_server([Fail(429, "slow down", headers=headers)]):
            error = await talk.fails("hello")
        assert isinstance(error, ModelUnavailable)
        assert error.retry_after_s == wait

    @pytest.mark.parametrize(
        "reply",
        [
            pytest.param(Say("x" * 100, chunks=10, end=End.CUT), id="cut"),
            pytest.param(Raw((), end=End.CUT), id="cut at once"),
            pytest.param(Raw((b": nothing\n\n",)), id="empty"),
            pytest.param(Raw((b'data: {"choices": [{"delta": {"cont\n\n',)), id="half JSON"),
            pytest.param(Raw((b'data: "text"\n\n',)), id="other JSON"),
            pytest.param(Raw((b"data: \xff\xfe\n\n",)), id="no text"),
            pytest.param(Raw((b'data: {"x": ' + b"[" * 100_000 + b'"\\ud83d\n\n',)), id="deep"),
            pytest.param(Raw((b"<html>sorry</html>",), content_type="text/html"), id="page"),
            pytest.param(Raw((b"{}",), content_type="application/json"), id="other answer"),
            pytest.param(Raw((b"garbage",), content_type="application/json"), id="garbage"),
        ],
    )
    @in_loop
    async def test_an_answer_without_an_end_is_unavailable(self, talk: ModelChat, reply: Reply) -> None:
        async with talk.with_server([reply, Say("Yes.")]):
            assert type(await talk.fails("hello")) is ModelUnavailable
            assert (await talk.ask("again")).message.content == "Yes."

    @in_loop
    async def test_a_stream_that_ends_in_the_middle_of_an_answer_is_unavailable(self, talk: ModelChat) -> None:
        pieces = tuple(frames(self.protocol, Say("x" * 100, chunks=10), "stub"))
        async with talk.with_server([Raw(pieces[: len(pieces) // 2])]):
            assert type(await talk.fails("hello")) is ModelUnavailable

    @in_loop
    async def test_a_silent_stream_times_out(self, talk: ModelChat) -> None:
        async with talk.with_server([Say("x" * 100, chunks=10, end=End.STALL)], idle_s=0.2) as server:
            begun = time.monotonic()
            assert type(await talk.fails("hello")) is ModelUnavailable
            assert 0.1 < time.monotonic() - begun < 5.0
            await asyncio.wait_for(server.left_early.wait(), 5.0)

    @in_loop
    async def test_a_slow_answer_does_not_time_out(self, talk: ModelChat) -> None:
        async with talk.with_server([Say("x" * 20, chunks=10, delay_s=0.1)], idle_s=0.5):
            assert (await talk.ask("hello")).message.content == "x" * 20

    @in_loop
    async def test_an_endpoint_that_accepts_no_connection_times_out(self, make_client: MakeClient) -> None:
        with socket.socket() as full, socket.socket() as first, socket.socket() as second:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for waiting in (first, second):
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            talk = ModelChat(make_client)
            talk.connect_to(f"http://127.0.0.1:{full.getsockname()[1]}/v1", connect_s=0.3)
            begun = time.monotonic()
            assert type(await talk.fails("hello")) is ModelUnavailable
            assert 0.1 < time.monotonic() - begun < 5.0
            await talk.client.aclose()

    @in_loop
    async def test_an_endpoint_that_does_not_listen_is_unavailable(self, make_client: MakeClient) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            talk = ModelChat(make_client)
            talk.connect_to(f"http://127.0.0.1:{unused.getsockname()[1]}/v1")
            assert type(await talk.fails("hello")) is ModelUnavailable
            await talk.client.aclose()

    # --- Cancellation ----------------------------------------------------------------------------------------------

    @in_loop
    async def test_closing_the_stream_closes_the_connection(self, talk: ModelChat) -> None:
        async with talk.with_server([Say("x" * 100, chunks=100, delay_s=0.05), Say("Yes.")]) as server:
            async with aclosing(talk.stream((user("hello"),))) as stream:
                async for _ in stream:
                    break
            await asyncio.wait_for(server.left_early.wait(), 2.0)
            assert (await talk.ask("again")).message.content == "Yes."

    @pytest.mark.parametrize("end", [End.WHOLE, End.STALL])
    @in_loop
    async def test_cancelling_closes_the_connection(self, talk: ModelChat, end: End) -> None:
        async with talk.with_server([Say("x" * 100, chunks=100, delay_s=0.05, end=end)]) as server:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await talk.ask("hello")
            await asyncio.wait_for(server.left_early.wait(), 2.0)


class ModelChat:
    """A client connected to a stub server."""

    def __init__(self, make_client: MakeClient) -> None:
        self._make_client = make_client

    def connect_to(self, base_url: str, key: str = KEY, *, connect_s: float = 5.0, idle_s: float = FOREVER_S) -> None:
        self.client = self._make_client(base_url, key, key_name="THE_KEY", connect_s=connect_s, idle_s=idle_s)

    @asynccontextmanager
    async def with_server(
        self,
        script: Iterable[Reply] | Script,
        *,
        key: str | None = None,
        models: Sequence[str] = (),
        sent_key: str = KEY,
        idle_s: float = FOREVER_S,
        thinks: ReasoningFormat | None = None,
    ) -> AsyncGenerator[ModelServer]:
        async with ModelServer(script, key=key, models=models, thinks=thinks) as server:
            self.connect_to(server.base_url, sent_key, idle_s=idle_s)
            async with aclosing(self.client):
                yield server

    def stream(self, tail: tuple[Message, ...], history: bytes = b"", recall: str = "", prompt: Prompt = PROMPT):
        return self.client.stream(Request(self.client.head(prompt), history, tail, recall))

    async def say(self, text: str) -> list[Delta | Answer]:
        return [piece async for piece in self.stream((user(text),))]

    async def ask(self, text: str, *, history: bytes = b"", recall: str = "", prompt: Prompt = PROMPT) -> Answer:
        return await self.ask_with((user(text),), history=history, recall=recall, prompt=prompt)

    async def ask_with(
        self, tail: tuple[Message, ...], *, history: bytes = b"", recall: str = "", prompt: Prompt = PROMPT
    ) -> Answer:
        *_, answer = [piece async for piece in self.stream(tail, history, recall, prompt)]
        assert isinstance(answer, Answer)
        return answer

    async def fails(self, text: str) -> ModelError:
        with pytest.raises(ModelError) as caught:
            await self.say(text)
        return caught.value
