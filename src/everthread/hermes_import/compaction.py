"""Recognise conversations that Hermes has summarised: a copied beginning, a summary, a copied end. Pure.

Hermes writes them to a new session, or to the same one, whose older rows it then marks as compacted.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from everthread.domain.export_format import SUMMARY_CHARS_MAX
from everthread.hermes_import.rows import MessageRow, text_of

# Start of a summary, and the markers around the words of a message that a summary was appended to.
_BEGINNINGS = ("[CONTEXT COMPACTION", "[CONTEXT SUMMARY]")
_OLDER_WORDS = "[PRIOR CONTEXT"
_OLDER_WORDS_END = "[END OF PRIOR CONTEXT"
_END = "--- END OF CONTEXT SUMMARY"
_HEAD_MAX = 50

Key = int


class VisibleMessage(Struct, frozen=True):
    """A visible message of a session, and its turn."""

    key: Key
    turn: int
    at: float


class Continuation(Struct, frozen=True):
    """A summarised conversation: its summary, the floor of its visible turns, and its new rows."""

    summary: str | None
    floor: int
    rows: tuple[MessageRow, ...]
    shown: tuple[VisibleMessage, ...]
    """The copies: visible messages from before the summary."""


def key_of(row: MessageRow, text: str | None = None) -> Key:
    """Return a key that is equal for a message and its copies."""
    return hash((row.role, text_of(row.content) if text is None else text, row.tool_call_id, row.tool_calls))


def summary_of(row: MessageRow) -> str | None:
    """Return the summary in a message, if there is one."""
    text = text_of(row.content) if row.role in ("user", "assistant", "system") else ""
    if text.startswith(_OLDER_WORDS) and _OLDER_WORDS_END in text:
        text = text[text.index(_OLDER_WORDS_END) :].partition("\n")[2].lstrip()
    if not text.startswith(_BEGINNINGS):
        return None
    return text.partition(_END)[0].strip()[:SUMMARY_CHARS_MAX]


def split_at_summaries(rows: Sequence[MessageRow], *, continues: bool = False) -> list[list[MessageRow]]:
    """Split the rows of a session at each summary that was made in place.

    A session that `continues` another begins with that session's summary, which is not a split.
    """
    starts = [0]
    compacted = False
    for at, row in enumerate(rows):
        if (compacted or continues) and summary_of(row) is not None:
            if continues:
                continues = False
            elif start := _copied_from(rows, at, starts[-1]):
                starts.append(start)
        compacted = compacted or row.compacted
    return [list(rows[start:end]) for start, end in zip(starts, [*starts[1:], len(rows)], strict=True)]


def summary_time(rows: Sequence[MessageRow]) -> float:
    """Return the time of the summary, else of the first row. Copies around a summary may keep their original times."""
    return next((row.at for row in rows if summary_of(row) is not None), rows[0].at)


def _copied_from(rows: Sequence[MessageRow], at: int, after: int) -> int:
    """Return the start of the copies around a summary; 0 without copies, if the summary came from another session."""
    live = [row for row in rows[: _HEAD_MAX * 2] if not row.rewound][:_HEAD_MAX]
    for count in range(min(len(live), at - after - 1), 0, -1):
        if all(key_of(one) == key_of(other) for one, other in zip(rows[at - count : at], live[:count], strict=True)):
            return at - count
    words = _words_before(rows[at])
    behind = key_of(rows[at], words) if words is not None else key_of(rows[at + 1]) if at + 1 < len(rows) else None
    return at if any(key_of(row) == behind for row in rows[after:at]) else 0


def read_continuation(
    before: Sequence[VisibleMessage], floor: int, last_turn: int, rows: Sequence[MessageRow]
) -> Continuation:
    """Interpret rows that begin with a summary. `before` lists the messages visible until then."""
    at, summary = next(((at, found) for at, row in enumerate(rows) if (found := summary_of(row))), (-1, None))
    if summary is None:
        return Continuation(None, last_turn, tuple(rows), ())
    head = [key_of(row) for row in rows[:at]] == [seen.key for seen in before[:at]]
    kept = () if head else tuple(rows[:at])
    rest = list(rows[at + 1 :])
    keys = [key_of(row) for row in rest]
    if (words := _words_before(rows[at])) is not None:
        rest, keys = [rows[at], *rest], [key_of(rows[at], words), *keys]
    tail = _tail(before, keys)
    pinned = tuple(before[:at]) if head else ()
    marked = VisibleMessage(key_of(rows[at]), floor, rows[at].at)
    if tail is None:
        own = rest if words is None else rest[1:]
        return Continuation(summary, last_turn, (*kept, *own), (*pinned, marked))
    copies = before[tail:]
    shown = max(floor, copies[0].turn - 1)
    # As a branch copies it, the summary's row replaces the first copy if it contains its words, else precedes it.
    middle = (marked, *copies[1:]) if words is not None else (marked, *copies)
    return Continuation(summary, shown, (*kept, *rest[len(copies) :]), (*pinned, *middle))


def _words_before(row: MessageRow) -> str | None:
    """Return the words of a message before its appended summary; None if the message is only a summary."""
    text = text_of(row.content)
    if not text.startswith(_OLDER_WORDS):
        return None
    return text.partition("\n")[2].partition(f"\n\n{_OLDER_WORDS_END}")[0]


def _tail(before: Sequence[VisibleMessage], keys: Sequence[Key]) -> int | None:
    """Return the index in `before` whose messages, up to the last, open the new rows; None if there is none."""
    if not keys:
        return None
    for at, seen in enumerate(before):
        size = len(before) - at
        if (
            seen.key == keys[0]
            and size <= len(keys)
            and all(one.key == key for one, key in zip(before[at:], keys[:size], strict=True))
        ):
            return at
    return None
