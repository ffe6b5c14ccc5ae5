"""A message in a conversation: stored like on any platform, answered by a turn. The response is the reply.

If the client disconnects, the turn goes on, and its answer is stored in the session.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator

from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from everthread.agent.events import Retrying, TextWritten, ToolBegan, TurnBegan, TurnEnded
from everthread.agent.turn_outcome import INTERNAL_ERROR
from everthread.commands.context import CommandResult
from everthread.commands.registry import ParsedCommand, hidden_commands, parse, run_command
from everthread.domain.model import Inbound, InboxRow, InboxState, Role, Turn, TurnStatus
from everthread.gateway.access import FOR_ADMINS
from everthread.gateway.inbound import SAFETY_COMMANDS, bucket_of
from everthread.gateway.server import HTTP
from everthread.gateway.turn_events import CommandAnswered, MessageSetAside
from everthread.ports.model import Usage
from everthread.store.unit_of_work import UnitOfWork
from everthread.web.errors import HttpError, no_such_session, stopping, to_http_error
from everthread.web.ownership import Conversation, conversation_headers, move_to_session
from everthread.web.request import ApiCall, ServerStopping
from everthread.web.responses import EventStream, encode_event, json_response
from everthread.web.schemas import OUR_MODELS, ChatRequest, ChunkDelta, CompletionWriter, last_user_text

POLL_S = 5.0
"""Poll the store while waiting: another process may answer."""
REPEATED_POLL_S = 0.25
IDEMPOTENCY_HEADER = "Idempotency-Key"
UPDATE_CHARS_MAX = 255
QUEUED_MAX = 10_000
"""Pieces of an answer that are kept for a slow client."""
DONE_BEFORE = "This command ran before."
BEGINS_AGAIN = "\n\n[The model was cut off here, and begins again.]\n\n"
_MODEL = OUR_MODELS[0]


class TurnStarted(Struct, frozen=True):
    session_id: str
    turn_id: str


class ReaderTooSlow(Struct, frozen=True):
    """The client reads too slowly, and the queue is full."""


class TurnResult(Struct, frozen=True):
    """The answer to a message."""

    text: str
    session_id: str
    turn_id: str = ""
    model: str = ""
    usage: Usage = Usage()
    finish: str = "stop"


_ENDS = TurnBegan | TurnEnded | CommandAnswered | MessageSetAside
_STREAMED = TextWritten | ToolBegan | Retrying | _ENDS
ReplyEvent = TurnStarted | TextWritten | ToolBegan | Retrying | TurnResult


async def converse(call: ApiCall, request: ChatRequest, conversation: Conversation) -> Response:
    await _check_model(call, request, conversation)
    if request.tools:
        raise HttpError(400, "In a conversation the agent has its own tools; omit tools.", "unsupported_parameter")
    text, update_id = last_user_text(request), _update_id(call)
    follower = await _accept(call, conversation, text, update_id, streams=bool(request.stream))
    # The message is stored: a request that waits for its answer must take no room from others.
    request.messages.clear()
    del text
    call.held.release()
    writer = _ReplyWriter(call, conversation, request)
    if isinstance(follower, TurnResult):
        return writer.whole(follower)
    try:
        event = await follower.next()
        # Status and ids precede the first word: they are known once the turn has begun.
        while not isinstance(event, TurnResult) and not (request.stream and isinstance(event, TurnStarted)):
            event = await follower.next()
    except BaseException as error:
        await follower.close()
        if update_id is not None or not isinstance(error, Exception):
            raise
        problem = to_http_error(error, is_guest=call.is_guest)
        # The message is stored: a retry without an idempotency key would store it twice.
        problem.headers["X-Should-Retry"] = "false"
        raise problem from error
    if isinstance(event, TurnStarted):
        headers = conversation_headers(conversation, event.session_id, event.turn_id)
        return EventStream(writer.chunks(follower), headers, ended=follower.close)
    await follower.close()
    return writer.whole(event)


async def _check_model(call: ApiCall, request: ChatRequest, conversation: Conversation) -> None:
    if request.model in OUR_MODELS:
        return
    chosen = await call.gateway.store.read_inline(lambda uow: uow.sessions.chosen_model(conversation.key))
    rights = await call.gateway.rights.of_owner(call.caller.owner)
    if request.model != call.gateway.choices(rights.granted_model(chosen))[0].name:
        raise HttpError(400, f"A conversation has its own model; ask for {_MODEL!r}.", "model_not_chosen")


def _update_id(call: ApiCall) -> str | None:
    text = call.header(IDEMPOTENCY_HEADER)
    if text is not None and not 1 <= len(text) <= UPDATE_CHARS_MAX:
        raise HttpError(400, f"{IDEMPOTENCY_HEADER} must have 1 to {UPDATE_CHARS_MAX} characters.", "bad_request")
    return text


async def _accept(
    call: ApiCall, conversation: Conversation, text: str, update_id: str | None, *, streams: bool
) -> _TurnFollower | TurnResult:
    gateway, caller = call.gateway, call.caller
    found = parse(text)
    call.check_limits(found)
    # Two owners may use the same token name, and idempotency keys are per owner.
    account = f"{caller.owner}/{caller.name}"
    inbound = Inbound(conversation.key, caller.owner, text, account, update_id, command=found is not None)
    session_id = conversation.session.id if conversation.session is not None else ""
    name = found.command.name if isinstance(found, ParsedCommand) else ""
    stops = name in SAFETY_COMMANDS
    if conversation.session is not None and not stops and not await _is_repeated(call, inbound):
        session_id = (await move_to_session(call, conversation, conversation.session)).session_id
    only_into = "" if stops else session_id
    if isinstance(found, ParsedCommand):
        command, settings = found.command, gateway.settings
        hidden = hidden_commands(settings.gateway.admin_commands, admin=caller.owner == settings.owner)
        if command.name in hidden and not command.terminal_only:
            return TurnResult(FOR_ADMINS, await _current_session_id(call, conversation))
        if await gateway.inbound.runs_unstored(command, conversation.key) or (command.takes_message and found.argument):
            # The command is not stored, or it stores its message itself.
            context = gateway.command_context(conversation.key, caller.owner)
            context = replace(
                context, account=account, update_id=update_id, only_into=only_into, hidden_commands=hidden
            )
            result = await run_command(context, found)
            gateway.worker.wake(conversation.key)
            return TurnResult(result.text, await _current_session_id(call, conversation))
    row, is_new = await gateway.lifecycle.accept(inbound, only_into=only_into)
    gateway.inbound.accepted += is_new
    if not is_new:
        gateway.rate_limiter.refund(bucket_of(caller.owner, name))
    if (row.inbound.key, row.inbound.owner) != (conversation.key, caller.owner) or row.inbound.text not in ("", text):
        raise _key_reused()
    return _TurnFollower(call, conversation, text, row, is_new, streams=streams)


async def _is_repeated(call: ApiCall, inbound: Inbound) -> bool:
    """Return true for a repeated message, which must not even move the conversation."""
    if inbound.update_id is None:
        return False
    return await call.gateway.store.read_inline(lambda uow: uow.inbox.known(inbound)) is not None


def _key_reused() -> HttpError:
    return HttpError(409, f"This {IDEMPOTENCY_HEADER} was used for another message.", "idempotency_key_used")


async def _current_session_id(call: ApiCall, conversation: Conversation) -> str:
    current = await call.gateway.lifecycle.current(conversation.key)
    return current.session_id if current is not None and current.owner == call.caller.owner else ""


class _TurnFollower:
    """Follows one message until it is answered. `close` must always be called."""

    def __init__(
        self, call: ApiCall, conversation: Conversation, text: str, row: InboxRow, is_new: bool, *, streams: bool
    ) -> None:
        self._call, self._conversation = call, conversation
        # Keep no text: the message may wait for a long time, and the store has it.
        self._digest, self._row_id, self._is_new = _digest(text), row.id, is_new
        self._events = call.state.add_queue(call.state.waiting)
        # Without a stream, only the beginning and the end of the turn matter.
        self._wanted = _STREAMED if streams else _ENDS
        self._turn_id = ""
        worker = call.gateway.worker
        if is_new:
            worker.subscribe(row.id, self._enqueue)
            worker.submit(row, call.gateway.inbound.busy_mode(HTTP))
        elif row.state is InboxState.WAITING:
            worker.wake(row.inbound.key)

    def _enqueue(self, event: object) -> None:
        """Queue what the client is sent; unsubscribe a client that does not read."""
        if not isinstance(event, self._wanted):
            # Other events would delay the batch of words.
            return
        queued = self._events.qsize()
        if queued >= QUEUED_MAX:
            self._call.gateway.worker.unsubscribe(self._row_id)
        if queued <= QUEUED_MAX:
            self._events.put_nowait(event if queued < QUEUED_MAX else ReaderTooSlow())

    @property
    def has_next(self) -> bool:
        """Return true if `next` would not wait."""
        return not self._events.empty()

    async def close(self) -> None:
        self._call.state.waiting.discard(self._events)
        if self._is_new:
            self._call.gateway.worker.unsubscribe(self._row_id)

    async def next(self) -> ReplyEvent:
        """Return the next event. Raise `HttpError` if there will be no answer."""
        while True:
            match await self._next_event():
                case TurnBegan() as event:
                    self._turn_id = event.claim.turn_id
                    return TurnStarted(event.ref.session_id, event.claim.turn_id)
                case TextWritten() | ToolBegan() | Retrying() | TurnResult() as event:
                    return event
                case TurnEnded() as event:
                    return self._result(event)
                case CommandAnswered() as event:
                    session_id = await _current_session_id(self._call, self._conversation)
                    return TurnResult(_text_of(event.result), session_id)
                case MessageSetAside() as event:
                    raise self._set_aside(event.session_id)
                case ReaderTooSlow():
                    raise HttpError(408, "The stream was read too slowly; the session has the answer.", "too_slow")
                case ServerStopping():
                    raise stopping(conversation_headers(self._conversation))
                case _:
                    pass

    async def _next_event(self) -> object:
        """Return the next event, or the stored result, or `None` if there is neither yet."""
        if self.has_next:
            # Words arrive in batches: a timer for each would cost more CPU than the words.
            return self._events.get_nowait()
        try:
            async with asyncio.timeout(POLL_S if self._is_new else REPEATED_POLL_S):
                return await self._events.get()
        except TimeoutError:
            return await self._stored_result()

    def _result(self, ended: TurnEnded) -> TurnResult:
        session_id = ended.committed.ref.session_id
        if ended.committed.status in (TurnStatus.LATE, TurnStatus.HIDDEN):
            raise self._set_aside(session_id)
        if not ended.text:
            problem = _no_answer(ended, is_guest=self._call.is_guest)
            problem.headers |= conversation_headers(self._conversation, session_id, self._turn_id)
            raise problem
        finish = "length" if ended.problem else "stop"
        return TurnResult(ended.text, session_id, self._turn_id, ended.model, ended.usage, finish)

    async def _stored_result(self) -> TurnResult | None:
        """Read the answer from the store; `None` if there is none yet."""
        row, turn = await self._call.gateway.store.read(self._read)
        if row is None:
            raise no_such_session()
        if row.state is InboxState.SET_ASIDE or (turn is not None and turn.status is TurnStatus.SET_ASIDE):
            raise self._set_aside(row.session_id or "")
        if row.state is not InboxState.DONE:
            return None
        if row.inbound.command:
            return TurnResult(DONE_BEFORE, await _current_session_id(self._call, self._conversation))
        if turn is None or turn.status in (TurnStatus.LATE, TurnStatus.HIDDEN):
            raise self._set_aside(row.session_id or "")
        if self._digest not in [_digest(m.content) for m in turn.messages if m.role is Role.USER]:
            raise _key_reused()
        texts = [m.content for m in turn.messages if m.role is Role.ASSISTANT and m.content and not m.tool_calls]
        if not texts:
            headers = conversation_headers(self._conversation, turn.session_id)
            raise HttpError(502, "There was no answer.", "no_answer", headers)
        return TurnResult(texts[-1], turn.session_id, turn.turn_id)

    def _read(self, uow: UnitOfWork) -> tuple[InboxRow | None, Turn | None]:
        row = uow.inbox.get(self._row_id)
        if row is None or row.session_id is None or row.turn_id is None:
            return row, None
        number = uow.turns.number(row.session_id, row.turn_id)
        return row, uow.turns.get(row.session_id, number) if number is not None else None

    def _set_aside(self, session_id: str) -> HttpError:
        text = "The conversation moved to another session before the answer. The message is kept in its session."
        return HttpError(409, text, "set_aside", conversation_headers(self._conversation, session_id))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _no_answer(ended: TurnEnded, *, is_guest: bool) -> HttpError:
    if ended.error is not None:
        return to_http_error(ended.error, is_guest=is_guest)
    # The text of a bug may contain anything.
    problem = INTERNAL_ERROR if ended.problem.startswith(INTERNAL_ERROR) else ended.problem or "There was no answer."
    if ended.committed.status is TurnStatus.INTERRUPTED:
        return HttpError(409, f"{problem}; the message is kept in its session", "stopped")
    return HttpError(502, problem, "no_answer")


def _text_of(result: CommandResult) -> str:
    return f"{result.text}\n\n{result.document.text}" if result.document is not None else result.text


class _ReplyWriter:
    """Writes the answer of a turn as a response."""

    def __init__(self, call: ApiCall, conversation: Conversation, request: ChatRequest) -> None:
        self._conversation, self._request, self._is_guest = conversation, request, call.is_guest
        self._writer = CompletionWriter(call.gateway.new_id(), call.gateway.clock.now(), request)

    def whole(self, result: TurnResult) -> Response:
        headers = conversation_headers(self._conversation, result.session_id, result.turn_id)
        if self._request.stream:
            return EventStream(self._short_stream(result), headers)
        model = result.model or _MODEL
        return json_response(self._writer.whole(model, result.text, result.finish, result.usage), headers=headers)

    async def _short_stream(self, result: TurnResult) -> AsyncGenerator[bytes, None]:
        yield self._writer.chunk(_MODEL, ChunkDelta("assistant", result.text)) + self._end(result)

    async def chunks(self, follower: _TurnFollower) -> AsyncGenerator[bytes, None]:
        """Stream the words, batched as they arrive, and the end once the turn is stored."""
        written, unsent = "", [self._writer.chunk(_MODEL, ChunkDelta("assistant"))]
        try:
            while True:
                if unsent and not follower.has_next:
                    yield b"".join(unsent)
                    unsent.clear()
                event = await follower.next()
                if isinstance(event, TurnResult):
                    break
                if isinstance(event, TextWritten):
                    written += event.text
                    unsent.append(self._words(event.text))
                elif written and isinstance(event, ToolBegan | Retrying):
                    written = ""
                    unsent.append(self._words(BEGINS_AGAIN if isinstance(event, Retrying) else "\n\n"))
            # The part of the stored answer that was not streamed.
            rest = event.text.removeprefix(written) if event.text.startswith(written) else f"\n\n{event.text}"
            if rest:
                unsent.append(self._words(rest))
            unsent.append(self._end(event))
        except Exception as error:  # noqa: BLE001 - the status is sent: report it in the stream
            unsent.append(encode_event(to_http_error(error, is_guest=self._is_guest).body))
        yield b"".join(unsent)

    def _words(self, text: str) -> bytes:
        return self._writer.chunk(_MODEL, ChunkDelta(content=text))

    def _end(self, result: TurnResult) -> bytes:
        return self._writer.end(_MODEL, result.finish, result.usage)
