"""What a command is handed, what it answers, and how both speak of sessions and messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from everthread.agent.asking import Choice
from everthread.agent.turn import Agent
from everthread.commands.recap import Recap
from everthread.domain.errors import BadConfig, BadInput, NotFound
from everthread.domain.model import InboxRow, Session, SessionKey
from everthread.lifecycle import Lifecycle
from everthread.lifecycle.finding import find_session
from everthread.memory import MemoryManager
from everthread.memory.notes import Notebook
from everthread.ports import Store, UnitOfWork

EXCERPT_CHARS_MAX = 60
_SHOWN_MAX = 3


def no_choices(model: str) -> Sequence[Choice]:
    """`choices` of a desk where nobody said which models there are."""
    raise BadConfig("no model can be asked here")


@dataclass(frozen=True, slots=True)
class Desk:
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
    choices: Callable[[str], Sequence[Choice]] = no_choices
    """The model of that name, and those that stand in for it. Raises `BadConfig` if it can't be asked."""
    known_models: tuple[str, ...] = ()
    """Names worth offering; others may work as well."""
    spend_per_day: float | None = None
    """The limit of dollars in 24 hours, if there is one."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Something to choose: what to show, and the command that is sent if it is chosen."""

    label: str
    command: str


@dataclass(frozen=True, slots=True)
class Document:
    """A text for a file. `name` is what the user wrote, and may be a path: only where the files are the user's own may
    it be followed. Everybody else uses `file_name`."""

    name: str
    text: str

    @property
    def file_name(self) -> str:
        """The last part of the name, which leads nowhere."""
        return self.name.replace("\\", "/").rpartition("/")[2].lstrip(".") or "conversation.md"


@dataclass(frozen=True, slots=True)
class Said:
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
    """What there is to choose from; `text` names the same."""
    document: Document | None = None
    """To be written or sent."""
    recap: Recap | None = None
    """Of the conversation that one is in now; what `text` says of it need not be said twice."""


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    aliases: tuple[str, ...]
    usage: str
    help: str
    skips_queue: bool
    """It acts at once, even while an answer is being written; the others wait for the messages before them."""
    act: Callable[[Desk, str], Awaitable[Said]]


def refused(text: str) -> Said:
    return Said(text, ok=False)


def excerpt(text: str, chars_max: int = EXCERPT_CHARS_MAX) -> str:
    """The beginning of a text in quotes, on one line, with nothing in it that could move a cursor."""
    # A message may be megabytes long; what is beyond this can't be shown anyway.
    start = text[: 4 * chars_max]
    line = " ".join("".join(c if c.isprintable() else " " for c in start).split())
    if len(line) > chars_max or len(start) < len(text):
        line = line[: chars_max - 3].rstrip() + "..."
    return f'"{line}"'


def listed(rows: Sequence[InboxRow]) -> str:
    """Some messages by their first words."""
    shown = ", ".join(excerpt(row.inbound.text) for row in rows[:_SHOWN_MAX])
    return shown + (f" and {len(rows) - _SHOWN_MAX} more" if len(rows) > _SHOWN_MAX else "")


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def name_of(session: Session) -> str:
    return f'"{session.title}" ({session.id})' if session.title else session.id


def way_to(uow: UnitOfWork, session: Session) -> str:
    """What to resume a session by: its title, if that leads to it and to no newer one of its name."""
    if session.title:
        try:
            if find_session(uow, session.title, owner=session.owner).id == session.id:
                return session.title
        except (BadInput, NotFound):
            pass
    return session.id
