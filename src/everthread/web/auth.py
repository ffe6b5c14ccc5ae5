"""Authenticate a request by its token; while there are no tokens, local requests need none."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from everthread.domain.api_key import hashed, is_token
from everthread.store.api_keys import ApiKey
from everthread.store.unit_of_work import UnitOfWork
from everthread.web.errors import HttpError
from everthread.web.request import ApiCall, ApiCaller

LOCAL = "local"
USED_EVERY_S = 3600.0
"""Record the last use of a token at most this often: a request must not cost a write."""
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


async def authenticate(call: ApiCall) -> ApiCaller:
    """Return the caller, or raise `HttpError`."""
    given = (call.header("authorization") or "").strip()
    scheme, _, token = given.partition(" ")
    token = token.strip() if scheme.lower() == "bearer" else ""
    wanted = hashed(token) if is_token(token) else ""

    def look(uow: UnitOfWork) -> tuple[ApiKey | None, bool]:
        found = uow.api_keys.get(wanted) if wanted else None
        return found, found is not None or uow.api_keys.are_any()

    found, are_any = await call.gateway.store.read_inline(look)
    if found is not None:
        await _note_use(call, found)
        return ApiCaller(found.owner, found.name, found.token_hash)
    # OpenAI clients require a key: while there are no tokens, any other text is accepted.
    if are_any or wanted or not call.site.only_here:
        raise HttpError(
            401,
            "a token is needed: Authorization: Bearer et_...; `everthread tokens new NAME` makes one",
            "invalid_api_key",
            {"WWW-Authenticate": "Bearer"},
        )
    _check_local(call)
    return ApiCaller(call.gateway.settings.owner, LOCAL)


@lru_cache(256)
def is_loopback(host: str) -> bool:
    """Return true for a loopback address or name."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _check_local(call: ApiCall) -> None:
    """Refuse web pages, also with a DNS name for this machine, and proxied requests."""
    client = call.request.client
    if client is None or not is_loopback(client.host) or any(call.header(name) for name in _FORWARDED):
        raise _not_local("requests from elsewhere need a token")
    if not is_loopback(_host(f"//{call.header('host') or ''}")):
        raise _not_local("it asks for another host")
    origin = call.header("origin")
    if (origin is not None and not is_loopback(_host(origin))) or call.header("sec-fetch-site") == "cross-site":
        raise _not_local("it comes from a page of another site")


@lru_cache(256)
def _host(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _not_local(why: str) -> HttpError:
    return HttpError(403, f"{why}; `everthread tokens new NAME` makes a token", "not_from_here")


async def _note_use(call: ApiCall, token: ApiKey) -> None:
    now = call.gateway.clock.now()
    if token.used_at is None or now - token.used_at > USED_EVERY_S:
        await asyncio.shield(call.gateway.store.write(lambda uow: uow.api_keys.used(token.token_hash, now)))
