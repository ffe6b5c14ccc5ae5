"""Checks of texts, keys and owners before a transaction begins."""

from __future__ import annotations

from functools import lru_cache

from everthread.domain.errors import BadInput, BadKey, TooLarge
from everthread.domain.model import OWNER_CHARS_MAX, SessionKey, replace_surrogates

TEXT_CHARS_MAX = 10_000_000
TURN_CHARS_MAX = 10 * TEXT_CHARS_MAX
"""Larger than one message: a turn also holds tool calls and the answer."""
INLINE_CHARS_MAX = 100_000
"""Longer texts are written in the writer thread, so that they do not block the event loop."""
KEYS_CACHED = 4096


def check_size(what: str, *texts: str, chars_max: int = TEXT_CHARS_MAX) -> int:
    """Return the total number of characters. Raises `TooLarge` above the limit."""
    size = sum(map(len, texts))
    if size > chars_max:
        raise TooLarge(f"{what} has at most {chars_max} characters; this one has {size}")
    return size


def check_key(key: SessionKey) -> None:
    """Raise `BadKey` for a key that does not survive being written as text and read back."""
    if not _is_valid(key):
        raise BadKey(f"Invalid session key {key!r:.200}: one of its parts is empty or not valid text.")


@lru_cache(maxsize=KEYS_CACHED)
def _is_valid(key: SessionKey) -> bool:
    # Cached: parsing costs as much as a small statement, and a turn checks its key three times.
    try:
        return SessionKey.parse(str(key)) == key
    except UnicodeEncodeError:
        return False


def check_owner(owner: str) -> None:
    """Raise `BadInput` for an empty, overlong or malformed owner."""
    if not owner or len(owner) > OWNER_CHARS_MAX or replace_surrogates(owner) != owner:
        raise BadInput(f"an owner has 1 to {OWNER_CHARS_MAX} characters, all of them valid text")
