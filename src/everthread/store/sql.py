"""Convert between Python values and columns."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from everthread.domain.errors import BadKey
from everthread.domain.model import ChatType, SessionKey, replace_surrogates

E = TypeVar("E", bound=StrEnum)
Row = tuple[Any, ...]


def placeholders(count: int) -> str:
    """Return `count` placeholders, separated by commas."""
    return ", ".join("?" * count)


def by_value(kinds: type[E]) -> dict[str, E]:
    """Map stored values to members of the enumeration. A lookup is ten times faster than calling the enumeration."""
    return {kind.value: kind for kind in kinds}


def to_json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        import json  # noqa: PLC0415 - lone surrogates are rare, and `sessions list` must start fast

        return replace_surrogates(json.dumps(value, ensure_ascii=False))


def from_json(text: str) -> Any:
    return msgspec.json.decode(text)


_KEYS: dict[str, SessionKey] = {}
_KEYS_MAX = 4096


def key_of(text: str) -> SessionKey:
    """Parse a stored key. Parsing costs more than reading its row, so parsed keys are cached."""
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
