"""`everthread tokens`: create, list, show and revoke API tokens of the HTTP interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.age import Age
from everthread.cli.context import CliContext, CliRuntime, common_options, owner_option
from everthread.cli.output import Result, iso_time, render, table
from everthread.domain.errors import AlreadyExists, BadInput, NotFound
from everthread.domain.text_format import local_time, one_line

if TYPE_CHECKING:
    from everthread.store.api_keys import ApiKey

EXPIRES_YEARS_MAX = 10


@click.group()
def tokens() -> None:
    """Manage API tokens of the HTTP interface.

    Every request needs a token. A token gives access to the sessions of one owner. It is shown once, when it is
    created; only its hash is stored. The first start of a gateway creates the token `local`; `tokens show` prints it.

    \b
    Examples:
      everthread tokens show
      everthread tokens new phone --owner anna --expires 30d
      everthread tokens new monitor --read-only
      everthread tokens list
      everthread tokens revoke laptop
    """


@tokens.command("new")
@click.argument("name")
@click.option(
    "--expires",
    "lifetime_s",
    type=Age(EXPIRES_YEARS_MAX),
    metavar="AGE",
    help="Time until it expires: 12h, 30d, 2w, 6m (30 days each), 1y. Default: never.",
)
@click.option("--read-only", is_flag=True, help="Allow GET routes only: no messages and no completions.")
@owner_option
@common_options
def new_token(cli: CliContext, name: str, lifetime_s: float | None, read_only: bool, owner: str, as_json: bool) -> None:
    """Create token NAME and show it once.

    \b
    Examples:
      everthread tokens new laptop
      everthread tokens new phone --owner anna --expires 30d
      everthread tokens new monitor --read-only --json | jq -r .token
    """
    import secrets

    from everthread.domain.api_key import BYTES, check_name, hash_token, make_token
    from everthread.store.api_keys import ApiKey

    check_name(name)
    whose = _owner(cli, owner)
    token = make_token(secrets.token_urlsafe(BYTES))

    async def add(runtime: CliRuntime) -> ApiKey | None:
        now = runtime.clock.now()
        expires_at = now + lifetime_s if lifetime_s is not None else None
        key = ApiKey(hash_token(token), whose, name, now, expires_at=expires_at, read_only=read_only)
        return key if await runtime.store.write(lambda uow: uow.api_keys.add(key)) else None

    key = cli.open_home(add)
    if key is None:
        raise AlreadyExists(
            f"{whose} already has a token {name!r}; choose another name, or revoke it: tokens revoke {name}"
        )
    data = {"name": name, "owner": whose, "token": token, "expires": iso_time(key.expires_at), "read_only": read_only}
    render(Result(data, token), as_json)
    if not as_json:
        access = "Read access" if read_only else "Access"
        ends = f" until {local_time(key.expires_at)}" if key.expires_at is not None else ""
        click.echo(f"{access} to the sessions of {one_line(whose)}{ends}. The token is not shown again.", err=True)


@tokens.command("show")
@common_options
def show_token(cli: CliContext, as_json: bool) -> None:
    """Show the automatic token of this home, on a terminal only.

    The first start of a gateway creates it with the name `local`, for the configured owner. Its text is in the file
    local.token, which only your user can read and which backups leave out. In scripts, use a token of their own:
    everthread tokens new NAME.

    \b
    Examples:
      everthread tokens show
    """
    import sys

    from everthread.cli.commands.gateway.token_access import LOST, LOST_FIX
    from everthread.lifecycle.local_token import LocalToken

    if as_json or not sys.stdout.isatty():
        raise BadInput(
            "the token is shown on a terminal only, so that it does not end up in a file or a log; for a program, "
            "create one with everthread tokens new NAME"
        )

    async def text(runtime: CliRuntime) -> tuple[str | None, bool]:
        local = LocalToken(runtime.store, runtime.clock, runtime.settings.local_token_path)
        keys = await runtime.store.read(lambda uow: uow.api_keys.all())
        return await local.text(), await local.is_lost(keys)

    token, lost = cli.read(text, default=(None, False))
    if lost:
        raise NotFound(f"{LOST}; {LOST_FIX}")
    if token is None:
        raise NotFound(
            "this home has no automatic token: no gateway with HTTP was started yet, you created a token before, or it "
            "is revoked; start a gateway, or create a token with everthread tokens new NAME"
        )
    click.echo(token)


@tokens.command("list")
@common_options
def list_tokens(cli: CliContext, as_json: bool) -> None:
    """List tokens. The tokens themselves are not stored and not shown.

    \b
    Examples:
      everthread tokens list
      everthread tokens list --json | jq -r '.[].name'
    """

    async def read(runtime: CliRuntime) -> tuple[tuple[ApiKey, ...], float]:
        return await runtime.store.read(lambda uow: uow.api_keys.all()), runtime.clock.now()

    found, now = cli.read(read, default=((), 0.0))
    rows = [(key.name, key.owner, _access(key), local_time(key.at), _expiry(key, now), _used(key)) for key in found]
    empty = "No tokens. Create one with everthread tokens new NAME; the first start of a gateway creates `local`."
    text = table(("NAME", "OWNER", "ACCESS", "CREATED", "EXPIRES", "LAST USED"), rows, empty=empty)
    render(Result([_as_json(key, now) for key in found], text), as_json)


@tokens.command("revoke")
@click.argument("name")
@owner_option
@common_options
def revoke_token(cli: CliContext, name: str, owner: str, as_json: bool) -> None:
    """Revoke token NAME, with immediate effect.

    Without any token left, every request is refused, and no token is created automatically.

    \b
    Examples:
      everthread tokens revoke laptop
      everthread tokens revoke phone --owner anna --json
    """
    from everthread.lifecycle.local_token import LocalToken, no_valid_key

    whose = _owner(cli, owner)

    async def revoke(runtime: CliRuntime) -> tuple[bool, bool]:
        local = LocalToken(runtime.store, runtime.clock, runtime.settings.local_token_path)
        removed = await local.revoke(whose, name)
        left = await runtime.store.read(lambda uow: uow.api_keys.all())
        return removed is not None, no_valid_key(left, runtime.clock.now())

    revoked, locked = cli.write(revoke)
    if not revoked:
        raise NotFound(f"{whose} has no token {name[:80]!r}; `tokens list` shows all")
    text = "Revoked."
    if locked:
        text += (
            " No valid token is left: every request is refused until you create one with everthread tokens new NAME."
        )
    render(Result({"name": name, "owner": whose, "revoked": True, "locked": locked}, text), as_json)


def _owner(cli: CliContext, owner: str) -> str:
    from everthread.domain.model import OWNER_CHARS_MAX

    if len(owner) > OWNER_CHARS_MAX or not owner.isprintable():
        raise BadInput(f"--owner must have 1 to {OWNER_CHARS_MAX} printable characters")
    return owner or cli.settings.owner


def _access(key: ApiKey) -> str:
    return ("read-only" if key.read_only else "full") + (", automatic" if key.automatic else "")


def _expiry(key: ApiKey, now: float) -> str:
    if key.expires_at is None:
        return "never"
    return local_time(key.expires_at) if key.is_valid(now) else "expired"


def _used(key: ApiKey) -> str:
    return "never" if key.used_at is None else local_time(key.used_at)


def _as_json(key: ApiKey, now: float) -> dict[str, Any]:
    return {
        "name": key.name,
        "owner": key.owner,
        "made": iso_time(key.at),
        "last_used": iso_time(key.used_at),
        "expires": iso_time(key.expires_at),
        "valid": key.is_valid(now),
        "read_only": key.read_only,
        "automatic": key.automatic,
    }
