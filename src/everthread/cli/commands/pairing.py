"""`everthread pairing`: letting people in who write from elsewhere, and turning them out again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.config.settings import Settings
    from everthread.domain.pairing import Paired, Pairing
    from everthread.lifecycle.pairing import Known


@click.group()
def pairing() -> None:
    """Let people in who write from elsewhere.

    A stranger who writes to the agent is shown a code, which holds for an hour. Whoever gives you the code is let in
    with it; nobody else can write, but those whom the settings name.

    \b
    Examples:
      everthread pairing list
      everthread pairing approve K7WM3XQP
      everthread pairing revoke telegram:12345
    """


@pairing.command("list")
@json_option
@home_option
@pass_invocation
def list_pairings(invocation: CliContext, as_json: bool) -> None:
    """List who waits with a code, and who was let in with one. Codes are not shown: nobody here knows them.

    \b
    Examples:
      everthread pairing list
      everthread pairing list --json | jq -r '.guests[].account'
    """

    async def work(runtime: CliRuntime) -> Known:
        from everthread.lifecycle.pairing import Pairings

        return await Pairings(runtime.store, runtime.clock).known()

    known = invocation.look(work, nothing=None)
    waiting, guests = (known.waiting, known.guests) if known is not None else ((), ())
    if as_json:
        show.print_json({"waiting": [_waiting(each) for each in waiting], "guests": [_guest(each) for each in guests]})
        return
    if waiting:
        rows = [(each.account, each.name or "-", show.local_time(each.expires_at)) for each in waiting]
        click.echo(show.table(("WAITING", "NAME", "CODE HOLDS UNTIL"), rows))
    if guests:
        rows = [(each.account, each.name or "-", each.owner, show.local_time(each.at)) for each in guests]
        click.echo(("\n" if waiting else "") + show.table(("GUEST", "NAME", "PERSON", "LET IN"), rows))
    if not waiting and not guests:
        click.echo("Nobody waits, and nobody was let in with a code.")


@pairing.command()
@click.argument("code")
@click.option("--owner", metavar="NAME", default="", help="The person that this account is; without it, a new one.")
@json_option
@home_option
@pass_invocation
def approve(invocation: CliContext, code: str, owner: str, as_json: bool) -> None:
    """Let in whoever was shown CODE. They are told by the gateway.

    With --owner the account is that person's: one memory, and the same conversations to resume, wherever they write
    from. Your own name is `owner` in the settings: me, if it was not changed.

    \b
    Examples:
      everthread pairing approve K7WM3XQP
      everthread pairing approve K7WM3XQP --owner me
      everthread pairing approve k7wm-3xqp --json
    """

    async def work(runtime: CliRuntime) -> Paired:
        from everthread.lifecycle.pairing import TERMINAL, Pairings

        return await Pairings(runtime.store, runtime.clock).approve(code, scope=TERMINAL, owner=owner)

    guest, _ = invocation.act(work)
    if as_json:
        show.print_json(_guest(guest))
    else:
        name = f" ({show.one_line(guest.name)})" if guest.name else ""
        click.echo(f"{show.one_line(guest.account)}{name} may write now, as {show.one_line(guest.owner)}.")


@pairing.command()
@click.argument("account", metavar="PLATFORM:USER")
@json_option
@home_option
@pass_invocation
def revoke(invocation: CliContext, account: str, as_json: bool) -> None:
    """Let PLATFORM:USER in no more, or have their code hold no more.

    What they said is kept; `everthread forget --owner` forgets it.

    \b
    Examples:
      everthread pairing revoke telegram:12345
      everthread pairing revoke telegram:12345 --json
    """
    platform, colon, user = account.partition(":")
    if not (platform and colon and user):
        raise click.UsageError(f"{account[:100]!r} is no account; write PLATFORM:USER, as `pairing list` does")

    async def work(runtime: CliRuntime) -> bool:
        from everthread.lifecycle.pairing import Pairings

        return await Pairings(runtime.store, runtime.clock).revoke(platform, user)

    found, _ = invocation.act(work)
    named = _is_named(invocation.settings, platform, user)
    still = f"the settings let {account[:100]} in: see [platforms.{platform[:32]}] in config.toml" if named else ""
    if not found:
        from everthread.domain.errors import NotFound

        raise NotFound(still or f"{account[:100]!r} was not let in with a code; `pairing list` shows who was")
    if as_json:
        show.print_json({"account": account, "still_allowed": named})
    else:
        click.echo(
            f"{show.one_line(account)} is let in no more." if not named else f"Done, but {show.one_line(still)}."
        )


def _is_named(settings: Settings, platform: str, user: str) -> bool:
    """Whether the settings let them in, whatever was paired."""
    there = settings.platforms.get(platform)
    return there is not None and (there.allow_all or user in there.allow or user in there.admins)


def _waiting(pairing: Pairing) -> dict[str, str | None]:
    return {
        "account": pairing.account,
        "name": pairing.name,
        "at": show.iso_time(pairing.at),
        "expires_at": show.iso_time(pairing.expires_at),
    }


def _guest(guest: Paired) -> dict[str, str | None]:
    return {"account": guest.account, "name": guest.name, "owner": guest.owner, "at": show.iso_time(guest.at)}
