"""`everthread send`: put a message for a chat into the outbox of the gateway."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from everthread.cli.context import CliContext, CliRuntime, common_options
from everthread.cli.exit_codes import RETRY
from everthread.cli.files import parse_path
from everthread.cli.output import Result, render
from everthread.domain.errors import BadInput, EverthreadError, NotFound, TooLarge

if TYPE_CHECKING:
    from everthread.domain.model import Reply, SessionKey
    from everthread.store.unit_of_work import UnitOfWork

TEXT_CHARS_MAX = 100_000
FILE_BYTES_MAX = 20_000_000
POLL_S = 0.1


@click.command()
@click.argument("address")
@click.argument("text", required=False)
@click.option("--file", "file", metavar="PATH", default="", help="Send this file; as text on platforms without files.")
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0, max=86_400),
    default=0.0,
    help="Wait up to this long until it is sent.",
)
@common_options
def send(cli: CliContext, address: str, text: str | None, file: str, wait_s: float, as_json: bool) -> None:
    """Send TEXT to a chat. ADDRESS is PLATFORM:CHAT or PLATFORM:CHAT#THREAD.

    Without TEXT, or with -, the text is read from stdin. The message is stored and sent by the gateway as soon as one
    is running.

    \b
    Examples:
      everthread send telegram:42 "The backup is done."
      df -h | everthread send telegram:42
      everthread send telegram:42 "This month" --file report.pdf --wait 30
      everthread send telegram:42 - --json < note.txt

    Exit codes: 0 stored (with --wait: sent), 1 refused or delivery unknown, 75 still waiting.
    """
    from everthread.cli.commands.gateway.lock import read_lock
    from everthread.domain.model import ReplyState
    from everthread.domain.schedule import parse_address

    settings = cli.settings
    platforms = [name for name, account in settings.platforms.items() if account.enabled]
    key = parse_address(address, settings.profile, platforms)
    name, content = _read_file(file)
    message = _read_text(text, optional=bool(file))
    running = read_lock(settings.home).running

    async def work(runtime: CliRuntime) -> Reply:
        reply = await _store(runtime, key, settings.owner, message, name, content)
        deadline = runtime.clock.elapsed() + wait_s
        while reply.state in (ReplyState.READY, ReplyState.SENDING) and runtime.clock.elapsed() < deadline:
            await runtime.clock.sleep(POLL_S)
            reply = await runtime.store.read_inline(lambda uow, name=reply.turn_id: uow.outbox.reply(name)) or reply
        return reply

    reply = cli.open_home(work)
    text = ""
    if reply.state is ReplyState.SENT:
        text = "Sent."
    elif reply.state in (ReplyState.READY, ReplyState.SENDING):
        text = "Queued; the gateway sends it." if running else "Queued; it is sent when a gateway runs."
    data = {"id": reply.turn_id, "to": address, "state": reply.state.value, "gateway": running}
    render(Result(data, text), as_json)
    if reply.state in (ReplyState.FAILED, ReplyState.AMBIGUOUS, ReplyState.WITHHELD):
        raise EverthreadError(f"delivery failed or is unknown ({reply.state.value}); see everthread doctor")
    if wait_s and reply.state is not ReplyState.SENT:
        raise click.exceptions.Exit(RETRY)


async def _store(runtime: CliRuntime, key: SessionKey, owner: str, text: str, name: str, content: bytes) -> Reply:
    from everthread.domain.model import Reply, ReplyState

    reply = Reply(f"send-{runtime.new_id()}", key, "", owner, text, ReplyState.READY, runtime.clock.now(), file=name)

    def store(uow: UnitOfWork) -> Reply:
        if name:
            uow.outbox.attach(reply.turn_id, owner, name, content)
        return uow.outbox.put_reply(reply)

    return await runtime.store.write(store)


def _read_text(text: str | None, *, optional: bool) -> str:
    from everthread.domain.model import replace_surrogates

    if text == "-" or (text is None and not optional):
        if text is None and (sys.stdin is None or sys.stdin.isatty()):
            raise click.UsageError("TEXT is missing. Give it, or pipe it in")
        text = sys.stdin.buffer.read(4 * TEXT_CHARS_MAX + 1).decode("utf-8", "replace").strip("\r\n")
    text = replace_surrogates(text or "").replace("\0", "")
    if len(text) > TEXT_CHARS_MAX:
        raise TooLarge(f"the message is longer than {TEXT_CHARS_MAX} characters; send it with --file")
    if not text.strip() and not optional:
        raise BadInput("the message is empty; give TEXT or --file")
    return text


def _read_file(file: str) -> tuple[str, bytes]:

    if not file:
        return "", b""
    path = parse_path(file)
    try:
        with path.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file") from None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; choose another file") from error
    if len(content) > FILE_BYTES_MAX:
        raise TooLarge(f"{path}: larger than {FILE_BYTES_MAX // 1_000_000} MB; send a smaller file")
    return path.name[:200], content
