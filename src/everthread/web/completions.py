"""`/v1`: the OpenAI-compatible API.

A completion without a conversation calls the configured model. Only its cost is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from msgspec import Struct
from starlette.responses import Response

from everthread.agent.events import Retrying, TextWritten, TurnEvent
from everthread.agent.model_call import ModelChoice, Progress
from everthread.commands.model import granted_models
from everthread.domain.errors import BadConfig, ModelUnavailable, ModelWithoutTools
from everthread.domain.model import ChatType, Role, SessionKey, SessionRef
from everthread.domain.rights import Rights
from everthread.gateway.server import HTTP
from everthread.ports.model import Answer, Prompt, Request
from everthread.web import schemas
from everthread.web.conversation import converse
from everthread.web.errors import HttpError, stopping, to_http_error
from everthread.web.ownership import conversation_of
from everthread.web.request import ApiCall, ServerStopping
from everthread.web.responses import EventStream, encode_event, json_response
from everthread.web.schemas import FINISH, ChatRequest, ChunkDelta, CompletionWriter


class ModelInfo(Struct):
    id: str
    created: int
    object: str = "model"
    owned_by: str = "everthread"


class ModelList(Struct):
    data: list[ModelInfo]
    object: str = "list"


async def list_models(call: ApiCall) -> Response:
    """List the models that the caller may choose."""
    gateway = call.gateway
    rights = await gateway.rights.of_owner(call.caller.owner)
    names = dict.fromkeys((*schemas.OUR_MODELS, *granted_models(gateway, rights)))
    return json_response(ModelList([ModelInfo(name, int(gateway.started_at)) for name in names]))


async def chat(call: ApiCall) -> Response:
    """Call a model; if a header names a conversation, send a message to it."""
    request = await call.read(ChatRequest)
    schemas.check_supported(request)
    if (conversation := await conversation_of(call)) is not None:
        return await converse(call, request, conversation)
    call.check_limits()
    return await _complete(call, request)


async def _complete(call: ApiCall, request: ChatRequest) -> Response:
    model_request = _ModelRequest(call, request, await call.gateway.rights.of_owner(call.caller.owner))
    try:
        if request.stream:
            # An error before the first event gets an HTTP status of its own.
            first = await model_request.next()
            return EventStream(model_request.chunks(first), ended=model_request.close)
        response = json_response(await model_request.whole())
    except BaseException:
        await model_request.close()
        raise
    await model_request.close()
    return response


class _ModelRequest:
    """One model call in a task of its own, so that its words can be streamed. `close` must always be called."""

    def __init__(self, call: ApiCall, request: ChatRequest, rights: Rights) -> None:
        self._call, self._request = call, request
        self._gateway = call.gateway
        self._system, self._messages = schemas.to_messages(request)
        self._tools = schemas.tools_of(request)
        self._choices = self._choose(rights)
        limit = self._gateway.settings.limits.output_tokens
        self._tokens = min(request.max_completion_tokens or request.max_tokens or limit, limit)
        self._writer = CompletionWriter(self._gateway.new_id(), self._gateway.clock.now(), request)
        self._progress = Progress()
        self._events = call.state.add_queue(call.state.waiting)
        self._is_streamed = False
        self._task = asyncio.ensure_future(self._ask())
        self._task.add_done_callback(self._events.put_nowait)

    def _choose(self, rights: Rights) -> list[ModelChoice]:
        name = "" if self._request.model in schemas.OUR_MODELS else self._request.model
        unknown = HttpError(404, f"Unknown model {name!r}. GET /v1/models lists some.", "model_not_found")
        try:
            if not name or rights.may_use_model(name):
                return list(self._gateway.choices(name))
            configured = list(self._gateway.choices())
        except BadConfig as error:
            if not name:
                raise
            raise unknown from error
        if configured[0].name != name:
            # Not granted: the same answer as for a model that does not exist.
            raise unknown
        return configured

    def _ref(self) -> SessionRef:
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
                    ref=self._ref(),
                    turn_id=self._writer.id,
                    progress=self._progress,
                    listen=self._listen,
                )
        except TimeoutError:
            raise ModelUnavailable(f"there was no answer within {limit_s:g} s") from None

    async def _request_to(self, choice: ModelChoice) -> Request:
        if self._tools and not choice.traits.tools:
            raise ModelWithoutTools(f"{choice.name} does not support tools")
        # Keep tool calls and results together with the user message they belong to.
        start = max(number for number, message in enumerate(self._messages) if message.role is Role.USER)
        head = choice.client.head(Prompt(choice.model, self._system, self._tools))
        history = choice.client.encode(self._messages[:start])
        return Request(head, history, tuple(self._messages[start:]), output_tokens_max=self._tokens)

    def _listen(self, event: TurnEvent) -> None:
        if isinstance(event, Retrying) and self._is_streamed:
            # Streamed words cannot be taken back: report the error, and let the client retry.
            raise ModelUnavailable(f"the answer was cut off: {event.why}")
        if isinstance(event, TextWritten) and self._request.stream:
            self._is_streamed = True
            self._events.put_nowait(event)

    async def whole(self) -> schemas.Completion:
        while not isinstance(answer := await self.next(), Answer):
            pass
        message, finish = answer.message, FINISH[answer.finish]
        return self._writer.whole(self._progress.model, message.content, finish, answer.usage, message.tool_calls)

    async def chunks(self, event: TextWritten | Answer) -> AsyncGenerator[bytes, None]:
        try:
            yield self._chunk(ChunkDelta("assistant"))
            is_written = False
            while isinstance(event, TextWritten):
                is_written = True
                yield self._chunk(ChunkDelta(content=event.text))
                event = await self.next()
            message = event.message
            if message.content and not is_written:
                yield self._chunk(ChunkDelta(content=message.content))
            if message.tool_calls:
                calls = schemas.encode_tool_calls(message.tool_calls, numbered=True)
                yield self._chunk(ChunkDelta(tool_calls=calls))
            await self.close()
            yield self._writer.end(self._model, FINISH[event.finish], event.usage)
        except Exception as error:  # noqa: BLE001 - the status is sent: report it in the stream
            yield encode_event(to_http_error(error, is_guest=self._call.is_guest).body)
        finally:
            await self.close()

    @property
    def _model(self) -> str:
        return self._progress.model or self._choices[0].name

    def _chunk(self, delta: ChunkDelta) -> bytes:
        return self._writer.chunk(self._model, delta)

    async def next(self) -> TextWritten | Answer:
        """Wait for the next words, or the whole answer."""
        event = await self._events.get()
        if isinstance(event, ServerStopping):
            raise stopping()
        return self._task.result() if event is self._task else event

    async def close(self) -> None:
        """Stop the call and store its cost."""
        self._call.state.waiting.discard(self._events)
        await asyncio.shield(self._settle())

    async def _settle(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            # Mark the exception as retrieved.
            self._task.exception()
        spent, self._progress.spent = self._progress.spent, []
        if spent:
            await self._gateway.lifecycle.settle_spend(self._ref(), self._writer.id, spent)
