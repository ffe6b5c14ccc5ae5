"""`everthread send`: a message from a script to a chat, by way of the gateway's outbox."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.domain.model import Reply, SessionKey
    from everthread.store.unit_of_work import UnitOfWork

TEXT_CHARS_MAX = 100_000
FILE_BYTES_MAX = 20_000_000
LOOK_S = 0.1


@click.command()
@click.argument("address")
@click.argument("text", required=False)
@click.option(
    "--file", "file", metavar="PATH", default="", help="Send this file; its text, where no files can be sent."
)
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0, max=86_400),
    default=0.0,
    help="Wait so long for it to be sent.",
)
@json_option
@home_option
@pass_invocation
def send(invocation: CliContext, address: str, text: str | None, file: str, wait_s: float, as_json: bool) -> None:
    """Send TEXT to the chat ADDRESS: PLATFORM:CHAT, or PLATFORM:CHAT#THREAD.

    Without TEXT, or if it is -, what is piped in is sent. It is stored, and sent by the gateway: at once if one runs,
    else when one does.

    \b
    Examples:
      everthread send telegram:42 "The backup is done."
      df -h | everthread send telegram:42
      everthread send telegram:42 "This month" --file report.pdf --wait 30
      everthread send telegram:42 - --json < note.txt

    Exit codes: 0 stored, or sent with --wait; 1 refused, or nobody can say whether it was sent; 75 still waiting.
    """
    from everthread.cli.commands.gateway import lock as holding
    from everthread.cli.exit_codes import REFUSED, RETRY, complain
    from everthread.domain.model import ReplyState
    from everthread.domain.schedule import chat_at

    settings = invocation.settings
    platforms = [name for name, account in settings.platforms.items() if account.enabled]
    key = chat_at(address, settings.profile, platforms)
    name, content = _attachment(file)
    said = _said(text, optional=bool(file))
    running = holding.look(settings.home).running

    async def work(runtime: CliRuntime) -> Reply:
        reply = await _stored(runtime, key, settings.owner, said, name, content)
        deadline = runtime.clock.now() + wait_s
        while reply.state in (ReplyState.READY, ReplyState.SENDING) and runtime.clock.now() < deadline:
            await runtime.clock.sleep(LOOK_S)
            reply = await runtime.store.read_inline(lambda uow, name=reply.turn_id: uow.outbox.reply(name)) or reply
        return reply

    reply = invocation.talk(work)
    if as_json:
        show.print_json({"id": reply.turn_id, "to": address, "state": reply.state.value, "gateway": running})
    elif reply.state is ReplyState.SENT:
        click.echo("Sent.")
    elif reply.state in (ReplyState.READY, ReplyState.SENDING):
        click.echo("Queued; the gateway sends it." if running else "Queued; it is sent once a gateway runs.")
    if reply.state in (ReplyState.FAILED, ReplyState.AMBIGUOUS, ReplyState.WITHHELD):
        complain(f"not known to have been sent ({reply.state.value}); everthread doctor says why")
        raise click.exceptions.Exit(REFUSED)
    if wait_s and reply.state is not ReplyState.SENT:
        raise click.exceptions.Exit(RETRY)


async def _stored(runtime: CliRuntime, key: SessionKey, owner: str, text: str, name: str, content: bytes) -> Reply:
    from everthread.domain.model import Reply, ReplyState

    reply = Reply(f"send-{runtime.new_id()}", key, "", owner, text, ReplyState.READY, runtime.clock.now(), file=name)

    def store(uow: UnitOfWork) -> Reply:
        if name:
            uow.outbox.attach(reply.turn_id, owner, name, content)
        return uow.outbox.put_reply(reply)

    return await runtime.store.write(store)


def _said(text: str | None, *, optional: bool) -> str:
    from everthread.domain.errors import BadInput, TooLarge
    from everthread.domain.model import whole

    if text == "-" or (text is None and not optional):
        if text is None and (sys.stdin is None or sys.stdin.isatty()):
            raise click.UsageError("there is no TEXT; give it, or pipe it in")
        text = sys.stdin.buffer.read(4 * TEXT_CHARS_MAX + 1).decode("utf-8", "replace").strip("\r\n")
    text = whole(text or "").replace("\0", "")
    if len(text) > TEXT_CHARS_MAX:
        raise TooLarge(f"a message has at most {TEXT_CHARS_MAX} characters; send it with --file")
    if not text.strip() and not optional:
        raise BadInput("there is nothing to send")
    return text


def _attachment(file: str) -> tuple[str, bytes]:
    from everthread.cli.files import path_given
    from everthread.domain.errors import BadInput, NotFound, TooLarge

    if not file:
        return "", b""
    path = path_given(file)
    try:
        with path.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise NotFound(f"{path}: there is no such file") from None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    if len(content) > FILE_BYTES_MAX:
        raise TooLarge(f"{path}: a file to send has at most {FILE_BYTES_MAX // 1_000_000} MB")
    return path.name[:200], content
