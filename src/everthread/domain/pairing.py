"""Letting strangers in by a code: what is written down of it, how long it holds, how often one may be wrong. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

from msgspec import Struct

from everthread.domain.model import OWNER_CHARS_MAX

ALPHABET = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"
"""Nothing that looks like something else: no 0 and O, no 1, I and L."""
CODE_CHARS = 8
CODE_S = 3600.0
PENDING_MAX = 3
"""Codes of one platform that hold at once."""
WRONG_MAX = 5
LOCKED_S = 3600.0
USER_CHARS_MAX = 128
PERSON_CHARS_MAX = 128
_SHARED = "group:"
_A_GROUPS = f"a name that begins with {_SHARED} is a group's"


class Paired(Struct, frozen=True):
    """An account that was let in by its code."""

    platform: str
    user: str
    owner: str
    name: str
    """What they call themselves."""
    at: float

    @property
    def account(self) -> str:
        return account_of(self.platform, self.user)


class Pairing(Struct, frozen=True):
    """A stranger who was given a code; only what the code is made into is known."""

    platform: str
    user: str
    code_hash: str
    name: str
    at: float
    expires_at: float

    @property
    def account(self) -> str:
        return account_of(self.platform, self.user)


class WrongCodes(Struct, frozen=True):
    """How often somebody was wrong. `scope` says who."""

    scope: str
    count: int
    locked_until: float = 0.0


def account_of(platform: str, user: str) -> str:
    """An account in words, and the owner that it is unless it is linked to another."""
    return f"{platform}:{user}"


def new_code(choice: Callable[[str], str]) -> str:
    return "".join(choice(ALPHABET) for _ in range(CODE_CHARS))


def as_typed(text: str) -> str:
    """The code that somebody means, in whichever case and with whatever between its parts."""
    return "".join(text.upper().replace("-", " ").split())


def hash_of(platform: str, user: str, code: str) -> str:
    return hashlib.sha256(f"{platform}\0{user}\0{code}".encode(errors="replace")).hexdigest()


def is_of(pairing: Pairing, code: str) -> bool:
    return hmac.compare_digest(pairing.code_hash, hash_of(pairing.platform, pairing.user, code))


def holds(pairing: Pairing, now: float) -> bool:
    """Whether the code can be used. A clock that was put back makes none hold longer."""
    return now < pairing.expires_at <= now + CODE_S


def locked_s(wrong: WrongCodes | None, now: float) -> float:
    """For how long no code is looked at; a clock that was put back locks nobody out for longer."""
    if wrong is None or not now < wrong.locked_until <= now + LOCKED_S:
        return 0.0
    return wrong.locked_until - now


def one_more(wrong: WrongCodes | None, scope: str, now: float) -> WrongCodes:
    """After one more wrong code. Whoever was locked out begins anew."""
    count = 1 if wrong is None or wrong.locked_until else wrong.count + 1
    return WrongCodes(scope, count, now + LOCKED_S if count >= WRONG_MAX else 0.0)


def owner_problem(owner: str) -> str:
    """What keeps a text from being the name that anything is kept under, a person's or a group's; empty if nothing."""
    if not owner.strip() or len(owner) > OWNER_CHARS_MAX:
        return f"must have 1 to {OWNER_CHARS_MAX} characters"
    return "" if owner.isprintable() else "has characters that can't be seen; leave them out"


def user_problem(owner: str) -> str:
    """What keeps a text from being the name of whoever uses the program; empty if nothing."""
    return owner_problem(owner) or (_A_GROUPS if is_groups(owner) else "")


def person_problem(owner: str) -> str:
    """What is wrong with the name of a person, if anything."""
    if owner_problem(owner) or len(owner) > PERSON_CHARS_MAX or owner != owner.strip():
        return f"a person's name must be 1 to {PERSON_CHARS_MAX} visible characters"
    return _A_GROUPS if is_groups(owner) else ""


def is_groups(owner: str) -> bool:
    """Whether it is a name that only what a group shares is kept under."""
    return owner.startswith(_SHARED)
