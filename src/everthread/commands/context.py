"""The input and the result of a slash command, and the wording that commands share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from everthread.agent.model_call import ModelChoice
from everthread.agent.rights import RightsLookup
from everthread.agent.skills.folders import SkillFolders
from everthread.agent.turn import Agent
from everthread.commands.recap import Recap
from everthread.domain.errors import BadInput, NotFound
from everthread.domain.model import InboxRow, Session, SessionKey
from everthread.domain.pairing import PairedAccount
from everthread.domain.rights import Rights, speaker_account
from everthread.domain.text_format import quote_start
from everthread.lifecycle import Lifecycle
from everthread.lifecycle.session_lookup import find_session
from everthread.memory import MemoryManager
from everthread.memory.note_files import NoteFiles
from everthread.store.unit_of_work import Store, UnitOfWork

if TYPE_CHECKING:
    from everthread.config.schema import Settings

_LISTED_MAX = 20
NO_SESSION = "There is no session here yet. Send a message, or start one with /new TITLE."


class CommandRuntime(Protocol):
    """The part of a wired-up runtime that slash commands use."""

    settings: Settings
    lifecycle: Lifecycle
    store: Store
    agent: Agent
    memory: MemoryManager
    note_files: NoteFiles
    rights: RightsLookup

    @property
    def skills(self) -> SkillFolders: ...
    def choices(self, model: str = "") -> Sequence[ModelChoice]: ...
    def known_models(self) -> tuple[str, ...]: ...


Reaches = Callable[[UnitOfWork, SessionKey, str], bool]
"""Tells whether a reply sent to a key reaches that owner."""


class CommandContext(Struct, frozen=True):
    """The caller of a command and the services that it may use. Built for each call; commands look up the session."""

    runtime: CommandRuntime
    key: SessionKey
    owner: str
    model: str = ""
    """The model chosen for this key; empty is the configured one."""
    account: str = ""
    update_id: str | None = None
    """The platform's id of the update with the command, as in `Inbound`; `None` in a terminal."""
    user: str = ""
    """The caller's id on the platform, as in `Inbound`."""
    stop_next: Callable[[], Awaitable[bool]] | None = None
    """Stops the queued message before this command; returns false if there is none."""
    reaches: Reaches = lambda uow, key, owner: True
    """Returns true if the account at a key is enabled and belongs to that owner."""
    only_into: str = ""
    """The session that an accepted message must go to; empty is the session of the key."""
    order: int | None = None
    """The command's id in the inbox; `None` if it was not stored."""
    hidden_commands: Collection[str] = ()
    """Names of commands that the caller may not run here."""
    pair: Callable[[str], Awaitable[PairedAccount]] | None = None
    """Approves a pairing code; `None` if the caller may not."""
    decide: Callable[[str, bool], CommandResult] | None = None
    """Allows or denies the tool call with that code; `None` in a terminal."""

    async def rights(self) -> Rights:
        """Return the rights of the caller; in a group, those that it has as well."""
        lookup = self.runtime.rights
        rights = await lookup.of_owner(self.owner, self.key.platform)
        return await lookup.of_speakers(rights, (speaker_account(self.key, self.user),))

    @property
    def guest(self) -> bool:
        """The caller is not the owner of this machine and must not see its configuration or health."""
        return self.owner != self.runtime.settings.owner


class MenuItem(Struct, frozen=True):
    """A choice: the label to show, and the command to run if it is chosen."""

    label: str
    command: str


class Document(Struct, frozen=True):
    """Text for a file. `name` is the user's own and may be a path: follow it only where the files belong to the user,
    and use `file_name` elsewhere."""

    name: str
    text: str

    @property
    def file_name(self) -> str:
        """The last part of `name`, without any folder."""
        return self.name.replace("\\", "/").rpartition("/")[2].lstrip(".") or "conversation.md"


class CommandResult(Struct, frozen=True):
    """The reply to a command, as plain text, and what the front end must do next."""

    text: str
    ok: bool = True
    """False if the command failed."""
    wakes_worker: bool = False
    """The command accepted a message: the front end must have it answered."""
    quits: bool = False
    model: str | None = None
    """The model to use from now on, if it changes."""
    menu: tuple[MenuItem, ...] = ()
    """Choices to show instead of `text`, which lists the same ones."""
    document: Document | None = None
    """A file to write or send."""
    wrote_outbox: bool = False
    """The command queued a message to another user in the outbox."""
    recap: Recap | None = None
    """The recap of the session that is current now."""


def fail(text: str) -> CommandResult:
    return CommandResult(text, ok=False)


def sentence(error: Exception) -> str:
    """The message of an error with a capital first letter."""
    text = str(error)
    return text[:1].upper() + text[1:]


def list_messages(rows: Sequence[InboxRow]) -> str:
    """The first words of some messages."""
    shown = ", ".join(quote_start(row.inbound.text) for row in rows[:_LISTED_MAX])
    return shown + (f" and {len(rows) - _LISTED_MAX} more" if len(rows) > _LISTED_MAX else "")


def session_label(title: str | None, session_id: str) -> str:
    """The title in quotes, which is unique for its owner, or the id."""
    return f'"{title}"' if title else session_id


def label_of(session: Session) -> str:
    return session_label(session.title, session.id)


def resume_item(session_id: str, title: str, note: str = "") -> MenuItem:
    """A choice that resumes a session."""
    return MenuItem("  ".join(part for part in (title or session_id, note) if part), f"/resume {session_id}")


async def current_session(context: CommandContext) -> Session | None:
    """The caller's session that the key is bound to."""
    ref = await context.runtime.lifecycle.current(context.key)
    if ref is None or ref.owner != context.owner:
        return None
    return await context.runtime.store.read_inline(lambda uow: uow.sessions.get(ref.session_id))


def resume_argument(uow: UnitOfWork, session: Session) -> str:
    """The title of a session if `/resume` finds the session by it, else its id."""
    if session.title:
        try:
            if find_session(uow, session.title, owner=session.owner).id == session.id:
                return session.title
        except (BadInput, NotFound):
            # The title is ambiguous, or reads like an id. The id always works.
            pass
    return session.id
