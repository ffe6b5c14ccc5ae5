"""When a conversation is compressed, what a summary covers, and whether it was worth it: pure decisions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from everthread.config.settings import Compression
from everthread.domain.model import Message, Role, Turn
from everthread.domain.spend import BYTES_PER_TOKEN

READS_TOKENS_MIN = 16_000
"""Whoever reads less at once would have to summarise its own summaries."""
STOP_SHARE = 0.85
"""Of the window: beyond it the next turn might not fit."""
ROOM_SHARE = 0.9
"""Of the room that history has: beyond it old turns would soon be left out."""
TAIL_SHARE = 1 / 3
"""Of the threshold, at most: what is kept must leave the threshold far away."""
SAVED_SHARE_MIN = 0.1
POOR_PASSES_MAX = 2
BULKY_CHARS_MAX = 800
"""Of a tool's old output, and of what it was called with."""
EXTRACT_CHARS_MAX = 12_000
_LINE_CHARS_MAX = 160

EXTRACT_NAME = (
    "[A mechanical extract, no summary: it has only the first words of what was said. The whole conversation is "
    "stored; search it before you say that something was not mentioned.]"
)


class Fill(Struct, frozen=True):
    """How full the window of a conversation is."""

    head_bytes: int
    history_bytes: int
    room_bytes: int
    """For the history, before old turns are left out."""
    context_tokens: int = 0
    """What the last call took, as the model counts; 0 if it did not say."""
    too_long: bool = False
    """Old turns are left out already, or the model has said that it can't read so much."""

    @property
    def tokens(self) -> int:
        return self.context_tokens or (self.head_bytes + self.history_bytes) // BYTES_PER_TOKEN


class Bounds(Struct, frozen=True):
    """What holds for a conversation with one model. `refusal` says why it can't be compressed, if it can't."""

    threshold_tokens: int
    stop_tokens: int
    tail_tokens: int
    refusal: str = ""


class Urgency(Enum):
    NONE = 0
    SOON = 1
    """In the background."""
    NOW = 2
    """Before the next turn."""


class Cut(Struct, frozen=True):
    """Which turns a summary stands for, and which stay as they are. Together they are all of them, in order."""

    covered: tuple[Turn, ...]
    kept: tuple[Turn, ...]


class Gain(Struct, frozen=True):
    """What a pass came to."""

    tokens_before: int
    tokens_after: int
    poor: bool


def bounds(settings: Compression, window_tokens: int, reads_tokens: int, reader: str) -> Bounds:
    """No head-room is taken off what the reader can read: it reads in as many pieces as it needs."""
    threshold = min(int(window_tokens * settings.share), reads_tokens)
    refusal = ""
    if reads_tokens < READS_TOKENS_MIN:
        refusal = (
            f"{reader} reads {reads_tokens:,} tokens at once, and {READS_TOKENS_MIN:,} are needed to summarise a "
            "conversation; set auxiliary_model to a model with a larger context"
        )
    return Bounds(
        threshold,
        max(threshold, int(window_tokens * STOP_SHARE)),
        min(settings.tail_tokens, int(threshold * TAIL_SHARE)),
        refusal,
    )


def urgency(fill: Fill, within: Bounds, coming_tokens: int = 0) -> Urgency:
    """`coming_tokens` are those of a message that is to be answered next."""
    if fill.too_long or fill.history_bytes > fill.room_bytes or fill.tokens >= within.stop_tokens:
        return Urgency.NOW
    # A message that is too large for a short conversation as well would not be helped by a summary of that.
    if fill.tokens > 2 * within.tail_tokens and fill.tokens + coming_tokens >= within.stop_tokens:
        return Urgency.NOW
    if fill.tokens >= within.threshold_tokens or fill.history_bytes >= fill.room_bytes * ROOM_SHARE:
        return Urgency.SOON
    return Urgency.NONE


def cut(turns: Sequence[Turn], tail_tokens: int, newest_tokens_max: int) -> Cut:
    """Keep the newest whole turns that fit into the tail; a call and its result are of one turn, and stay together.

    The newest is kept even if it does not fit, unless it is too large to be gone on with at all.
    """
    room = tail_tokens * BYTES_PER_TOKEN
    at = len(turns)
    while at > 0 and (size := size_of(turns[at - 1])) <= room:
        room -= size
        at -= 1
    if at == len(turns) > 0 and size_of(turns[-1]) <= newest_tokens_max * BYTES_PER_TOKEN:
        at -= 1
    return Cut(tuple(turns[:at]), tuple(turns[at:]))


def gain(fill: Fill, within: Bounds, *, covered_bytes: int, kept_bytes: int, added_bytes: int) -> Gain:
    """What a summary saves of the whole window. One that leaves too little room saves too little.

    `added_bytes` is what the summary has more than the one before it, which is part of the head.
    """
    before = fill.head_bytes + covered_bytes + kept_bytes
    after = fill.head_bytes + kept_bytes + added_bytes
    tokens_after = fill.tokens * after // max(fill.head_bytes + fill.history_bytes, 1)
    poor = before - after < before * SAVED_SHARE_MIN or tokens_after >= within.threshold_tokens
    return Gain(fill.tokens, tokens_after, poor)


def size_of(turn: Turn) -> int:
    """In bytes, about as much as it takes in a request."""
    return sum(bytes_of(text) for message in turn.messages for text in message.texts())


def bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


# --- What is read of the turns ---------------------------------------------------------------------------------------


def pruned(turn: Turn) -> Turn:
    """The turn as it is read for a summary: of what tools were told and said, the beginning and the end."""
    return replace(turn, messages=tuple(_pruned(message) for message in turn.messages))


def _pruned(message: Message) -> Message:
    calls = tuple(replace(call, arguments=shortened(call.arguments, BULKY_CHARS_MAX)) for call in message.tool_calls)
    content = shortened(message.content, BULKY_CHARS_MAX) if message.role is Role.TOOL else message.content
    return replace(message, content=content, tool_calls=calls, reasoning=None, thought=None)


def shortened(text: str, chars_max: int) -> str:
    """The beginning and the end of a long text, and how much is missing between them."""
    if len(text) <= chars_max:
        return text
    begin, end = text[: chars_max * 2 // 3], text[-(chars_max // 3) :]
    return f"{begin} [... {len(text) - len(begin) - len(end):,} characters left out ...] {end}"


# --- In place of a summary -------------------------------------------------------------------------------------------


def extract(previous: str, turns: Sequence[Turn]) -> str:
    """What can be had without a model: the summary so far, and of each turn the first words; the newest go first."""
    room = EXTRACT_CHARS_MAX - len(EXTRACT_NAME)
    earlier = shortened(previous.removeprefix(EXTRACT_NAME).strip(), room // 2)
    room -= len(earlier)
    lines: list[str] = []
    for turn in reversed(turns):
        line = f"- turn {turn.number}: {_first_words(turn.user_text)} -> {_first_words(turn.assistant_text)}"
        room -= len(line) + 1
        if room < 0:
            lines.append(f"- {len(turns) - len(lines):,} turns before these are left out here")
            break
        lines.append(line)
    return "\n".join(part for part in (EXTRACT_NAME, earlier, *reversed(lines)) if part)


def _first_words(text: str) -> str:
    line = " ".join(text[: 4 * _LINE_CHARS_MAX].split())
    return line if len(line) <= _LINE_CHARS_MAX else f"{line[:_LINE_CHARS_MAX]}..."
