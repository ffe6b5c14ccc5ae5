"""Scheduled tasks: what is asked, when, and where the answer goes."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct

from everthread.domain.errors import BadSchedule
from everthread.domain.model import SCHEDULED, ChatType, SessionKey, whole
from everthread.domain.recurrence import Missed, Recurrence, in_zone, parse

NAME_CHARS_MAX = 64
PROMPT_CHARS_MAX = 20_000
CHAT_CHARS_MAX = 200
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_UNFIT = re.compile(r"[^a-z0-9]+")
_NAME_WORDS = 4


class TargetKind(StrEnum):
    NONE = "none"
    """Nowhere: the answer is kept in its session."""
    CHAT = "chat"
    FILE = "file"
    """Takes the place of what was in the file."""
    APPEND = "append"
    WEBHOOK = "webhook"


class Target(Struct, frozen=True, omit_defaults=True):
    """Where an answer goes: a chat's key as text, the path of a file, or an address."""

    kind: TargetKind = TargetKind.NONE
    to: str = ""
    secret_env: str = ""
    """Of a webhook: the name of the variable that has the secret which is signed with."""

    def __str__(self) -> str:
        match self.kind:
            case TargetKind.NONE:
                return "none"
            case TargetKind.CHAT:
                return address_of(SessionKey.parse(self.to))
            case TargetKind.WEBHOOK:
                # What stands behind the place may be a secret, and so may what stands before it.
                scheme, _, place = re.split(r"[?#]", self.to)[0].partition("://")
                host, slash, path = place.partition("/")
                return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
            case TargetKind.FILE | TargetKind.APPEND:
                return f"{self.kind.value}:{self.to}"


class ScheduleState(StrEnum):
    ON = "on"
    PAUSED = "paused"
    OVER = "over"


class Schedule(Struct, frozen=True):
    id: str
    owner: str
    name: str
    recurrence: str
    zone: str
    anchor: float
    prompt: str
    target: Target = Target()
    model: str = ""
    tools: tuple[str, ...] | None = None
    """Those that it may use; None is the usual ones."""
    missed: Missed = Missed.ONCE
    continues: bool = False
    """Each time goes on with the conversation of the time before."""
    spend: float | None = None
    """In US dollars, each time; None is no limit but that of the day."""
    state: ScheduleState = ScheduleState.ON
    next_at: float | None = None

    @property
    def plan(self) -> Recurrence:
        return parse(self.recurrence, self.zone, self.anchor)

    def said(self, due_at: float) -> str:
        """What the model reads: it would not know the time otherwise."""
        return f"(Scheduled for {in_zone(due_at, self.zone)})\n{self.prompt}"


class OccurrenceState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DELIVERING = "delivering"
    """It is answered; the answer is not known to have arrived."""
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class Occurrence(Struct, frozen=True):
    """One time that something was to be done. Known by the task and the instant."""

    schedule_id: str
    due_at: float
    owner: str
    state: OccurrenceState = OccurrenceState.WAITING
    inbox_id: int | None = None
    session_id: str | None = None
    ended_at: float | None = None
    problem: str = ""
    attempts: int = 0
    """How often it was tried to hand the answer over."""
    retry_at: float = 0.0


def key_of(schedule: Schedule, profile: str) -> SessionKey:
    """Where the task is done."""
    return SessionKey(profile, SCHEDULED, ChatType.DM, schedule.id)


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadSchedule(f"{name[:80]!r} is no name for a task: use 1 to 64 small letters, digits, or any of _ . -")
    return name


def check_prompt(prompt: str) -> str:
    if not prompt.strip() or len(prompt) > PROMPT_CHARS_MAX or whole(prompt) != prompt:
        raise BadSchedule(f"what is to be done is said in 1 to {PROMPT_CHARS_MAX} characters")
    return prompt


def name_for(prompt: str, taken: Collection[str]) -> str:
    """A name from the first words of what is asked, which no other task has."""
    words = _UNFIT.sub("-", prompt[:200].lower()).strip("-").split("-")[:_NAME_WORDS]
    base = "-".join(words)[: NAME_CHARS_MAX - 6].strip("-") or "task"
    names = [base, *(f"{base}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


def address_of(key: SessionKey) -> str:
    """As people write it: `telegram:42`, and `telegram:42#7` for a thread."""
    return f"{key.platform}:{key.chat}{f'#{key.thread}' if key.thread else ''}"


def chat_at(address: str, profile: str, platforms: Collection[str]) -> SessionKey:
    """The chat of an address. Raises `BadSchedule` if it is none, or on a platform that is not there."""
    platform, colon, chat = address.partition(":")
    if not (platform and colon and chat.strip()) or len(chat) > CHAT_CHARS_MAX or not address.isprintable():
        raise BadSchedule(f"{address[:80]!r} is no address; write PLATFORM:CHAT, such as telegram:42")
    if platform not in platforms:
        known = f"there are: {', '.join(sorted(platforms))}" if platforms else "none is set up in config.toml"
        raise BadSchedule(f"there is no platform {platform[:60]!r}; {known}")
    room, mark, thread = chat.rpartition("#")
    if not (room and mark and thread):
        room, thread = chat, ""
    return SessionKey(profile, platform, ChatType.DM, room, thread or None)
