"""Compression policy: thresholds, the turns that a summary covers, and its gain. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from everthread.agent.model_call import bytes_of
from everthread.config.schema import CompressionSettings
from everthread.domain.model import Message, Role, Turn
from everthread.domain.spend import BYTES_PER_TOKEN

READS_TOKENS_MIN = 16_000
"""The smallest context of a summarising model. A smaller one would have to summarise its own summaries."""
STOP_SHARE = 0.85
"""Share of the context window beyond which the next turn might not fit."""
ROOM_SHARE = 0.9
"""Share of the room for history beyond which old turns would soon be left out."""
TAIL_SHARE = 1 / 3
"""Largest share of the threshold that kept turns may take, so that the threshold is not soon reached again."""
SAVED_SHARE_MIN = 0.1
POOR_PASSES_MAX = 2
BULKY_CHARS_MAX = 800
"""Limit for the result and the arguments of an old tool call."""
EXTRACT_CHARS_MAX = 12_000
_LINE_CHARS_MAX = 160

EXTRACT_NAME = (
    "[A mechanical extract, no summary: it has only the first words of what was said. The whole conversation is "
    "stored; search it before you say that something was not mentioned.]"
)


class ContextFill(Struct, frozen=True):
    """Fill level of a conversation's context window."""

    head_bytes: int
    history_bytes: int
    room_bytes: int
    """Room for history; beyond it, old turns are left out."""
    context_tokens: int = 0
    """Tokens of the last call as the model counted them; 0 if unknown."""
    too_long: bool = False
    """Old turns are left out already, or the model has rejected a request as too long."""

    @property
    def tokens(self) -> int:
        return self.context_tokens or (self.head_bytes + self.history_bytes) // BYTES_PER_TOKEN


class Bounds(Struct, frozen=True):
    """Thresholds for one model. `refusal` is the reason why it cannot be compressed; empty if it can."""

    threshold_tokens: int
    stop_tokens: int
    tail_tokens: int
    refusal: str = ""


class Urgency(Enum):
    NONE = 0
    SOON = 1
    """Compress in the background."""
    NOW = 2
    """Compress before the next turn."""


class Cut(Struct, frozen=True):
    """The turns that a summary covers and the turns that are kept: together all turns, in order."""

    covered: tuple[Turn, ...]
    kept: tuple[Turn, ...]


class Gain(Struct, frozen=True):
    """Tokens before and after a pass; `poor` if it saved too little."""

    tokens_before: int
    tokens_after: int
    poor: bool


def bounds(settings: CompressionSettings, window_tokens: int, reads_tokens: int, reader: str) -> Bounds:
    """Compute the thresholds. The reader needs no headroom: it reads in as many pieces as necessary."""
    threshold = min(int(window_tokens * settings.share), reads_tokens)
    refusal = ""
    if reads_tokens < READS_TOKENS_MIN:
        refusal = (
            f"{reader} has a context of {reads_tokens:,} tokens, but summaries need {READS_TOKENS_MIN:,}; "
            "set auxiliary_model to a model with a larger context"
        )
    return Bounds(
        threshold,
        max(threshold, int(window_tokens * STOP_SHARE)),
        min(settings.tail_tokens, int(threshold * TAIL_SHARE)),
        refusal,
    )


def urgency(fill: ContextFill, within: Bounds, coming_tokens: int = 0) -> Urgency:
    """Decide when to compress. `coming_tokens` is the size of the next message to answer."""
    if fill.too_long or fill.history_bytes > fill.room_bytes or fill.tokens >= within.stop_tokens:
        return Urgency.NOW
    # If the conversation is short, a summary would not make room for a message that is too large.
    if fill.tokens > 2 * within.tail_tokens and fill.tokens + coming_tokens >= within.stop_tokens:
        return Urgency.NOW
    if fill.tokens >= within.threshold_tokens or fill.history_bytes >= fill.room_bytes * ROOM_SHARE:
        return Urgency.SOON
    return Urgency.NONE


def cut(turns: Sequence[Turn], tail_tokens: int, newest_tokens_max: int) -> Cut:
    """Keep the newest whole turns that fit into the tail. A call and its result belong to one turn and stay together.

    The newest turn is kept even if it does not fit, unless it is larger than `newest_tokens_max`.
    """
    room = tail_tokens * BYTES_PER_TOKEN
    at = len(turns)
    while at > 0 and (size := size_of(turns[at - 1])) <= room:
        room -= size
        at -= 1
    if at == len(turns) > 0 and size_of(turns[-1]) <= newest_tokens_max * BYTES_PER_TOKEN:
        at -= 1
    return Cut(tuple(turns[:at]), tuple(turns[at:]))


def gain(fill: ContextFill, within: Bounds, *, covered_bytes: int, kept_bytes: int, added_bytes: int) -> Gain:
    """Compute the gain of a summary on the whole window. One that stays above the threshold counts as poor.

    `added_bytes` is the growth over the previous summary, which is part of the head.
    """
    before = fill.head_bytes + covered_bytes + kept_bytes
    after = fill.head_bytes + kept_bytes + added_bytes
    tokens_after = fill.tokens * after // max(fill.head_bytes + fill.history_bytes, 1)
    poor = before - after < before * SAVED_SHARE_MIN or tokens_after >= within.threshold_tokens
    return Gain(fill.tokens, tokens_after, poor)


def size_of(turn: Turn) -> int:
    """Approximate size of a turn in a request, in bytes."""
    return sum(bytes_of(text) for message in turn.messages for text in message.texts())


# --- Input of the summary --------------------------------------------------------------------------------------------


def prune(turn: Turn) -> Turn:
    """Shorten the arguments and results of the turn's tool calls to their beginning and end."""
    return replace(turn, messages=tuple(_prune_message(message) for message in turn.messages))


def _prune_message(message: Message) -> Message:
    calls = tuple(
        replace(call, arguments=shorten_middle(call.arguments, BULKY_CHARS_MAX)) for call in message.tool_calls
    )
    content = shorten_middle(message.content, BULKY_CHARS_MAX) if message.role is Role.TOOL else message.content
    return replace(message, content=content, tool_calls=calls, reasoning=None, thought=None)


def shorten_middle(text: str, chars_max: int) -> str:
    """Shorten a long text to its beginning and end, with the number of characters left out."""
    if len(text) <= chars_max:
        return text
    begin, end = text[: chars_max * 2 // 3], text[-(chars_max // 3) :]
    return f"{begin} [... {len(text) - len(begin) - len(end):,} characters left out ...] {end}"


# --- Mechanical extract ----------------------------------------------------------------------------------------------


def extract(previous: str, turns: Sequence[Turn]) -> str:
    """Build an extract without a model: the previous summary and the first words of each turn.

    The newest turns take precedence if there is not enough room.
    """
    room = EXTRACT_CHARS_MAX - len(EXTRACT_NAME)
    earlier = shorten_middle(previous.removeprefix(EXTRACT_NAME).strip(), room // 2)
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
