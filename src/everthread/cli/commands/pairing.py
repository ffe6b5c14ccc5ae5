"""`everthread pairing`: approve and revoke accounts that may write to the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everthread.cli.context import CliContext, CliRuntime, common_options
from everthread.cli.output import Result, iso_time, render, table
from everthread.domain.text_format import local_time, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from everthread.domain.pairing import PairedAccount, PairingRequest
    from everthread.lifecycle.pairing import Pairings


@click.group()
def pairing() -> None:
    """Manage who may write to the agent.

    A stranger who writes to the agent gets a code that is valid for an hour. Approve the code to let them in. Apart
    from that, only accounts named in the settings may write.

    \b
    Examples:
      everthread pairing list
      everthread pairing approve K7WM3XQP
      everthread pairing revoke telegram:12345
    """


@pairing.command("list")
@common_options
def list_pairings(cli: CliContext, as_json: bool) -> None:
    """List pending and approved accounts. Codes are not shown: only their hashes are stored.

    \b
    Examples:
      everthread pairing list
      everthread pairing list --json | jq -r '.guests[].account'
    """
    known = cli.read(lambda runtime: _pairings(runtime).list_all(), default=None)
    waiting, guests = (known.waiting, known.guests) if known is not None else ((), ())

    def text() -> Iterator[str]:
        if waiting:
            rows = [(each.account, each.name or "-", local_time(each.expires_at)) for each in waiting]
            yield table(("PENDING", "NAME", "CODE EXPIRES"), rows)
        if guests:
            rows = [(each.account, each.name or "-", each.owner, local_time(each.at)) for each in guests]
            yield ("\n" if waiting else "") + table(("GUEST", "NAME", "PERSON", "APPROVED"), rows)
        if not waiting and not guests:
            yield "No pending codes and no approved accounts."

    data = {"waiting": [_waiting(each) for each in waiting], "guests": [_guest(each) for each in guests]}
    render(Result(data, text), as_json)


@pairing.command()
@click.argument("code")
@click.option("--owner", metavar="NAME", default="", help="The person this account belongs to. Default: a new person.")
@common_options
def approve(cli: CliContext, code: str, owner: str, as_json: bool) -> None:
    """Approve the account that was shown CODE. The gateway notifies it.

    With --owner, the account belongs to that person and shares their memory and sessions. Your own name is the
    setting `owner` (default: me).

    \b
    Examples:
      everthread pairing approve K7WM3XQP
      everthread pairing approve K7WM3XQP --owner me
      everthread pairing approve k7wm-3xqp --json
    """
    from everthread.lifecycle.pairing import TERMINAL

    guest = cli.write(lambda runtime: _pairings(runtime).approve(code, scope=TERMINAL, owner=owner))
    name = f" ({one_line(guest.name)})" if guest.name else ""
    text = f"{one_line(guest.account)}{name} may write now, as {one_line(guest.owner)}."
    render(Result(_guest(guest), text), as_json)


@pairing.command()
@click.argument("account", metavar="PLATFORM:USER")
@common_options
def revoke(cli: CliContext, account: str, as_json: bool) -> None:
    """Revoke the access of PLATFORM:USER, or their pending code.

    Their sessions are kept. `everthread forget --owner` forgets them.

    \b
    Examples:
      everthread pairing revoke telegram:12345
      everthread pairing revoke telegram:12345 --json
    """
    platform, colon, user = account.partition(":")
    if not (platform and colon and user):
        raise click.UsageError(f"Invalid account {account[:100]!r}. Write PLATFORM:USER, as `pairing list` does")
    found = cli.write(lambda runtime: _pairings(runtime).revoke(platform, user))
    known = cli.settings.platforms.get(platform)
    named = known is not None and (known.allow_all or user in known.allow or user in known.admins)
    still = f"the settings still allow {account[:100]}: see [platforms.{platform[:32]}] in config.toml" if named else ""
    if not found:
        from everthread.domain.errors import NotFound

        raise NotFound(still or f"no approved account {account[:100]!r}; `pairing list` shows all")
    text = f"Revoked, but {one_line(still)}." if named else f"Revoked {one_line(account)}."
    render(Result({"account": account, "still_allowed": named}, text), as_json)


def _pairings(runtime: CliRuntime) -> Pairings:
    from everthread.lifecycle.pairing import Pairings

    return Pairings(runtime.store, runtime.clock)


def _waiting(pairing: PairingRequest) -> dict[str, str | None]:
    return {
        "account": pairing.account,
        "name": pairing.name,
        "at": iso_time(pairing.at),
        "expires_at": iso_time(pairing.expires_at),
    }


def _guest(guest: PairedAccount) -> dict[str, str | None]:
    return {"account": guest.account, "name": guest.name, "owner": guest.owner, "at": iso_time(guest.at)}
