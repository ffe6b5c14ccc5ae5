"""Parser of server-sent events, joiner of split surrogate pairs, and merging of deltas.

Servers written in JavaScript cut texts by UTF-16 units, so a character can arrive as two lone surrogates.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from everthread.ports.model import Delta

LINE_BYTES_MAX = 32 * 1024 * 1024
TOTAL_BYTES_MAX = 256 * 1024 * 1024
# Byte order mark: allowed at the start, and ignored.
_BOM = b"\xef\xbb\xbf"
# As numbers: `b"\n" in data` tries to convert the bytes to a number first, which takes longer than the search.
_LF, _CR = b"\n\r"


class SseEvent(NamedTuple):
    name: bytes
    data: bytes


class StreamTooLarge(Exception):
    """The stream exceeds a limit."""


class EventParser:
    """Incremental parser: feed bytes, get complete events. Comments and events without data are skipped."""

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX, total_bytes_max: int = TOTAL_BYTES_MAX) -> None:
        self._line_max = line_bytes_max
        self._total_max = total_bytes_max
        self._total = 0
        # Pieces of an incomplete line, joined once: a long line takes linear time.
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._after_cr = False
        self._is_first = True
        self._name = b""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        self._total += len(chunk)
        if self._total > self._total_max:
            raise StreamTooLarge(f"more than {self._total_max} bytes")
        if not chunk:
            return []
        if (usual := self._split_usual(chunk)) is not None:
            return usual
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        events: list[SseEvent] = []
        self._after_cr = chunk.endswith(b"\r")
        lines = chunk.splitlines()
        rest = lines.pop() if lines and not chunk.endswith((b"\n", b"\r")) else b""
        for line in lines:
            self._end_line(line, events)
        if rest:
            self._keep(rest)
        return events

    def end(self) -> list[SseEvent]:
        """Return the last event: some servers end without a blank line, or without a line break."""
        events: list[SseEvent] = []
        self._end_line(b"", events)
        self._end_line(b"", events)
        return events

    def _split_usual(self, chunk: bytes) -> list[SseEvent] | None:
        """Split a chunk of complete events with one data line each, which most are, faster than line by line.

        Returns None for any other chunk.
        """
        if self._pieces or self._data or self._name or not chunk.endswith(b"\n\n"):
            return None
        if _CR in chunk or len(chunk) > self._line_max:
            return None
        events: list[SseEvent] = []
        for block in chunk[:-2].split(b"\n\n"):
            if not block.startswith(b"data: ") or _LF in block:
                return None
            events.append(SseEvent(b"", block[6:]))
        self._is_first = self._after_cr = False
        return events

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._pieces_bytes += len(piece)
        self._check(self._pieces_bytes)

    def _end_line(self, line: bytes, events: list[SseEvent]) -> None:
        if self._pieces:
            line = b"".join((*self._pieces, line))
            self._pieces.clear()
            self._pieces_bytes = 0
        if self._is_first:
            line, self._is_first = line.removeprefix(_BOM), False
        if line:
            self._check(len(line) + self._data_bytes)
            self._field(line)
            return
        if self._data:
            events.append(SseEvent(self._name, b"\n".join(self._data)))
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
            raise StreamTooLarge(f"an event of more than {self._line_max} bytes")


T = TypeVar("T")


def decode_json(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode JSON, and allow lone surrogates, which msgspec rejects.

    Raises `ValueError`, or `RecursionError` if it is nested too deeply.
    """
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        # Without a surrogate escape, the JSON is simply invalid.
        if b"\\ud" not in data and b"\\uD" not in data:
            raise
    return msgspec.convert(json.loads(data), decoder.type)


def join_surrogates(text: str) -> str:
    """Join surrogate pairs, and replace lone surrogates."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class SurrogateJoiner:
    """Joins surrogate pairs in a text that arrives in pieces: holds a high surrogate until the low one comes."""

    def __init__(self) -> None:
        self._high = ""

    def add(self, piece: str) -> str:
        if not self._high and piece.isascii():
            return piece
        if not piece:
            return ""
        piece = self._high + piece
        self._high = ""
        if "\ud800" <= piece[-1:] <= "\udbff":
            piece, self._high = piece[:-1], piece[-1]
        return join_surrogates(piece)


def merge_deltas(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """Merge neighbouring deltas of one kind. Deltas before an error are yielded before it is raised."""
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
