"""API keys (tokens) of the HTTP interface: format, hash and names."""

from __future__ import annotations

import hashlib
import re

from everthread.domain.errors import BadInput

BYTES = 32
LOCAL = "local"
"""Name of the automatic token."""
NAME_CHARS_MAX = 64
_PREFIX = "et_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOKEN = re.compile(r"et_[A-Za-z0-9_-]{43}")


def make_token(random: str) -> str:
    """Return the token for a result of `secrets.token_urlsafe(BYTES)`. A token is shown once and never stored."""
    return _PREFIX + random


def hash_token(token: str) -> str:
    """Return the hash to store. A token is random, so a fast hash is sufficient."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_token(text: str) -> bool:
    """Return True if the text has the format of a token."""
    return _TOKEN.fullmatch(text) is not None


def check_name(name: str) -> str:
    """Return the name of a token. Raises `BadInput` if it is invalid."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name[:80]!r} is not a valid token name; use 1 to {NAME_CHARS_MAX} letters, digits, . _ or -")
    return name
