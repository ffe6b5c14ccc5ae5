"""The table of slash commands, for every front end: parse a message, find its command, run it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection

from msgspec import Struct

from everthread.commands import approval, export, memory, model, search, sessions, turns, usage
from everthread.commands.context import CommandContext, CommandResult, fail, sentence
from everthread.domain.errors import AlreadyDone, EverthreadError, StoreError

_USAGE_CHARS_MAX = 24
_TERMINAL = "cli"

# A slash and a word. A second slash, a dot or a digit makes it a path, and `//` begins a comment.
# Some platforms add the addressee: /new@everthread_bot.
_COMMAND = re.compile(r"/([A-Za-z][A-Za-z_-]{0,31})(?:@\w{1,64})?(?=\s|$)")


class Command(Struct, frozen=True):
    """One row of the table."""

    name: str
    arguments: str
    """As shown in help: capitals are required, brackets optional."""
    help: str
    run: Callable[[CommandContext, str], Awaitable[CommandResult]]
    aliases: tuple[str, ...] = ()
    skips_queue: bool = True
    """Runs immediately, even while an answer is being written. The others wait for the messages before them."""
    takes_message: bool = False
    """Its argument is a message for the agent, which the command accepts itself."""
    unstored: bool = False
    """Runs on arrival and is never stored: it does not depend on the session, or its argument is secret."""
    admin_only: bool = False
    """For admins of a platform. The settings may add others (`admin_commands`)."""
    private: bool = False
    """Shows the owner's other sessions, so it is refused in groups."""
    crosses_boundary: bool = False
    """Changes the session or its transcript. Commands that arrived earlier run first."""
    terminal_only: bool = False

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.arguments}".rstrip()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


class ParsedCommand(Struct, frozen=True):
    """A known command and its argument."""

    command: Command
    argument: str


class UnknownCommand(Struct, frozen=True):
    """A message that looks like a command but names none. `answer` suggests similar ones."""

    answer: str


def parse(text: str) -> ParsedCommand | UnknownCommand | None:
    """Parse a message as a command; `None` if it is an ordinary message."""
    match = _COMMAND.match(text)
    if match is None:
        return None
    command = _find(match[1])
    if command is not None:
        return ParsedCommand(command, text[match.end() :].strip())
    name = match[1].lower()
    from difflib import get_close_matches  # noqa: PLC0415 - only for a misspelled name

    near = get_close_matches(name, [known for command in COMMANDS for known in command.names], 2, 0.6)
    hint = f"Did you mean /{' or /'.join(near)}?" if near else "/help lists the commands."
    return UnknownCommand(f"Unknown command /{name}. {hint} To send it as a message, put a space before it.")


async def run_command(context: CommandContext, parsed: ParsedCommand) -> CommandResult:
    """Run a command. Errors become a result that is not `ok`.

    `StoreError` and `AlreadyDone` are raised for commands from a platform, because those can be retried.
    """
    try:
        return await parsed.command.run(context, parsed.argument)
    except (StoreError, AlreadyDone) as error:
        if context.order is not None or context.update_id is not None:
            raise
        return fail(sentence(error))
    except EverthreadError as error:
        return fail(sentence(error))


def hidden_commands(admin_commands: Collection[str], *, admin: bool) -> frozenset[str]:
    """Names of the commands that a user of a platform may not run."""
    return frozenset(
        command.name
        for command in COMMANDS
        if command.terminal_only or (not admin and (command.admin_only or command.name in admin_commands))
    )


async def _help(context: CommandContext, name: str) -> CommandResult:
    if name:
        return _help_about(context, name.removeprefix("/"))
    commands = [command for command in COMMANDS if command.name not in context.hidden_commands]
    if context.key.platform != _TERMINAL:
        # Platforms use proportional fonts: columns would not line up.
        lines = [f"{command.usage}: {command.help}" for command in commands]
        return CommandResult("\n".join(["Send me a message, or use a command:\n", *lines]))
    # One long usage must not push the help of the others off the screen.
    width = max(len(command.usage) for command in commands if len(command.usage) <= _USAGE_CHARS_MAX)
    return CommandResult("\n".join(f"{command.usage:<{width}}  {command.help}" for command in commands))


def _help_about(context: CommandContext, name: str) -> CommandResult:
    command = _find(name)
    if command is None:
        found = parse(f"/{name}")
        return fail(found.answer if isinstance(found, UnknownCommand) else "Unknown command. /help lists the commands.")
    if command.name in context.hidden_commands:
        return fail(f"You may not use /{command.name} here. /help lists the commands you may use.")
    aliases = f"\nAlias: {', '.join(f'/{alias}' for alias in command.aliases)}" if command.aliases else ""
    return CommandResult(f"{command.usage}\n{command.help}{aliases}")


def _find(name: str) -> Command | None:
    return _BY_NAME.get(name.lower())


COMMANDS = (
    Command("new", "[title]", "Start a new session.", sessions.new, crosses_boundary=True),
    Command("reset", "[title]", "Same as /new.", sessions.reset, crosses_boundary=True),
    Command(
        "resume",
        "[id|title|number]",
        "Resume a session by title or id. Without one, list sessions.",
        sessions.resume,
        private=True,
        crosses_boundary=True,
    ),
    Command("branch", "[title]", "Continue in a copy of this session.", sessions.branch, crosses_boundary=True),
    Command(
        "handoff", "PLATFORM", "Continue this session on another platform.", sessions.handoff, crosses_boundary=True
    ),
    Command("compress", "[focus]", "Replace old turns with a summary.", turns.compress, skips_queue=False),
    Command(
        "uncompress",
        "[title]",
        "Continue in a copy from before the last summary.",
        sessions.uncompress,
        crosses_boundary=True,
    ),
    Command("title", "[title]", "Show or set the title of this session.", turns.title, skips_queue=False),
    Command("undo", "[n]", "Undo the last turn, or the last n turns.", sessions.undo, crosses_boundary=True),
    Command("retry", "", "Discard the last answer and ask again.", turns.retry, crosses_boundary=True),
    Command("sessions", "", "List your latest sessions.", sessions.sessions, skips_queue=False, private=True),
    Command("search", "WORDS", "Search all your sessions.", search.search, private=True),
    Command("export", "[file]", "Export this session as Markdown.", export.export, skips_queue=False),
    Command(
        "memory",
        memory.ARGUMENTS,
        "Show, add, remove or restore notes.",
        memory.memory,
        skips_queue=False,
        private=True,
    ),
    Command("stop", "", "Stop the current answer and keep what was written.", turns.stop),
    Command("steer", "TEXT", "Send a message to the agent while it works.", turns.steer, takes_message=True),
    Command("queue", "[text]", "Queue a message. Without one, list the queue.", turns.queue, takes_message=True),
    Command("approve", "CODE", "Allow the tool call with this code.", approval.approve),
    Command("deny", "[code]", "Deny a tool call.", approval.deny),
    Command("model", "[name]", "Show or change the model of this session.", model.model),
    Command("usage", "", "Show tokens, cost and the remaining budget.", usage.usage),
    Command("status", "", "Show the session, the queue and the state of memory.", turns.status),
    Command(
        "pair",
        "CODE",
        "Give access to the user who was shown this code (admins).",
        approval.pair,
        unstored=True,
        admin_only=True,
    ),
    Command("help", "[command]", "List the commands, or describe one.", _help, unstored=True),
    Command("quit", "", "Leave. The session is kept.", turns.leave, aliases=("exit",), terminal_only=True),
)
_BY_NAME = {name: command for command in COMMANDS for name in command.names}
