"""Authenticate a request by its token; while there are no tokens, local requests need none."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from everthread.domain.api_key import hash_token, is_token
from everthread.domain.clock_rules import is_ahead
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
    scheme, _, token = (call.header("authorization") or "").strip().partition(" ")
    token = token.strip() if scheme.lower() == "bearer" else ""
    token_hash = hash_token(token) if is_token(token) else ""

    def read(uow: UnitOfWork) -> tuple[ApiKey | None, bool]:
        found = uow.api_keys.get(token_hash) if token_hash else None
        return found, found is not None or uow.api_keys.any_exist()

    found, any_exist = await call.gateway.store.read_inline(read)
    if found is not None:
        await _note_use(call, found)
        return ApiCaller(found.owner, found.name, found.token_hash)
    # OpenAI clients require a key: while there are no tokens, any other text is accepted.
    if any_exist or token_hash or not call.state.is_local:
        raise HttpError(
            401,
            "Send a token: Authorization: Bearer et_... Create one with `everthread tokens new NAME`.",
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
        raise _not_local("Requests from other machines and proxies need a token")
    if not is_loopback(_host(f"//{call.header('host') or ''}")):
        raise _not_local("The Host header names another machine")
    origin = call.header("origin")
    if (origin is not None and not is_loopback(_host(origin))) or call.header("sec-fetch-site") == "cross-site":
        raise _not_local("The request comes from a page of another site")


@lru_cache(256)
def _host(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _not_local(why: str) -> HttpError:
    return HttpError(403, f"{why}. Create a token with `everthread tokens new NAME`.", "not_from_here")


async def _note_use(call: ApiCall, token: ApiKey) -> None:
    now = call.gateway.clock.now()
    if token.used_at is None or now - token.used_at > USED_EVERY_S or is_ahead(token.used_at, now):
        await asyncio.shield(call.gateway.store.write(lambda uow: uow.api_keys.record_use(token.token_hash, now)))
