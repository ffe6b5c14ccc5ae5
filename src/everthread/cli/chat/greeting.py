"""Messages at the start and at the end of a chat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.cli.chat.session import leave_session
from everthread.cli.context import CliRuntime
from everthread.cli.view import ChatView
from everthread.domain.errors import EverthreadError
from everthread.domain.model import SessionKey

if TYPE_CHECKING:
    from everthread.cli.chat.slash_commands import SlashCommands


async def show_welcome(runtime: CliRuntime, view: ChatView, commands: SlashCommands) -> None:
    """Show the model and the session, with a recap if the session is resumed."""
    from everthread.commands.context import session_label
    from everthread.commands.sessions import recap_current

    is_small = False
    try:
        choice = commands.choices()[0]
        model, is_small = choice.name, choice.traits.small
    except EverthreadError as error:
        view.show_error(str(error))
        model = "no model yet"

    recap = await recap_current(commands.context())
    session = f"resumed {session_label(recap.title, recap.session_id)}" if recap else "a new session"
    view.show_notice(f"Everthread with {model}: {session}.\n/help lists the commands, Ctrl-D leaves.")
    if recap is not None and recap.last_turns:
        view.show_recap(recap)
    if is_small:
        view.show_notice("This is a small model for trying things out and is often wrong. Set `model` to use another.")


async def show_farewell(runtime: CliRuntime, view: ChatView, key: SessionKey, *, cut_off: bool) -> None:
    """Leave the session, and show how to continue it and which messages stay unanswered."""
    if cut_off:
        view.show_notice("Stopped during an answer; `everthread -c` continues it.")
        return
    unanswered = await leave_session(runtime, key)
    if unanswered:
        from everthread.commands.context import list_messages

        view.show_notice(f"Set aside without an answer: {list_messages(unanswered)}")
    current = await runtime.lifecycle.current(key)
    if current is not None and view.interactive:
        view.show_notice(f"Continue with: everthread -r {current.session_id}")
