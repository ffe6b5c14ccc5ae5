"""Server-sent events, read from bytes that may be split anywhere.

Characters that come in halves: servers written in JavaScript count in half characters when they cut a text.

Pieces of an answer that have arrived together, passed on together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from everthread.ports.model import Delta

LINE_BYTES_MAX = 32 * 1024 * 1024
TOTAL_BYTES_MAX = 256 * 1024 * 1024
# It may stand at the start of a text, and says nothing.
_MARK = b"\xef\xbb\xbf"


class Event(NamedTuple):
    name: bytes
    data: bytes


class TooMuch(Exception):
    """The stream is beyond a limit."""


class EventParser:
    """Takes bytes as they come, gives the events that are whole. Comments and events without data are left out."""

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX, total_bytes_max: int = TOTAL_BYTES_MAX) -> None:
        self._line_max = line_bytes_max
        self._total_max = total_bytes_max
        self._total = 0
        # The pieces of a line that has no end yet: joined once, so that a long line costs its length only.
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._after_cr = False
        self._is_first = True
        self._name = b""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[Event]:
        self._total += len(chunk)
        if self._total > self._total_max:
            raise TooMuch(f"more than {self._total_max} bytes")
        if not chunk:
            return []
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        events: list[Event] = []
        self._after_cr = chunk.endswith(b"\r")
        lines = chunk.splitlines()
        unended = lines.pop() if lines and not chunk.endswith((b"\n", b"\r")) else b""
        for line in lines:
            self._end_line(line, events)
        if unended:
            self._keep(unended)
        return events

    def end(self) -> list[Event]:
        """What was left open: some servers end with their last line, others in the middle of it."""
        events: list[Event] = []
        self._end_line(b"", events)
        self._end_line(b"", events)
        return events

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._pieces_bytes += len(piece)
        self._check(self._pieces_bytes)

    def _end_line(self, line: bytes, events: list[Event]) -> None:
        if self._pieces:
            line = b"".join((*self._pieces, line))
            self._pieces.clear()
            self._pieces_bytes = 0
        if self._is_first:
            line, self._is_first = line.removeprefix(_MARK), False
        if line:
            self._check(len(line) + self._data_bytes)
            self._field(line)
            return
        if self._data:
            events.append(Event(self._name, b"\n".join(self._data)))
            self._data, self._data_bytes = [], 0
        self._name = b""

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value)
        elif name == b"event":
            self._name = value

    def _check(self, size: int) -> None:
        if size > self._line_max:
            raise TooMuch(f"an event of more than {self._line_max} bytes")


T = TypeVar("T")


def decoded(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """As the decoder would have it, but half characters are let through: see `Halves`. Raises `ValueError`, or
    `RecursionError` for what is nested too deeply."""
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        # Only a string with a half character in it is refused for its escapes.
        if b"\\ud" not in data and b"\\uD" not in data:
            raise
    return msgspec.convert(json.loads(data), decoder.type)


def joined(text: str) -> str:
    """The text with halves that belong together made one; a half that is alone is replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Halves:
    """A text in pieces: the first half of a character is kept back until the second one comes."""

    def __init__(self) -> None:
        self._first = ""

    def add(self, piece: str) -> str:
        if not self._first and piece.isascii():
            return piece
        if not piece:
            return ""
        piece = self._first + piece
        self._first = ""
        if "\ud800" <= piece[-1:] <= "\udbff":
            piece, self._first = piece[:-1], piece[-1]
        return joined(piece)


def joined_up(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """Neighbours of one kind as one. What came before an error is passed on before it."""
    texts: list[str] = []
    reasonings: list[str] = []
    try:
        for delta in deltas:
            if (reasonings and delta.text) or (texts and delta.reasoning):
                yield Delta("".join(texts), "".join(reasonings))
                texts, reasonings = [], []
            if delta.text:
                texts.append(delta.text)
            if delta.reasoning:
                reasonings.append(delta.reasoning)
    except Exception:
        if texts or reasonings:
            yield Delta("".join(texts), "".join(reasonings))
        raise
    if texts or reasonings:
        yield Delta("".join(texts), "".join(reasonings))
