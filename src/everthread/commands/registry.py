"""What people can ask for with a slash: one table for every front end. Nothing here remembers where anybody is."""

from __future__ import annotations

import re
from collections.abc import Collection

from msgspec import Struct

from everthread.commands import access as approving
from everthread.commands import access as pairing
from everthread.commands import conversation as asking
from everthread.commands import conversation as here
from everthread.commands import conversation as shortening
from everthread.commands import export as exporting
from everthread.commands import memory as notes
from everthread.commands import model as models
from everthread.commands import search as searching
from everthread.commands import sessions as moving
from everthread.commands import usage as spending
from everthread.commands.context import Command, CommandContext, CommandResult, Document, Offer, refused
from everthread.domain.errors import DoneBefore, EverthreadError, StoreError

__all__ = [
    "COMMANDS",
    "Command",
    "CommandContext",
    "Document",
    "Offer",
    "ParsedCommand",
    "CommandResult",
    "Unknown",
    "carry_out",
    "parse",
    "withheld",
]

_USAGE_CHARS_MAX = 24

# A slash and a word: what has a second slash, a dot or a digit in it is a path, and `//` begins a comment.
# Some platforms add whom it is for: /new@everthread_bot.
_ORDER = re.compile(r"/([A-Za-z][A-Za-z_-]{0,31})(?:@\w{1,64})?(?=\s|$)")


class ParsedCommand(Struct, frozen=True):
    """A command as somebody gave it."""

    command: Command
    argument: str


class Unknown(Struct, frozen=True):
    """What looks like a command and is none. `answer` says what may have been meant."""

    answer: str


def parse(text: str) -> ParsedCommand | Unknown | None:
    """The command that a message is; `None` if it is an ordinary message."""
    match = _ORDER.match(text)
    if match is None:
        return None
    command = _named(match[1])
    if command is not None:
        return ParsedCommand(command, text[match.end() :].strip())
    name = match[1].lower()
    from difflib import get_close_matches  # noqa: PLC0415 - only for a slip of the fingers

    near = get_close_matches(name, [known for command in COMMANDS for known in _names(command)], 2, 0.6)
    hint = f"did you mean /{' or /'.join(near)}?" if near else "/help lists them all."
    return Unknown(f"There is no command /{name}; {hint} To send it as a message, put a space before it.")


async def carry_out(desk: CommandContext, order: ParsedCommand) -> CommandResult:
    """Do what was asked for; what can't be done is said, never raised.

    But for a command that came in by way of a platform, and that can be carried out later: then `StoreError` and
    `DoneBefore` are.
    """
    try:
        return await order.command.act(desk, order.argument)
    except (StoreError, DoneBefore) as error:
        if desk.order is not None or desk.update_id is not None:
            raise
        return refused(_sentence(error))
    except EverthreadError as error:
        return refused(_sentence(error))


def _sentence(error: EverthreadError) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]


def withheld(admin_commands: Collection[str], *, admin: bool) -> frozenset[str]:
    """Names of the commands that somebody on a platform may not give."""
    return frozenset(
        command.name
        for command in COMMANDS
        if command.leaves or (not admin and (command.for_admins or command.name in admin_commands))
    )


_TERMINAL = "cli"
_JUST_WRITE = "Just write to me. There is also:\n"


async def _help(desk: CommandContext, about: str) -> CommandResult:
    if about:
        command = _named(about.removeprefix("/"))
        if command is not None and command.name in desk.withheld:
            return refused(f"/{command.name} is not for you here; /help lists what is.")
        if command is None:
            found = parse(f"/{about.removeprefix('/')}")
            return refused(found.answer if isinstance(found, Unknown) else "There is no such command; /help lists all.")
        others = f"\nAlso: {', '.join(f'/{alias}' for alias in command.aliases)}" if command.aliases else ""
        return CommandResult(f"{command.usage}\n{command.help}{others}")
    commands = [command for command in COMMANDS if command.name not in desk.withheld]
    if desk.key.platform != _TERMINAL:
        # Letters are not all as wide as each other there: columns would not stand below each other.
        return CommandResult(
            "\n".join([_JUST_WRITE, *(f"{one.usage}: {one.help.splitlines()[0]}" for one in commands)])
        )
    # One long usage must not push the others' help off a terminal.
    width = max(len(command.usage) for command in commands if len(command.usage) <= _USAGE_CHARS_MAX)
    return CommandResult("\n".join(f"{command.usage:<{width}}  {command.help.splitlines()[0]}" for command in commands))


def _named(name: str) -> Command | None:
    return next((command for command in COMMANDS if name.lower() in _names(command)), None)


def _names(command: Command) -> tuple[str, ...]:
    return (command.name, *command.aliases)


COMMANDS = (
    Command("new", (), "/new [title]", "Start a new conversation.", True, moving.new, crosses=True),
    Command("reset", (), "/reset [title]", "The same as /new.", True, moving.reset, crosses=True),
    Command(
        "resume",
        (),
        "/resume [id|title|number]",
        "Go to another conversation; alone, list some.",
        True,
        moving.resume,
        private=True,
        crosses=True,
    ),
    Command(
        "branch", (), "/branch [title]", "Go on in a copy; this one stays as it is.", True, moving.branch, crosses=True
    ),
    Command(
        "handoff",
        (),
        "/handoff PLATFORM",
        "Go on with this conversation elsewhere.",
        True,
        moving.handoff,
        crosses=True,
    ),
    Command("compress", (), "/compress [focus]", "Replace old turns by a summary of them.", False, shortening.compress),
    Command(
        "uncompress",
        (),
        "/uncompress [title]",
        "Go on in a copy from before the last summary.",
        True,
        moving.uncompress,
        crosses=True,
    ),
    Command("title", (), "/title [title]", "Name this conversation; alone, show its name.", False, here.title),
    Command("undo", (), "/undo [n]", "Take back the last turn, or the last n.", True, moving.undo, crosses=True),
    Command(
        "retry", (), "/retry", "Take back the last answer and ask the same again.", True, asking.retry, crosses=True
    ),
    Command("sessions", (), "/sessions", "List your latest conversations.", False, moving.sessions, private=True),
    Command(
        "search",
        (),
        "/search WORDS",
        "Find what was said, in any conversation.",
        True,
        searching.search,
        private=True,
    ),
    Command("export", (), "/export [file]", "Write this conversation down as Markdown.", False, exporting.export),
    Command("memory", (), notes.USAGE, "Show, add or remove notes.", False, notes.memory, private=True),
    Command("stop", (), "/stop", "Stop the answer that is being written; it is kept.", True, here.stop),
    Command("steer", (), "/steer TEXT", "Tell the agent something while it works.", True, asking.steer, True),
    Command(
        "queue", (), "/queue [text]", "Add a message to those that wait; alone, list them.", True, asking.queue, True
    ),
    Command("approve", (), "/approve CODE", "Allow what the agent asked about, by its code.", True, approving.approve),
    Command("deny", (), "/deny [code]", "Don't allow what the agent asked about.", True, approving.deny),
    Command("model", (), "/model [name]", "Show or choose the model that answers here.", True, models.model),
    Command("usage", (), "/usage", "Show how much was used, what it cost and what is left.", True, spending.usage),
    Command("status", (), "/status", "Show where you are and what is going on.", True, here.status),
    Command(
        "pair",
        (),
        "/pair CODE",
        "Let in whoever was shown this code; for admins.",
        True,
        pairing.pair,
        unstored=True,
        for_admins=True,
    ),
    Command("help", (), "/help [command]", "Show this, or more about one command.", True, _help, unstored=True),
    Command("quit", ("exit",), "/quit", "Leave; the conversation is kept.", True, here.leave, leaves=True),
)
