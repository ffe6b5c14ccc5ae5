"""Advice about API tokens when a gateway starts. Tested in tests/e2e/cli/commands/gateway/test_run.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from everthread.cli.context import CliRuntime

HINT = "HTTP requests need a token. To see it, run: everthread tokens show"
LOCKED = "no valid API token: every HTTP request is refused; create one with everthread tokens new NAME"
LOST = "the automatic API token exists, but its text is not in this home; nobody can use it"
LOST_FIX = (
    "create a token with everthread tokens new NAME, and remove the lost one, which everthread tokens list shows as "
    "automatic: everthread tokens revoke local"
)


class TokenAccess(Struct, frozen=True):
    hint: str = ""
    problems: tuple[str, ...] = ()


async def read_token_access(runtime: CliRuntime) -> TokenAccess:
    """Return how to get a token for the HTTP interface of a running gateway."""
    http = runtime.settings.gateway.http
    if not http.enabled or http.auth == "none":
        return TokenAccess()
    from everthread.lifecycle.local_token import LocalToken, no_valid_key

    keys = await runtime.store.read(lambda uow: uow.api_keys.all())
    if no_valid_key(keys, runtime.clock.now()):
        return TokenAccess(problems=(LOCKED,))
    local = LocalToken(runtime.store, runtime.clock, runtime.settings.local_token_path)
    if await local.is_lost(keys):
        return TokenAccess(problems=(f"{LOST}; {LOST_FIX}",))
    return TokenAccess(HINT if await local.text() is not None else "")
