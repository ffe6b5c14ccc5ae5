"""Authenticate a request by its token."""

from __future__ import annotations

import asyncio

from everthread.domain.api_key import LOCAL, hash_token, is_token
from everthread.domain.clock_rules import is_ahead
from everthread.store.api_keys import ApiKey
from everthread.web.errors import AuthenticationFailed
from everthread.web.request import ApiCall, ApiCaller

USED_EVERY_S = 3600.0
"""Record the last use of a token at most this often: a request must not cost a write."""
_SEND_ONE = (
    "Send a token: Authorization: Bearer et_... On this machine, `everthread tokens show` prints one, and "
    "`everthread tokens new NAME` creates another."
)


async def authenticate(call: ApiCall) -> ApiCaller:
    """Return the caller, or raise `AuthenticationFailed`."""
    authorization = (call.header("authorization") or "").strip()
    scheme, _, token = authorization.partition(" ")
    token = token.strip() if scheme.lower() == "bearer" else ""
    if call.gateway.settings.gateway.http.auth == "none" and not is_token(token):
        # OpenAI clients require a key, so any other text is accepted.
        return ApiCaller(call.gateway.settings.owner, LOCAL)
    if not is_token(token):
        raise AuthenticationFailed(_SEND_ONE, "malformed token" if authorization else "no token")
    token_hash = hash_token(token)
    key = await call.gateway.store.read_inline(lambda uow: uow.api_keys.get(token_hash))
    if key is None:
        raise AuthenticationFailed(_SEND_ONE, "unknown token")
    if not key.is_valid(call.gateway.clock.now()):
        raise AuthenticationFailed("This token has expired. `everthread tokens new NAME` creates one.", "expired token")
    await _note_use(call, key)
    if call.state.auth_failures.addresses:
        call.state.auth_failures.succeed(call.client_address)
    return ApiCaller(key.owner, key.name, key.token_hash, read_only=key.read_only)


async def _note_use(call: ApiCall, key: ApiKey) -> None:
    now = call.gateway.clock.now()
    if key.used_at is None or now - key.used_at > USED_EVERY_S or is_ahead(key.used_at, now):
        await asyncio.shield(call.gateway.store.write(lambda uow: uow.api_keys.record_use(key.token_hash, now)))
