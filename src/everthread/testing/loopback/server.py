"""Server of the loopback platform. It runs in a process of its own, outlives the gateway and logs what users see.

    python -m everthread.testing.loopback.server --port 0 [--state FILE] [--repeats]

prints its port as one line. Bots call `/poll`, `/send`, `/edit` and `/typing`; tests call the paths below `/admin/`.
The server is as strict as real platforms: it refuses messages that are too long, and delivers an update again until a
higher offset acknowledges it. With a state file, the server itself survives a kill and restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from everthread.testing.loopback import protocol as wire
from everthread.testing.model_server.http import HttpServer, process_parser, read_request, respond

TEXT_CHARS_MAX = 4000
WAIT_S_MAX = 60.0

T = TypeVar("T")

_ANSWERS = {"busy": 429, "error": 500, "unavailable": 503, "refuse": 403}


class InvalidCall(Exception):
    """Invalid call."""


class PlatformState:
    """State of the platform. Each change is a record; replaying the records restores the state."""

    def __init__(self, file: BinaryIO | None = None, repeats: bool = False) -> None:
        self.queue: dict[int, wire.PostedUpdate] = {}
        self.seen: list[wire.ChatEvent] = []
        self.acknowledged = 0
        self.repeats = repeats
        self._file = file
        self._posted = 0
        self._messages: dict[str, str] = {}
        self._sent_as: dict[str, str] = {}
        self._known: dict[str, wire.UserMessage] = {}

    def read(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._change(msgspec.json.decode(line, type=_Record))

    def say(self, said: wire.UserMessage, update_id: str = "") -> wire.PostedUpdate:
        """Queue a message. With a known update id, only deliver that update again."""
        self._write(_Record(time.time(), said=said, id=update_id or str(self._posted)))
        return self.queue[self._posted - 1]

    def again(self, update_id: str) -> wire.PostedUpdate:
        if update_id not in self._known:
            raise InvalidCall("no such update")
        return self.say(self._known[update_id], update_id)

    def acknowledge(self, offset: int) -> None:
        if offset > self.acknowledged:
            self._write(_Record(time.time(), offset=min(offset, self._posted)))

    def send(self, send: wire.Send) -> str:
        if not send.text.strip() or len(send.text) > TEXT_CHARS_MAX:
            raise InvalidCall("the text is empty or too long")
        if not self.repeats and send.id in self._sent_as:
            return self._sent_as[send.id]
        self._write(_Record(time.time(), send=send))
        return self._sent_as[send.id]

    def edit(self, edit: wire.Edit) -> None:
        if not edit.text.strip() or len(edit.text) > TEXT_CHARS_MAX:
            raise InvalidCall("the text is empty or too long")
        if self._messages.get(edit.message_id) != edit.chat:
            raise InvalidCall("no such message there")
        self._write(_Record(time.time(), edit=edit))

    def _write(self, record: _Record) -> None:
        if self._file is not None:
            self._file.write(msgspec.json.encode(record) + b"\n")
            self._file.flush()
        self._change(record)

    def _change(self, record: _Record) -> None:
        number, at = len(self.seen), record.at
        if record.said is not None:
            said = record.said
            self.queue[self._posted] = wire.PostedUpdate(self._posted, record.id, said)
            self._posted += 1
            if record.id not in self._known:
                self._known[record.id] = said
                self.seen.append(wire.ChatEvent(number, at, "said", said.chat, said.text, record.id, "", said.thread))
        elif record.send is not None:
            send, message_id = record.send, f"msg-{len(self._messages)}"
            self._messages[message_id] = send.chat
            self._sent_as[send.id] = message_id
            line = wire.ChatEvent(
                number, at, "sent", send.chat, send.text, message_id, send.id, send.thread, send.buttons
            )
            self.seen.append(line)
        elif record.edit is not None:
            edit = record.edit
            line = wire.ChatEvent(number, at, "edited", edit.chat, edit.text, edit.message_id, buttons=edit.buttons)
            self.seen.append(line)
        elif record.offset is not None:
            for done in range(self.acknowledged, record.offset):
                self.queue.pop(done, None)
            self.acknowledged = record.offset


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    at: float
    id: str = ""
    said: wire.UserMessage | None = None
    send: wire.Send | None = None
    edit: wire.Edit | None = None
    offset: int | None = None


class LoopbackServer(HttpServer):
    def __init__(self, state: PlatformState) -> None:
        super().__init__()
        self.state = state
        self.typing = 0
        self.calls: Counter[str] = Counter()
        self._faults: list[wire.Fault] = []
        self._change = asyncio.Condition()
        self._acts: dict[str, Callable[[bytes], Awaitable[object]]] = {
            "/poll": _reading(wire.Poll, self._poll),
            "/send": _reading(wire.Send, self._send),
            "/edit": _reading(wire.Edit, lambda edit: self._changed(lambda: state.edit(edit))),
            "/typing": _reading(wire.Typing, self._show_typing),
            "/admin/say": _reading(list[wire.UserMessage], lambda all_: self._changed(lambda: [*map(state.say, all_)])),
            "/admin/redeliver": _reading(str, lambda update: self._changed(lambda: state.again(update))),
            "/admin/fault": _reading(wire.Fault, self._break),
            "/admin/heal": _reading(None, self._heal),
            "/admin/watch": _reading(wire.LogRequest, self._watch),
            "/admin/dump": _reading(None, self._dump),
        }

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        method, received = await read_request(reader)
        self.calls[received.path] += 1
        act = self._acts.get(received.path)
        try:
            if method != "POST" or act is None:
                raise InvalidCall("no such path")
            fault = self._next_fault(received.path, received.body)
            if fault is not None and fault.kind in _ANSWERS:
                status = _ANSWERS[fault.kind]
                headers = {"Retry-After": str(fault.seconds)} if status == 429 else {}
                return await respond(writer, status, b"{}", headers)
            if fault is not None and fault.kind == "drop_before":
                return False
            if fault is not None and fault.kind == "delay":
                await asyncio.sleep(fault.seconds)
            answer = await act(received.body)
            if fault is not None and fault.kind == "drop_after":
                return False
        except (InvalidCall, msgspec.MsgspecError, UnicodeDecodeError) as error:
            return await respond(writer, 400, msgspec.json.encode({"error": str(error)}))
        return await respond(writer, 200, msgspec.json.encode(answer))

    async def _send(self, send: wire.Send) -> dict[str, str]:
        return {"message_id": await self._changed(lambda: self.state.send(send))}

    async def _show_typing(self, _: wire.Typing) -> None:
        self.typing += 1

    async def _break(self, fault: wire.Fault) -> None:
        self._faults.append(fault)

    async def _heal(self, _: None) -> None:
        self._faults.clear()

    async def _dump(self, _: None) -> wire.ServerState:
        return wire.ServerState(
            tuple(self.state.seen), self.state.acknowledged, len(self.state.queue), self.typing, dict(self.calls)
        )

    def _next_fault(self, path: str, body: bytes) -> wire.Fault | None:
        call = path.removeprefix("/")
        if call.startswith("admin/"):
            return None
        for number, fault in enumerate(self._faults):
            if fault.call in (None, call) and (fault.chat is None or fault.chat == _chat_of(body)):
                left = msgspec.structs.replace(fault, times=fault.times - 1)
                self._faults[number : number + 1] = [left] if left.times > 0 else []
                return fault
        return None

    async def _poll(self, poll: wire.Poll) -> list[wire.PostedUpdate]:
        self.state.acknowledge(poll.offset)

        def read() -> list[wire.PostedUpdate]:
            return [one for one in list(self.state.queue.values())[: poll.limit] if one.number >= poll.offset]

        return await self._wait_for(read, poll.timeout_s)

    async def _watch(self, watch: wire.LogRequest) -> list[wire.ChatEvent]:
        return await self._wait_for(lambda: self.state.seen[watch.after :], watch.timeout_s)

    async def _wait_for(self, read: Callable[[], list[T]], timeout_s: float) -> list[T]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(timeout_s, WAIT_S_MAX)), self._change:
                await self._change.wait_for(lambda: bool(read()))
        return read()

    async def _changed(self, change: Callable[[], T]) -> T:
        async with self._change:
            result = change()
            self._change.notify_all()
            return result


def _reading(kind: Any, act: Callable[[Any], Awaitable[object]]) -> Callable[[bytes], Awaitable[object]]:
    return lambda body: act(msgspec.json.decode(body, type=kind))


class _AnyCall(msgspec.Struct):
    chat: str | None = None


def _chat_of(body: bytes) -> str | None:
    return msgspec.json.decode(body, type=_AnyCall).chat


def main() -> None:
    parser = process_parser("loopback.server", "Messaging platform for tests.")
    parser.add_argument("--state", metavar="FILE", help="store the state in this file, and restore it at start")
    parser.add_argument("--repeats", action="store_true", help="show a message again that is sent twice under one id")
    options = parser.parse_args()
    with contextlib.ExitStack() as files:
        file = files.enter_context(Path(options.state).open("a+b")) if options.state else None
        state = PlatformState(file, options.repeats)
        if file is not None:
            file.seek(0)
            state.read(file.readlines())
        LoopbackServer(state).run_as_process(options.port)


if __name__ == "__main__":
    main()
