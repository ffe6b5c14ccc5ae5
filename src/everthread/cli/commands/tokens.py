"""`everthread tokens`: create, list and revoke API tokens of the HTTP interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext, CliRuntime, common_options, owner_option
from everthread.cli.output import Result, iso_time, render, table
from everthread.domain.errors import AlreadyExists, BadInput, NotFound
from everthread.domain.text_format import local_time, one_line

if TYPE_CHECKING:
    from everthread.store.api_keys import ApiKey


@click.group()
def tokens() -> None:
    """Manage API tokens of the HTTP interface.

    A token gives access to the sessions of one owner. It is shown once, when it is created; only its hash is stored.
    As soon as a token exists, every request needs one.

    \b
    Examples:
      everthread tokens new laptop
      everthread tokens new phone --owner anna
      everthread tokens list
      everthread tokens revoke laptop
    """


@tokens.command("new")
@click.argument("name")
@owner_option
@common_options
def new_token(cli: CliContext, name: str, owner: str, as_json: bool) -> None:
    """Create token NAME and show it once.

    \b
    Examples:
      everthread tokens new laptop
      everthread tokens new phone --owner anna --json | jq -r .token
    """
    import secrets

    from everthread.domain.api_key import BYTES, check_name, hash_token, make_token
    from everthread.store.api_keys import ApiKey

    check_name(name)
    whose = _owner(cli, owner)
    token = make_token(secrets.token_urlsafe(BYTES))

    async def add(runtime: CliRuntime) -> bool:
        row = ApiKey(hash_token(token), whose, name, runtime.clock.now())
        return await runtime.store.write(lambda uow: uow.api_keys.add(row))

    if not cli.open_home(add):
        raise AlreadyExists(
            f"{whose} already has a token {name!r}; choose another name, or revoke it: tokens revoke {name}"
        )
    render(Result({"name": name, "owner": whose, "token": token}, token), as_json)
    if not as_json:
        click.echo(f"Access to the sessions of {one_line(whose)}. The token is not shown again.", err=True)


@tokens.command("list")
@common_options
def list_tokens(cli: CliContext, as_json: bool) -> None:
    """List tokens. The tokens themselves are not stored and not shown.

    \b
    Examples:
      everthread tokens list
      everthread tokens list --json | jq -r '.[].name'
    """
    found = cli.read(lambda runtime: runtime.store.read(lambda uow: uow.api_keys.all()), default=())
    rows = [(token.name, token.owner, local_time(token.at), _used(token)) for token in found]
    empty = "No tokens yet. Create one with everthread tokens new NAME."
    text = table(("NAME", "OWNER", "CREATED", "LAST USED"), rows, empty=empty)
    render(Result([_as_json(token) for token in found], text), as_json)


@tokens.command("revoke")
@click.argument("name")
@owner_option
@common_options
def revoke_token(cli: CliContext, name: str, owner: str, as_json: bool) -> None:
    """Revoke token NAME, with immediate effect.

    \b
    Examples:
      everthread tokens revoke laptop
      everthread tokens revoke phone --owner anna --json
    """
    whose = _owner(cli, owner)
    if not cli.write(lambda runtime: runtime.store.write(lambda uow: uow.api_keys.remove(whose, name))):
        raise NotFound(f"{whose} has no token {name[:80]!r}; `tokens list` shows all")
    render(Result({"name": name, "owner": whose, "revoked": True}, "Revoked."), as_json)


def _owner(cli: CliContext, owner: str) -> str:
    from everthread.domain.model import OWNER_CHARS_MAX

    if len(owner) > OWNER_CHARS_MAX or not owner.isprintable():
        raise BadInput(f"--owner must have 1 to {OWNER_CHARS_MAX} printable characters")
    return owner or cli.settings.owner


def _used(token: ApiKey) -> str:
    return "never" if token.used_at is None else local_time(token.used_at)


def _as_json(token: ApiKey) -> dict[str, Any]:
    return {"name": token.name, "owner": token.owner, "made": iso_time(token.at), "last_used": iso_time(token.used_at)}
