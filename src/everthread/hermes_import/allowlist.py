"""Convert Hermes's allowlists to guest accounts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec import Struct

from everthread.domain.pairing import USER_CHARS_MAX
from everthread.hermes_import.rows import time_of

ALLOWED = "_ALLOWED_USERS"
ALLOW_ALL = "_ALLOW_ALL_USERS"
_EVERY_PLATFORM = "GATEWAY"
_PLATFORMS = {"qq": "qqbot"}
_PLATFORM = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_USERS_MAX = 10_000


class Account(Struct, frozen=True):
    platform: str
    user: str
    name: str = ""
    at: float = 0.0


class Skipped(Struct, frozen=True):
    """Data that is not imported, and the reason."""

    what: str
    why: str
    count: int = 1


def is_about_access(name: str) -> bool:
    """Return true for a variable of `.env` that controls access. All others are ignored."""
    return name.endswith((ALLOWED, ALLOW_ALL))


def accounts_of(
    variables: Mapping[str, str], approved: Mapping[str, Mapping[str, object]]
) -> tuple[list[Account], list[Skipped]]:
    """Return the accounts from `.env` and from pairing, without duplicates, and the entries that are not imported."""
    found: dict[tuple[str, str], Account] = {}
    left: list[Skipped] = []
    for platform, users in approved.items():
        for user, about in list(users.items())[:_USERS_MAX]:
            fields = cast("dict[str, Any]", about) if isinstance(about, dict) else {}
            name = " ".join(str(fields.get("user_name") or "").split())[:80]
            found[platform, user] = Account(platform, user, name, time_of(fields.get("approved_at")))
    for name, value in variables.items():
        for each in _named(name, value):
            if isinstance(each, Skipped):
                left.append(each)
            else:
                found.setdefault((each.platform, each.user), each)
    sound = [each for each in found.values() if _is_sound(each)]
    if len(sound) < len(found):
        left.append(Skipped("accounts", "are not names of a platform and a user", len(found) - len(sound)))
    return sound, left


def _named(name: str, value: str) -> Iterator[Account | Skipped]:
    if name.endswith(ALLOW_ALL):
        if value.strip().lower() in ("1", "true", "yes", "on"):
            yield Skipped(name, "admits everybody; to keep that, set allow_all of the platform in config.toml")
        return
    place = name.removesuffix(ALLOWED)
    users = [user.strip() for user in value.split(",") if user.strip()][:_USERS_MAX]
    if place == _EVERY_PLATFORM and users:
        yield Skipped(name, "names no platform; add them to allow of each platform in config.toml", len(users))
        return
    if place.endswith("_GROUP") and users:
        yield Skipped(name, "names groups; only people can be admitted here", len(users))
        return
    platform = place.lower()
    for user in users:
        if user == "*":
            yield Skipped(f"{name}=*", "admits everybody; to keep that, set allow_all of the platform")
        else:
            yield Account(_PLATFORMS.get(platform, platform), user)


def _is_sound(account: Account) -> bool:
    plain = account.user.isprintable() and 0 < len(account.user) <= USER_CHARS_MAX
    return plain and bool(_PLATFORM.fullmatch(account.platform))
