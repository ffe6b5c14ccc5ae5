"""Pair strangers with one-time codes: stored values, expiry, lockout, and the names of owners. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

from msgspec import Struct

from everthread.domain.clock_rules import is_ahead
from everthread.domain.model import OWNER_CHARS_MAX

ALPHABET = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"
"""Without characters that look alike: no 0 and O, no 1, I and L."""
CODE_CHARS = 8
CODE_S = 3600.0
ACCOUNT_CODES_MAX = 3
"""Codes that one account is offered within `ACCOUNT_S`, one after another."""
ACCOUNT_S = 86_400.0
PLATFORM_CODES_MAX = 30
"""Codes that all accounts of a platform are offered within `CODE_S`: as many can be valid at a time."""
WRONG_MAX = 5
LOCKOUT_S = 3600.0
USER_CHARS_MAX = 128
PERSON_CHARS_MAX = 128
_SHARED = "group:"
_A_GROUPS = f"names that begin with {_SHARED} are reserved for groups"


class PairedAccount(Struct, frozen=True):
    """An account that was paired with a code."""

    platform: str
    user: str
    owner: str
    name: str
    """The display name of the account."""
    at: float

    @property
    def account(self) -> str:
        return format_account(self.platform, self.user)


class PairingRequest(Struct, frozen=True):
    """A stranger who received a code. Only the hash of the code is stored."""

    platform: str
    user: str
    code_hash: str
    name: str
    at: float
    expires_at: float
    since: float = 0.0
    """The time of the first of its `codes`."""
    codes: int = 1
    """Codes that the account was offered within `ACCOUNT_S`, with this one."""

    @property
    def account(self) -> str:
        return format_account(self.platform, self.user)


class WrongCodes(Struct, frozen=True):
    """The number of wrong codes that one approver, named by `scope`, has entered."""

    scope: str
    count: int
    locked_until: float = 0.0


def format_account(platform: str, user: str) -> str:
    """Return the text form of an account. It is also its owner, unless the account is linked to another owner."""
    return f"{platform}:{user}"


def new_code(choice: Callable[[str], str]) -> str:
    return "".join(choice(ALPHABET) for _ in range(CODE_CHARS))


def normalize_code(text: str) -> str:
    """Normalize a code as typed: upper case, without spaces and hyphens."""
    return "".join(text.upper().replace("-", " ").split())


def hash_code(platform: str, user: str, code: str) -> str:
    return hashlib.sha256(f"{platform}\0{user}\0{code}".encode(errors="replace")).hexdigest()


def matches_code(pairing: PairingRequest, code: str) -> bool:
    return hmac.compare_digest(pairing.code_hash, hash_code(pairing.platform, pairing.user, code))


def is_valid(pairing: PairingRequest, now: float) -> bool:
    """Return True if the code is valid."""
    return now < pairing.expires_at and not is_ahead(pairing.at, now)


def next_request(
    before: PairingRequest | None, platform: str, user: str, now: float, valid_s: float
) -> PairingRequest | None:
    """Return a request without code and name that replaces `before`; None while the account gets no code."""
    if before is None or is_ahead(before.at, now) or now - before.since >= ACCOUNT_S:
        return PairingRequest(platform, user, "", "", now, now + valid_s, now)
    if is_valid(before, now) or before.codes >= ACCOUNT_CODES_MAX:
        return None
    return PairingRequest(platform, user, "", "", now, now + valid_s, before.since, before.codes + 1)


def lockout_s(wrong: WrongCodes | None, now: float) -> float:
    """Return the remaining lockout in seconds."""
    if wrong is None or is_ahead(wrong.locked_until - LOCKOUT_S, now):
        return 0.0
    return max(wrong.locked_until - now, 0.0)


def count_wrong_code(wrong: WrongCodes | None, scope: str, now: float) -> WrongCodes:
    """Count one more wrong code. The count starts again after a lockout."""
    count = 1 if wrong is None or wrong.locked_until else wrong.count + 1
    return WrongCodes(scope, count, now + LOCKOUT_S if count >= WRONG_MAX else 0.0)


def owner_problem(owner: str) -> str:
    """Return the reason why the text is no valid owner, person or group; empty if it is valid."""
    if not owner.strip() or len(owner) > OWNER_CHARS_MAX:
        return f"must have 1 to {OWNER_CHARS_MAX} characters"
    return "" if owner.isprintable() else "has invisible characters; remove them"


def user_problem(owner: str) -> str:
    """Return the reason why the text is no valid owner for the user of the program; empty if it is valid."""
    return owner_problem(owner) or (_A_GROUPS if is_group(owner) else "")


def person_problem(owner: str) -> str:
    """Return the reason why the text is no valid name of a person; empty if it is valid."""
    if owner_problem(owner) or len(owner) > PERSON_CHARS_MAX or owner != owner.strip():
        return f"a person's name must be 1 to {PERSON_CHARS_MAX} visible characters"
    return _A_GROUPS if is_group(owner) else ""


def is_group(owner: str) -> bool:
    """Return True if the owner is a group."""
    return owner.startswith(_SHARED)
