"""Scheduled tasks: prompt, recurrence, occurrences and the target of the result."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct

from everthread.domain.errors import BadSchedule
from everthread.domain.model import CRON_PLATFORM, ChatType, SessionKey, replace_surrogates
from everthread.domain.recurrence import MissedPolicy, Recurrence, format_in_zone, parse_recurrence

NAME_CHARS_MAX = 64
PROMPT_CHARS_MAX = 20_000
CHAT_CHARS_MAX = 200
RETRY_S_MAX = 6 * 3600.0
"""The longest wait before a failed delivery is tried again."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_UNFIT = re.compile(r"[^a-z0-9]+")
_NAME_WORDS = 4


class TargetKind(StrEnum):
    """The kind of place that a result is sent to."""

    NONE = "none"
    """No delivery. The result stays in its session."""
    CHAT = "chat"
    FILE = "file"
    """Overwrites the file."""
    APPEND = "append"
    WEBHOOK = "webhook"


class Target(Struct, frozen=True, omit_defaults=True):
    """The destination of a result. `to` is a session key as text, a file path, or a URL."""

    kind: TargetKind = TargetKind.NONE
    to: str = ""
    secret_env: str = ""
    """Webhook: the environment variable that holds the signing secret."""

    def __str__(self) -> str:
        match self.kind:
            case TargetKind.NONE:
                return "none"
            case TargetKind.CHAT:
                return format_address(SessionKey.parse(self.to))
            case TargetKind.WEBHOOK:
                # Query, fragment and user information may hold secrets.
                scheme, _, place = re.split(r"[?#]", self.to)[0].partition("://")
                host, slash, path = place.partition("/")
                return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
            case TargetKind.FILE | TargetKind.APPEND:
                return f"{self.kind.value}:{self.to}"


class ScheduleState(StrEnum):
    """The state of a task."""

    ON = "on"
    PAUSED = "paused"
    OVER = "over"


class Schedule(Struct, frozen=True):
    """A scheduled task."""

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
    """The tools that the task may use. None means the default tools."""
    missed: MissedPolicy = MissedPolicy.ONCE
    continues: bool = False
    """Each occurrence continues the conversation of the previous one."""
    spend: float | None = None
    """The spending limit of one occurrence in US dollars. None leaves only the daily limit."""
    state: ScheduleState = ScheduleState.ON
    next_at: float | None = None

    @property
    def plan(self) -> Recurrence:
        return parse_recurrence(self.recurrence, self.zone, self.anchor)

    def prompt_at(self, due_at: float) -> str:
        """Return the prompt for the model, with the scheduled time."""
        return f"(Scheduled for {format_in_zone(due_at, self.zone)})\n{self.prompt}"


class OccurrenceState(StrEnum):
    """The state of an occurrence."""

    WAITING = "waiting"
    RUNNING = "running"
    DELIVERING = "delivering"
    """The result exists. Its delivery is not confirmed yet."""
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class Occurrence(Struct, frozen=True):
    """One run of a task, identified by the task and its time."""

    schedule_id: str
    due_at: float
    owner: str
    state: OccurrenceState = OccurrenceState.WAITING
    inbox_id: int | None = None
    session_id: str | None = None
    ended_at: float | None = None
    problem: str = ""
    attempts: int = 0
    """The number of delivery attempts."""
    retry_at: float = 0.0


def key_of(schedule: Schedule, profile: str) -> SessionKey:
    """Return the session key of the task."""
    return SessionKey(profile, CRON_PLATFORM, ChatType.DM, schedule.id)


def check_name(name: str) -> str:
    """Return the name of a task. Raises `BadSchedule` if it is invalid."""
    if not _NAME.fullmatch(name):
        raise BadSchedule(
            f"{name[:80]!r} is not a valid task name; use 1 to 64 lowercase letters, digits, or any of _ . -"
        )
    return name


def check_prompt(prompt: str) -> str:
    """Return the prompt of a task. Raises `BadSchedule` if it is invalid."""
    if not prompt.strip() or len(prompt) > PROMPT_CHARS_MAX or replace_surrogates(prompt) != prompt:
        raise BadSchedule(f"the prompt must have 1 to {PROMPT_CHARS_MAX} characters")
    return prompt


def slug(text: str) -> str:
    """Return the words of a text as they appear in the name of a task."""
    return _UNFIT.sub("-", text.lower()).strip("-")


def make_name(prompt: str, taken: Collection[str]) -> str:
    """Make an unused task name from the first words of the prompt."""
    base = "-".join(slug(prompt[:200]).split("-")[:_NAME_WORDS])[: NAME_CHARS_MAX - 6].strip("-") or "task"
    names = [base, *(f"{base}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


def format_address(key: SessionKey) -> str:
    """Return the address of a chat: `telegram:42`, or `telegram:42#7` for a thread."""
    return f"{key.platform}:{key.chat}{f'#{key.thread}' if key.thread else ''}"


def parse_address(address: str, profile: str, platforms: Collection[str]) -> SessionKey:
    """Parse the address of a chat. Raises `BadSchedule` if it is invalid, or if the platform is not configured."""
    platform, colon, chat = address.partition(":")
    if not (platform and colon and chat.strip()) or len(chat) > CHAT_CHARS_MAX or not address.isprintable():
        raise BadSchedule(f"{address[:80]!r} is not an address; write PLATFORM:CHAT, such as telegram:42")
    if platform not in platforms:
        known = f"configured: {', '.join(sorted(platforms))}" if platforms else "none is configured in config.toml"
        raise BadSchedule(f"unknown platform {platform[:60]!r}; {known}")
    room, mark, thread = chat.rpartition("#")
    if not (room and mark and thread):
        room, thread = chat, ""
    return SessionKey(profile, platform, ChatType.DM, room, thread or None)
