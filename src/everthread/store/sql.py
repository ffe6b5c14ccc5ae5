"""How the tables talk to a database, and how values become columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import msgspec

from everthread.domain.errors import BadKey
from everthread.domain.model import ChatType, SessionKey, whole

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


class Execute(Protocol):
    """Runs one statement with `?` parameters and yields its rows."""

    def __call__(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterable[tuple[Any, ...]]: ...


def first(rows: Iterable[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """The first row."""
    return next(iter(rows), None)


def run(rows: Iterable[tuple[Any, ...]]) -> None:
    """Run a statement whose rows nobody wants."""
    for _ in rows:
        pass


def by_value(kinds: type[E]) -> dict[str, E]:
    """What is stored, and which member of the enumeration it is: to call the enumeration takes ten times as long."""
    return {kind.value: kind for kind in kinds}


def to_json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        import json  # noqa: PLC0415 - hardly ever, and people wait for a list of sessions

        return whole(json.dumps(value, ensure_ascii=False))


def at_once(execute: Execute) -> Execute:
    """The same, but that a statement is run to its end before the next, so that one cursor is enough for all of them.

    Half a character among the parameters is replaced: nobody's turn is lost over it.
    """

    def executed(sql: str, parameters: Sequence[Any] = (), /) -> Iterable[tuple[Any, ...]]:
        try:
            return list(execute(sql, parameters))
        except UnicodeEncodeError:
            return list(execute(sql, [whole(value) if isinstance(value, str) else value for value in parameters]))

    return executed


def added(execute: Execute) -> int:
    """The number of the row that was added last. Asking for it with the row takes twice as long as adding it."""
    row = first(execute("SELECT last_insert_rowid()"))
    assert row is not None
    return row[0]


def from_json(text: str) -> Any:
    return msgspec.json.decode(text)


_KEYS: dict[str, SessionKey] = {}
_KEYS_MAX = 4096


def key_of(text: str) -> SessionKey:
    """A stored key as a value. Parsing costs more than the row it stands in, so the newest few are kept."""
    key = _KEYS.get(text)
    if key is None:
        try:
            key = SessionKey.parse(text)
        except BadKey:
            # A damaged row must not hide the rest of a listing.
            key = SessionKey("unreadable", "unreadable", ChatType.DM, text)
        if len(_KEYS) >= _KEYS_MAX:
            _KEYS.clear()
        _KEYS[text] = key
    return key


# Lanes of a store that was restored begin with a number of their own: providers have seen the lower ones, under other
# words. It stands in the head of the file.
FIRST_REPLAY = "(SELECT user_version FROM pragma_user_version)"
