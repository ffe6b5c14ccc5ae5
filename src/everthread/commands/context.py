"""What a command is handed, what it answers, and how both speak of sessions and messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from everthread.agent.model_call import ModelChoice
from everthread.agent.skills.folders import SkillFolders
from everthread.agent.turn import Agent
from everthread.commands.recap import Recap
from everthread.domain.errors import BadConfig, BadInput, NotFound
from everthread.domain.model import InboxRow, Session, SessionKey
from everthread.domain.pairing import Paired
from everthread.domain.text_format import excerpt
from everthread.lifecycle import Lifecycle
from everthread.lifecycle.session_lookup import find_session
from everthread.memory import MemoryManager
from everthread.memory.note_files import Notebook
from everthread.store.unit_of_work import Store, UnitOfWork

if TYPE_CHECKING:
    from everthread.config.settings import Settings

_SHOWN_MAX = 20
NONE_YET = "There is no conversation here yet; say something, or start one with /new TITLE."


def no_choices(model: str) -> Sequence[ModelChoice]:
    """`choices` of a desk where nobody said which models there are."""
    raise BadConfig("no model can be asked here")


class CommandRuntime(Protocol):
    """The part of a wired-up runtime that slash commands use."""

    settings: Settings
    lifecycle: Lifecycle
    store: Store
    agent: Agent
    memory: MemoryManager
    notebook: Notebook

    @property
    def skills(self) -> SkillFolders: ...
    def choices(self, model: str = "") -> Sequence[ModelChoice]: ...
    def known_models(self) -> tuple[str, ...]: ...


Reaches = Callable[[UnitOfWork, SessionKey, str], bool]
"""Tells whether a reply sent to a key reaches that owner."""


class CommandContext(Struct, frozen=True):
    """Who asks, from where, and what a command may reach. Made for each call: where the key is, is looked up."""

    lifecycle: Lifecycle
    store: Store
    agent: Agent
    memory: MemoryManager
    notebook: Notebook
    key: SessionKey
    owner: str
    notes_chars: int = 8_000
    """How much of MEMORY.md the model is shown."""
    user_chars: int = 4_000
    """How much of USER.md."""
    model: str = ""
    """The name asked for in this conversation; empty is the configured one."""
    choices: Callable[[str], Sequence[ModelChoice]] = no_choices
    """The model of that name, and those that stand in for it. Raises `BadConfig` if it can't be asked."""
    known_models: tuple[str, ...] = ()
    """Names worth offering; others may work as well."""
    spend_per_day: float | None = None
    """The limit of dollars in 24 hours, if there is one."""
    skills: SkillFolders | None = None
    """Of the person who asks; none for everybody but the one whose home it is."""
    account: str = ""
    update_id: str | None = None
    """The platform's own number for the message that the command came in, as in `Inbound`; the terminal has none."""
    user: str = ""
    """Who asks, by the platform's own id, as in `Inbound`."""
    stop_next: Callable[[], Awaitable[bool]] | None = None
    """Stops what is about to be answered here and was said before this; false if there is nothing."""
    reaches: Reaches = lambda uow, key, owner: True
    """Whether what is sent to a key reaches that owner: the account is there, and theirs."""
    only_into: str = ""
    """The session that a message must go to which a command takes in; empty is wherever the key is."""
    order: int | None = None
    """The command's own place in the inbox, where commands come in as messages do."""
    guest: bool = False
    """Whoever asks is not the one at this machine: how it is set up, and how it fares, is not for them."""
    withheld: Collection[str] = ()
    """Names of commands that whoever asks may not give here."""
    pair: Callable[[str], Awaitable[Paired]] | None = None
    """Lets in whoever was shown a code; `None` if whoever asks may not, or not from here."""
    decide: Callable[[str, bool], CommandResult] | None = None
    """Answers the question of that code, yes or no; `None` where questions are answered otherwise."""

    @classmethod
    def build(
        cls,
        runtime: CommandRuntime,
        key: SessionKey,
        owner: str,
        reaches: Reaches,
        *,
        model: str = "",
        withheld: Collection[str] = (),
    ) -> CommandContext:
        """Build the context of a command that `owner` gives at `key`. Every front end builds it here."""
        settings, is_guest = runtime.settings, owner != runtime.settings.owner
        return cls(
            runtime.lifecycle,
            runtime.store,
            runtime.agent,
            runtime.memory,
            runtime.notebook,
            key,
            owner,
            settings.memory.notes_chars,
            settings.memory.user_chars,
            model=model,
            choices=runtime.choices,
            known_models=runtime.known_models(),
            spend_per_day=settings.spend_per_day_of(owner),
            skills=None if is_guest else runtime.skills,
            reaches=reaches,
            guest=is_guest,
            withheld=withheld,
        )


class Offer(Struct, frozen=True):
    """Something to choose: what to show, and the command that is sent if it is chosen."""

    label: str
    command: str


class Document(Struct, frozen=True):
    """A text for a file. `name` is what the user wrote, and may be a path: only where the files are the user's own may
    it be followed. Everybody else uses `file_name`."""

    name: str
    text: str

    @property
    def file_name(self) -> str:
        """The last part of the name, which leads nowhere."""
        return self.name.replace("\\", "/").rpartition("/")[2].lstrip(".") or "conversation.md"


class CommandResult(Struct, frozen=True):
    """A command's answer, in plain text of one or more lines."""

    text: str
    ok: bool = True
    """False if it could not be done."""
    wakes: bool = False
    """A message was taken in for the key: whoever serves it should have it answered."""
    quits: bool = False
    """The user wants to leave."""
    model: str | None = None
    """The model to use from now on, if it is to be another."""
    offers: tuple[Offer, ...] = ()
    """What there is to choose from, in the place of `text`, which names the same for those who only read."""
    document: Document | None = None
    """To be written or sent."""
    posts: bool = False
    """Somebody else was written to, by way of the outbox."""
    recap: Recap | None = None
    """Of the conversation that one is in now; what `text` says of it need not be said twice."""


class Command(Struct, frozen=True):
    name: str
    aliases: tuple[str, ...]
    usage: str
    help: str
    skips_queue: bool
    """It acts at once, even while an answer is being written; the others wait for the messages before them."""
    act: Callable[[CommandContext, str], Awaitable[CommandResult]]
    takes_message: bool = False
    """What is said after it is a message, which it takes in itself."""
    unstored: bool = False
    """It is carried out where it comes in, and never kept: it needs nothing of the conversation, or has a secret."""
    for_admins: bool = False
    """On platforms; which others are, the settings say."""
    private: bool = False
    """What it shows is of a person's other conversations: not for a place where others read along."""
    crosses: bool = False
    """It leads elsewhere, or changes what was said: commands that were given before it are carried out before it."""
    leaves: bool = False
    """It is of no use on platforms: there is nothing to leave."""


def refused(text: str) -> CommandResult:
    return CommandResult(text, ok=False)


def listed(rows: Sequence[InboxRow]) -> str:
    """Some messages by their first words."""
    shown = ", ".join(excerpt(row.inbound.text) for row in rows[:_SHOWN_MAX])
    return shown + (f" and {len(rows) - _SHOWN_MAX} more" if len(rows) > _SHOWN_MAX else "")


def called(title: str | None, session_id: str) -> str:
    """What its owner may call a session: no two of theirs have one title."""
    return f'"{title}"' if title else session_id


def name_of(session: Session) -> str:
    return called(session.title, session.id)


def offer_of(session_id: str, title: str, note: str = "") -> Offer:
    """To go to a session."""
    return Offer("  ".join(part for part in (title or session_id, note) if part), f"/resume {session_id}")


async def session_here(desk: CommandContext) -> Session | None:
    """The owner's session that the key is on."""
    ref = await desk.lifecycle.current(desk.key)
    if ref is None or ref.owner != desk.owner:
        return None
    return await desk.store.read_inline(lambda uow: uow.sessions.get(ref.session_id))


def way_to(uow: UnitOfWork, session: Session) -> str:
    """What to resume a session by: its title, if that leads to it and to no newer one of its name."""
    if session.title:
        try:
            if find_session(uow, session.title, owner=session.owner).id == session.id:
                return session.title
        except (BadInput, NotFound):
            # Others are called the same, or it reads like an id: the id leads there all the same.
            pass
    return session.id
