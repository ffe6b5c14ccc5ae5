"""`/v1`: the OpenAI-compatible API.

A completion without a conversation calls the configured model. Only its cost is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
from msgspec import Struct
from starlette.responses import Response

from everthread.agent.events import Retrying, TextWritten, TurnEvent
from everthread.agent.model_call import ModelChoice, Progress
from everthread.domain.errors import BadConfig, ModelUnavailable, ModelWithoutTools
from everthread.domain.model import ChatType, Role, SessionKey, SessionRef
from everthread.gateway.server import HTTP
from everthread.ports.model import Answer, Prompt, Request
from everthread.web import admission as limits
from everthread.web import schemas as shapes
from everthread.web.conversation import converse
from everthread.web.errors import HttpError, to_http_error
from everthread.web.ownership import conversation_of
from everthread.web.request import ApiCall, ServerStopping
from everthread.web.schemas import ChatRequest
from everthread.web.sse import DONE, EventStream, event


class Model(Struct):
    id: str
    created: int
    object: str = "model"
    owned_by: str = "everthread"


class Models(Struct):
    data: list[Model]
    object: str = "list"


async def list_models(call: ApiCall) -> Response:
    gateway = call.gateway
    names = dict.fromkeys((*shapes.OUR_MODELS, *gateway.known_models()))
    found = Models([Model(name, int(gateway.started_at)) for name in names])
    return Response(msgspec.json.encode(found), media_type="application/json")


async def chat(call: ApiCall) -> Response:
    """Continue a conversation if a header names one; otherwise complete the messages of the request."""
    asked = await call.read(ChatRequest)
    shapes.check(asked)
    if (place := await conversation_of(call)) is not None:
        return await converse(call, asked, place)
    limits.check(call)
    return await complete(call, asked)


async def complete(call: ApiCall, asked: ChatRequest) -> Response:
    asking = _ModelRequest(call, asked)
    if not asked.stream:
        try:
            return Response(msgspec.json.encode(await asking.whole()), media_type="application/json")
        finally:
            await asking.leave()
    try:
        first = await asking.first()
    except BaseException:
        await asking.leave()
        raise
    return EventStream(asking.chunks(first), ended=asking.leave)


class _ModelRequest:
    """One model call in a task of its own, so that its words can be streamed."""

    def __init__(self, call: ApiCall, asked: ChatRequest) -> None:
        self._call, self._asked = call, asked
        self._gateway = call.gateway
        self._system, self._messages = shapes.to_messages(asked)
        self._tools = shapes.tools_of(asked)
        self._choices = self._chosen()
        limit = self._gateway.settings.limits
        self._tokens = min(asked.max_completion_tokens or asked.max_tokens or limit.output_tokens, limit.output_tokens)
        self._id = f"chatcmpl-{self._gateway.new_id()}"
        self._created = int(self._gateway.clock.now())
        self._progress = Progress()
        self._heard = call.site.wait()
        self._sent = False
        self._work = asyncio.ensure_future(self._ask())
        self._work.add_done_callback(lambda work: self._heard.put_nowait(work))

    def _chosen(self) -> list[ModelChoice]:
        name = "" if self._asked.model in shapes.OUR_MODELS else self._asked.model
        try:
            return list(self._gateway.choices(name))
        except BadConfig as error:
            if not name:
                raise
            raise HttpError(
                404, f"there is no model {name!r} here; GET /v1/models lists some", "model_not_found"
            ) from error

    def _nowhere(self) -> SessionRef:
        """Return a ref without a session, for the spend of the owner."""
        key = SessionKey(self._gateway.settings.profile, HTTP, ChatType.DM, "stateless")
        return SessionRef("", 0, key, 0, self._call.caller.owner)

    async def _ask(self) -> Answer:
        limit_s = self._gateway.settings.limits.turn_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._gateway.agent.model.ask(
                    self._choices,
                    self._request_to,
                    ref=self._nowhere(),
                    turn_id=self._id,
                    progress=self._progress,
                    listen=self._listen,
                )
        except TimeoutError:
            raise ModelUnavailable(f"there was no answer within {limit_s:g} s") from None

    async def _request_to(self, choice: ModelChoice) -> Request:
        if self._tools and not choice.traits.tools:
            raise ModelWithoutTools(f"{choice.name} can't be given tools")
        # Keep tool calls and results together with the user message they belong to.
        start = max(number for number, message in enumerate(self._messages) if message.role is Role.USER)
        head = choice.client.head(Prompt(choice.model, self._system, self._tools))
        history = choice.client.encode(self._messages[:start])
        return Request(head, history, tuple(self._messages[start:]), output_tokens_max=self._tokens)

    def _listen(self, heard: TurnEvent) -> None:
        if isinstance(heard, Retrying) and self._sent:
            # Streamed words cannot be taken back: report the error, and let the client retry.
            raise ModelUnavailable(f"the answer was cut off: {heard.why}")
        if isinstance(heard, TextWritten) and self._asked.stream:
            self._sent = True
            self._heard.put_nowait(heard)

    async def whole(self) -> shapes.Completion:
        answer = await self._next()
        while not isinstance(answer, Answer):
            answer = await self._next()
        message = answer.message
        calls = shapes.encode_tool_calls(message.tool_calls)
        said = shapes.MessageSaid(message.content or (None if calls else ""), tool_calls=calls or msgspec.UNSET)
        choice = shapes.ChoiceSaid(said, shapes.FINISH[answer.finish])
        usage = shapes.encode_usage(answer.usage)
        return shapes.Completion(self._id, self._created, self._progress.model, [choice], usage)

    async def first(self) -> TextWritten | Answer:
        """Wait for the first event: an error before it gets an HTTP status of its own."""
        return await self._next()

    async def chunks(self, first: TextWritten | Answer) -> AsyncGenerator[bytes, None]:
        try:
            yield event(self._chunk(shapes.Delta("assistant")))
            heard, written = first, False
            while isinstance(heard, TextWritten):
                written = True
                yield event(self._chunk(shapes.Delta(content=heard.text)))
                heard = await self._next()
            message = heard.message
            if message.content and not written:
                yield event(self._chunk(shapes.Delta(content=message.content)))
            if message.tool_calls:
                yield event(
                    self._chunk(shapes.Delta(tool_calls=shapes.encode_tool_calls(message.tool_calls, numbered=True)))
                )
            yield event(self._chunk(shapes.Delta(), shapes.FINISH[heard.finish]))
            await self.leave()
            if self._asked.wants_usage:
                usage = shapes.encode_usage(heard.usage)
                yield event(shapes.Chunk(self._id, self._created, self._model, [], usage))
            yield DONE
        except Exception as error:  # noqa: BLE001 - the status is sent: report it in the stream
            yield event(to_http_error(error, guest=self._call.guest).body)
        finally:
            await self.leave()

    @property
    def _model(self) -> str:
        return self._progress.model or self._choices[0].name

    def _chunk(self, delta: shapes.Delta, finish: str | None = None) -> shapes.Chunk:
        return shapes.Chunk(self._id, self._created, self._model, [shapes.ChoiceDelta(delta, finish)])

    async def _next(self) -> TextWritten | Answer:
        heard = await self._heard.get()
        if isinstance(heard, asyncio.Task):
            return self._work.result()
        if isinstance(heard, ServerStopping):
            raise HttpError(503, "this is being stopped; ask again in a moment", "stopping", {"Retry-After": "5"})
        assert isinstance(heard, TextWritten)
        return heard

    async def leave(self) -> None:
        """Stop the call and store its cost. Call it in any case."""
        self._call.site.waits.discard(self._heard)
        await asyncio.shield(self._settle())

    async def _settle(self) -> None:
        self._work.cancel()
        await asyncio.wait({self._work})
        if not self._work.cancelled():
            # Mark the exception as retrieved.
            self._work.exception()
        spent, self._progress.spent = self._progress.spent, []
        if spent:
            await self._gateway.lifecycle.settle_spend(self._nowhere(), self._id, spent)
