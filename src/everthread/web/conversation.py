"""A message in a conversation: stored like on any platform, answered by a turn. The response is the reply.

If the client disconnects, the turn goes on, and its answer is stored in the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from everthread.agent.events import Retrying, TextWritten, ToolBegan, TurnBegan, TurnEnded
from everthread.agent.turn_outcome import INTERNAL_ERROR
from everthread.commands.registry import CommandResult, ParsedCommand, hidden_commands, parse, run_command
from everthread.domain.model import Inbound, InboxRow, InboxState, Role, Turn, TurnStatus
from everthread.gateway.inbound import FOR_ADMINS, UNLIMITED_COMMANDS
from everthread.gateway.server import HTTP
from everthread.gateway.turn_events import CommandAnswered, MessageSetAside
from everthread.ports.model import Usage
from everthread.store.unit_of_work import UnitOfWork
from everthread.web import admission as limits
from everthread.web import errors as refusals
from everthread.web import schemas as shapes
from everthread.web.errors import HttpError, to_http_error
from everthread.web.ownership import Conversation, conversation_headers, move_to_session
from everthread.web.request import ApiCall, ServerStopping
from everthread.web.schemas import ChatRequest
from everthread.web.sse import DONE, EventStream, event

LOOK_S = 5.0
"""Poll the store while waiting: another process may answer."""
LOOK_AGAIN_S = 0.25
IDEMPOTENCY_HEADER = "Idempotency-Key"
UPDATE_CHARS_MAX = 255
HEARD_MAX = 10_000
"""Pieces of an answer that are kept for a slow client."""
DONE_BEFORE = "This was carried out before."
BEGINS_AGAIN = "\n\n[The model was cut off here, and begins again.]\n\n"


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
Heard = TurnStarted | TextWritten | ToolBegan | Retrying | TurnResult


async def converse(call: ApiCall, asked: ChatRequest, place: Conversation) -> Response:
    await _check_model(call, asked, place)
    if asked.tools:
        raise HttpError(400, "in a conversation the agent has its own tools; leave tools out", "unsupported_parameter")
    text, update_id = shapes.last_user_text(asked), _update_id(call)
    following = await _accept(call, place, text, update_id, every_word=bool(asked.stream))
    said = _CompletionWriter(call, place, asked)
    if isinstance(following, TurnResult):
        return said.at_once(following)
    try:
        heard = await following.next()
        # Status and ids precede the first word: they are known once the turn has begun.
        while not isinstance(heard, TurnResult) and not (asked.stream and isinstance(heard, TurnStarted)):
            heard = await following.next()
    except BaseException as error:
        await following.leave()
        if update_id is not None or not isinstance(error, Exception):
            raise
        raise _not_again(to_http_error(error, guest=call.guest)) from error
    if isinstance(heard, TurnStarted):
        return EventStream(
            said.chunks(following), conversation_headers(place, heard.session_id, heard.turn_id), ended=following.leave
        )
    await following.leave()
    return said.at_once(heard)


def _not_again(problem: HttpError) -> HttpError:
    """Tell clients not to retry: the message is stored, and a retry without a key would store it twice."""
    problem.headers["X-Should-Retry"] = "false"
    return problem


async def _check_model(call: ApiCall, asked: ChatRequest, place: Conversation) -> None:
    if asked.model in shapes.OUR_MODELS:
        return
    gateway = call.gateway
    chosen = await gateway.store.read_inline(lambda uow: uow.sessions.chosen_model(place.key))
    if asked.model != gateway.choices(chosen)[0].name:
        raise HttpError(
            400, f"a conversation is answered by its own model; ask for {shapes.OUR_MODELS[0]!r}", "model_not_chosen"
        )


def _update_id(call: ApiCall) -> str | None:
    text = call.header(IDEMPOTENCY_HEADER)
    if text is not None and not 1 <= len(text) <= UPDATE_CHARS_MAX:
        raise HttpError(400, f"{IDEMPOTENCY_HEADER} must have 1 to {UPDATE_CHARS_MAX} characters", "bad_request")
    return text


async def _accept(
    call: ApiCall, place: Conversation, text: str, update_id: str | None, *, every_word: bool
) -> _TurnFollower | TurnResult:
    gateway, caller = call.gateway, call.caller
    found = parse(text)
    limits.check(call, found)
    # Two owners may use the same token name, and idempotency keys are per owner.
    account = f"{caller.owner}/{caller.name}"
    inbound = Inbound(place.key, caller.owner, text, account, update_id, command=found is not None)
    if place.session is not None and not await _was_taken(call, inbound):
        await move_to_session(call, place, place.session)
    stops = isinstance(found, ParsedCommand) and found.command.name in UNLIMITED_COMMANDS
    only_into = place.session.id if place.session is not None and not stops else ""
    if isinstance(found, ParsedCommand):
        command, settings = found.command, gateway.settings
        hidden = hidden_commands(settings.gateway.admin_commands, admin=caller.owner == settings.owner)
        if command.name in hidden and not command.terminal_only:
            return TurnResult(FOR_ADMINS, await _where(call, place))
        if command.unstored or (command.takes_message and found.argument):
            # The command is not stored, or it stores its message itself.
            desk = gateway.command_context(place.key, caller.owner)
            desk = replace(desk, account=account, update_id=update_id, only_into=only_into, hidden_commands=hidden)
            said = await run_command(desk, found)
            gateway.worker.wake(place.key)
            return TurnResult(said.text, await _where(call, place))
    row, new = await gateway.lifecycle.accept(inbound, only_into=only_into)
    gateway.inbound.accepted += new
    if not new:
        gateway.rate_limiter.refund(caller.owner)
    if (row.inbound.key, row.inbound.owner) != (place.key, caller.owner) or row.inbound.text not in ("", text):
        raise _used_before()
    return _TurnFollower(call, place, text, row, new, every_word=every_word)


async def _was_taken(call: ApiCall, inbound: Inbound) -> bool:
    """Return true for a repeated message, which must not even move the conversation."""
    if inbound.update_id is None:
        return False
    return await call.gateway.store.read_inline(lambda uow: uow.inbox.known(inbound)) is not None


def _used_before() -> HttpError:
    return HttpError(409, f"this {IDEMPOTENCY_HEADER} was used for another message", "idempotency_key_used")


async def _where(call: ApiCall, place: Conversation) -> str:
    here = await call.gateway.lifecycle.current(place.key)
    return here.session_id if here is not None and here.owner == call.caller.owner else ""


class _TurnFollower:
    """Follows one message until it is answered. `leave` must always be called."""

    def __init__(
        self, call: ApiCall, place: Conversation, text: str, row: InboxRow, new: bool, *, every_word: bool
    ) -> None:
        self._call, self._place, self._text, self._row, self._new = call, place, text, row, new
        self._heard = call.site.wait()
        self._turn_id = ""
        worker = call.gateway.worker
        if new:
            worker.subscribe(row.id, self._hear_every_word if every_word else self._hear_the_ends)
            worker.submit(row, call.gateway.inbound.busy_mode(HTTP))
        elif row.state is InboxState.WAITING:
            worker.wake(row.inbound.key)

    def _hear_every_word(self, heard: object) -> None:
        """Queue every event; unsubscribe a client that does not read."""
        if not isinstance(heard, TextWritten | ToolBegan | Retrying | _ENDS):
            # Other events are not sent, and would delay the batch of words.
            return
        if self._heard.qsize() >= HEARD_MAX:
            self._call.gateway.worker.unsubscribe(self._row.id)
        if self._heard.qsize() <= HEARD_MAX:
            self._heard.put_nowait(heard if self._heard.qsize() < HEARD_MAX else ReaderTooSlow())

    def _hear_the_ends(self, heard: object) -> None:
        """Queue only the beginning and the end: the client wants the whole answer."""
        if isinstance(heard, _ENDS):
            self._heard.put_nowait(heard)

    @property
    def is_more_there(self) -> bool:
        """Return true if `next` would not wait."""
        return not self._heard.empty()

    async def leave(self) -> None:
        self._call.site.waits.discard(self._heard)
        if self._new:
            self._call.gateway.worker.unsubscribe(self._row.id)

    async def next(self) -> Heard:
        """Return the next event. Raise `HttpError` if there will be no answer."""
        while True:
            try:
                heard = await self._soon()
            except TimeoutError:
                if (stored := await self._stored()) is not None:
                    return stored
                continue
            match heard:
                case TurnBegan():
                    self._turn_id = heard.ticket.turn_id
                    return TurnStarted(heard.ref.session_id, heard.ticket.turn_id)
                case TextWritten() | ToolBegan() | Retrying():
                    return heard
                case TurnEnded():
                    return self._ended(heard)
                case CommandAnswered():
                    return TurnResult(_in_words(heard.result), await _where(self._call, self._place))
                case MessageSetAside() | ReaderTooSlow() | ServerStopping():
                    raise self._no_answer(heard)
                case _:
                    pass

    async def _soon(self) -> object:
        if self.is_more_there:
            # Words arrive in batches: a timer for each would cost more CPU than the words.
            return self._heard.get_nowait()
        async with asyncio.timeout(LOOK_S if self._new else LOOK_AGAIN_S):
            return await self._heard.get()

    def _ended(self, heard: TurnEnded) -> TurnResult:
        committed = heard.committed
        session_id = committed.ref.session_id
        if committed.status in (TurnStatus.LATE, TurnStatus.HIDDEN):
            raise self._left(session_id)
        if not heard.text:
            problem = _unanswered(heard, guest=self._call.guest)
            problem.headers |= conversation_headers(self._place, session_id, self._turn_id)
            raise problem
        finish = "length" if heard.problem else "stop"
        return TurnResult(heard.text, session_id, self._turn_id, heard.model, heard.usage, finish)

    async def _stored(self) -> TurnResult | None:
        """Read the answer from the store; `None` if there is none yet."""
        row, turn = await self._call.gateway.store.read(self._look)
        if row is None:
            raise refusals.no_such_session()
        if row.state is InboxState.SET_ASIDE or (turn is not None and turn.status is TurnStatus.SET_ASIDE):
            raise self._left(row.session_id or "")
        if row.state is not InboxState.DONE:
            return None
        if row.inbound.command:
            return TurnResult(DONE_BEFORE, await _where(self._call, self._place))
        if turn is None or turn.status in (TurnStatus.LATE, TurnStatus.HIDDEN):
            raise self._left(row.session_id or "")
        if self._text not in [m.content for m in turn.messages if m.role is Role.USER]:
            raise _used_before()
        said = [m.content for m in turn.messages if m.role is Role.ASSISTANT and m.content and not m.tool_calls]
        if not said:
            raise HttpError(502, "there was no answer", "no_answer", conversation_headers(self._place, turn.session_id))
        return TurnResult(said[-1], turn.session_id, turn.turn_id)

    def _look(self, uow: UnitOfWork) -> tuple[InboxRow | None, Turn | None]:
        row = uow.inbox.get(self._row.id)
        if row is None or row.session_id is None or row.turn_id is None:
            return row, None
        number = uow.turns.number(row.session_id, row.turn_id)
        return row, uow.turns.get(row.session_id, number) if number is not None else None

    def _headers(self, session_id: str = "") -> dict[str, str]:
        return conversation_headers(self._place, session_id)

    def _no_answer(self, heard: MessageSetAside | ReaderTooSlow | ServerStopping) -> HttpError:
        match heard:
            case MessageSetAside():
                return self._left(heard.session_id)
            case ReaderTooSlow():
                return HttpError(408, "this was read too slowly; the answer stands in the session", "too_slow")
            case ServerStopping():
                return limits.stopping(self._headers())

    def _left(self, session_id: str) -> HttpError:
        return HttpError(
            409,
            "the conversation was left before this was answered; the message is kept in the session it was in",
            "set_aside",
            self._headers(session_id),
        )


def _unanswered(heard: TurnEnded, *, guest: bool) -> HttpError:
    if heard.error is not None:
        return to_http_error(heard.error, guest=guest)
    if heard.committed.status is TurnStatus.INTERRUPTED:
        return HttpError(409, f"{_told(heard)}; the message is kept in its session", "stopped")
    return HttpError(502, _told(heard), "no_answer")


def _told(heard: TurnEnded) -> str:
    # The text of a bug may contain anything.
    return INTERNAL_ERROR if heard.problem.startswith(INTERNAL_ERROR) else heard.problem or "there was no answer"


def _in_words(said: CommandResult) -> str:
    return f"{said.text}\n\n{said.document.text}" if said.document is not None else said.text


class _CompletionWriter:
    """Writes an answer in the format of the OpenAI API."""

    def __init__(self, call: ApiCall, place: Conversation, asked: ChatRequest) -> None:
        self._place, self._asked, self._guest = place, asked, call.guest
        self._created = int(call.gateway.clock.now())
        self._id = f"chatcmpl-{call.gateway.new_id()}"

    def at_once(self, ended: TurnResult) -> Response:
        headers = conversation_headers(self._place, ended.session_id, ended.turn_id)
        if self._asked.stream:
            return EventStream(self._few(ended), headers)
        choice = shapes.ChoiceSaid(shapes.MessageSaid(ended.text), ended.finish)
        said = shapes.Completion(
            self._id, self._created, ended.model or shapes.OUR_MODELS[0], [choice], shapes.encode_usage(ended.usage)
        )
        return Response(msgspec.json.encode(said), 200, headers, "application/json")

    async def _few(self, ended: TurnResult) -> AsyncGenerator[bytes, None]:
        yield self._piece(shapes.Delta("assistant", ended.text))
        for piece in self._last(ended):
            yield piece

    async def chunks(self, following: _TurnFollower) -> AsyncGenerator[bytes, None]:
        """Stream the words, batched as they arrive, and the end once the turn is stored."""
        written, unsent = "", [self._piece(shapes.Delta("assistant"))]
        try:
            while True:
                if unsent and not following.is_more_there:
                    yield b"".join(unsent)
                    unsent.clear()
                heard = await following.next()
                if isinstance(heard, TurnResult):
                    break
                if isinstance(heard, TextWritten):
                    written += heard.text
                    unsent.append(self._piece(shapes.Delta(content=heard.text)))
                elif written and isinstance(heard, ToolBegan | Retrying):
                    written = ""
                    again = BEGINS_AGAIN if isinstance(heard, Retrying) else "\n\n"
                    unsent.append(self._piece(shapes.Delta(content=again)))
            if rest := _rest(heard.text, written):
                unsent.append(self._piece(shapes.Delta(content=rest)))
            unsent += self._last(heard)
        except Exception as error:  # noqa: BLE001 - the status is sent: report it in the stream
            unsent.append(event(to_http_error(error, guest=self._guest).body))
        yield b"".join(unsent)

    def _last(self, ended: TurnResult) -> list[bytes]:
        pieces = [self._piece(shapes.Delta(), ended.finish)]
        if self._asked.wants_usage:
            usage = shapes.encode_usage(ended.usage)
            pieces.append(event(shapes.Chunk(self._id, self._created, shapes.OUR_MODELS[0], [], usage)))
        return [*pieces, DONE]

    def _piece(self, delta: shapes.Delta, finish: str | None = None) -> bytes:
        choices = [shapes.ChoiceDelta(delta, finish)]
        return event(shapes.Chunk(self._id, self._created, shapes.OUR_MODELS[0], choices))


def _rest(text: str, written: str) -> str:
    """Return the part of the stored answer that was not streamed."""
    return text.removeprefix(written) if text.startswith(written) else f"\n\n{text}"
