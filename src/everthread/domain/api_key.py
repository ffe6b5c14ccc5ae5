"""Keys of the HTTP interface: what one looks like, and what is kept of it. Pure."""

from __future__ import annotations

import hashlib
import re

from everthread.domain.errors import BadInput

BYTES = 32
NAME_CHARS_MAX = 64
_PREFIX = "et_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOKEN = re.compile(r"et_[A-Za-z0-9_-]{43}")


def made_of(random: str) -> str:
    """A token of this randomness, as `secrets.token_urlsafe(BYTES)` gives it. It is shown once and kept nowhere."""
    return _PREFIX + random


def hashed(token: str) -> str:
    """What is kept in its place: a token is random enough that nothing slower is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_token(text: str) -> bool:
    return _TOKEN.fullmatch(text) is not None


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name[:80]!r} is no name of a token; use 1 to {NAME_CHARS_MAX} letters, digits, . _ or -")
    return name
