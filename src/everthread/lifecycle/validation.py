"""What is refused before a unit of work begins: texts, keys and owners that could not be kept."""

from __future__ import annotations

from functools import lru_cache

from everthread.domain.errors import BadInput, BadKey, TooLarge
from everthread.domain.model import OWNER_CHARS_MAX, SessionKey, whole

TEXT_CHARS_MAX = 10_000_000
TURN_CHARS_MAX = 10 * TEXT_CHARS_MAX
"""A message that was accepted must be answerable: with its tools and its answer, a turn is larger."""
KEYS_KNOWN = 4096


JOTTED_CHARS_MAX = 100_000
"""What has more takes long enough to write to hold others up."""


def check_size(what: str, *texts: str, chars_max: int = TEXT_CHARS_MAX) -> int:
    """How many characters there are, if there are not too many."""
    size = sum(map(len, texts))
    if size > chars_max:
        raise TooLarge(f"{what} has at most {chars_max} characters; this one has {size}")
    return size


def check_key(key: SessionKey) -> None:
    """A key must be read back as it was written: rows of one that is not would be nobody's."""
    if not _is_sound(key):
        raise BadKey(f"{key!r:.200} is no session key: one of its parts is empty or can't be written down")


@lru_cache(maxsize=KEYS_KNOWN)
def _is_sound(key: SessionKey) -> bool:
    # To read one costs as much as a small statement, and a turn has its key looked at three times.
    try:
        return SessionKey.parse(str(key)) == key
    except UnicodeEncodeError:
        return False


def check_owner(owner: str) -> None:
    if not owner or len(owner) > OWNER_CHARS_MAX or whole(owner) != owner:
        raise BadInput(f"an owner is 1 to {OWNER_CHARS_MAX} whole characters long")
