"""`everthread tokens`: the keys that other programs use the HTTP interface with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.store.api_keys import ApiKey


@click.group()
def tokens() -> None:
    """Make and revoke the tokens of the HTTP interface.

    A token opens the conversations of one owner. It is shown once, when it is made; what is kept of it is of no
    use to anybody. As soon as there is one, every request needs one.

    \b
    Examples:
      everthread tokens new laptop
      everthread tokens new phone --owner anna
      everthread tokens list
      everthread tokens revoke laptop
    """


def owner_option(command: Any) -> Any:
    return click.option("--owner", metavar="O", default="", help="Whose; you, if it is not given.")(command)


@tokens.command("new")
@click.argument("name")
@owner_option
@json_option
@home_option
@pass_invocation
def new_token(invocation: CliContext, name: str, owner: str, as_json: bool) -> None:
    """Make the token NAME and show it, this once.

    \b
    Examples:
      everthread tokens new laptop
      everthread tokens new phone --owner anna --json | jq -r .token
    """
    import secrets

    from everthread.domain.api_key import BYTES, check_name, hashed, made_of
    from everthread.domain.errors import AlreadyThere
    from everthread.store.api_keys import ApiKey

    check_name(name)
    whose = _owner(invocation, owner)
    token = made_of(secrets.token_urlsafe(BYTES))

    async def add(runtime: CliRuntime) -> bool:
        row = ApiKey(hashed(token), whose, name, runtime.clock.now())
        return await runtime.store.write(lambda uow: uow.api_keys.add(row))

    if not invocation.talk(add):
        raise AlreadyThere(f"{whose} has a token {name!r}; choose another name, or revoke it: tokens revoke {name}")
    if as_json:
        show.print_json({"name": name, "owner": whose, "token": token})
    else:
        click.echo(token)
        click.echo(f"It opens the conversations of {show.one_line(whose)}, and is not shown again.", err=True)


@tokens.command("list")
@json_option
@home_option
@pass_invocation
def list_tokens(invocation: CliContext, as_json: bool) -> None:
    """List the tokens there are. None of them can be read here.

    \b
    Examples:
      everthread tokens list
      everthread tokens list --json | jq -r '.[].name'
    """

    async def look(runtime: CliRuntime) -> tuple[ApiKey, ...]:
        return await runtime.store.read(lambda uow: uow.api_keys.all())

    found = invocation.look(look, nothing=())
    if as_json:
        show.print_json([_as_json(token) for token in found])
    elif not found:
        click.echo("No tokens yet; everthread tokens new NAME makes one.")
    else:
        rows = [(token.name, token.owner, show.local_time(token.at), _used(token)) for token in found]
        click.echo(show.table(("NAME", "OWNER", "MADE", "LAST USED"), rows))


@tokens.command("revoke")
@click.argument("name")
@owner_option
@json_option
@home_option
@pass_invocation
def revoke_token(invocation: CliContext, name: str, owner: str, as_json: bool) -> None:
    """Revoke the token NAME: from now on it opens nothing, also where it is in use.

    \b
    Examples:
      everthread tokens revoke laptop
      everthread tokens revoke phone --owner anna --json
    """
    from everthread.domain.errors import NotFound

    whose = _owner(invocation, owner)

    async def remove(runtime: CliRuntime) -> bool:
        return await runtime.store.write(lambda uow: uow.api_keys.remove(whose, name))

    if not invocation.act(remove)[0]:
        raise NotFound(f"{whose} has no token {name[:80]!r}; `tokens list` shows the ones there are")
    if as_json:
        show.print_json({"name": name, "owner": whose, "revoked": True})
    else:
        click.echo("Revoked.")


def _owner(invocation: CliContext, owner: str) -> str:
    from everthread.domain.errors import BadInput
    from everthread.domain.model import OWNER_CHARS_MAX

    if len(owner) > OWNER_CHARS_MAX or not owner.isprintable():
        raise BadInput(f"an owner is 1 to {OWNER_CHARS_MAX} printable characters")
    return owner or invocation.settings.owner


def _used(token: ApiKey) -> str:
    return "never" if token.used_at is None else show.local_time(token.used_at)


def _as_json(token: ApiKey) -> dict[str, Any]:
    return {
        "name": token.name,
        "owner": token.owner,
        "made": show.iso_time(token.at),
        "last_used": show.iso_time(token.used_at),
    }
