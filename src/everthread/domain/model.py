"""The values everything speaks in. All of them are frozen; times are seconds since the epoch, UTC.

Structs, as the values elsewhere: a dataclass takes the start of the program a millisecond, and a turn makes dozens of
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from everthread.domain.errors import BadKey
from everthread.domain.media import Media

KEY_CHARS_MAX = 512
OWNER_CHARS_MAX = 256
FORGOTTEN = "[forgotten]"
"""What stands where forgotten words stood."""


def whole(text: str) -> str:
    """The text with half characters (lone surrogates, which no file can hold) replaced by question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


HANDED_OVER = "subagent"
"""The platform of keys at which work is done that was handed over: nobody writes there."""


SCHEDULED = "cron"
"""The platform of keys at which scheduled tasks are done: nobody writes there either."""


class ChatType(StrEnum):
    DM = "dm"
    GROUP = "group"
    CHANNEL = "channel"
    THREAD = "thread"


class SessionKey(Struct, frozen=True, eq=False):
    """Where a conversation takes place. Its text form exists at the edges only."""

    profile: str
    platform: str
    chat_type: ChatType
    chat: str
    thread: str | None = None
    user: str | None = None
    _text: str = ""
    """Writing a key out costs as much as reading a row by it, and a turn does it a dozen times."""

    def __post_init__(self) -> None:
        if self._text:
            # Of the key that this one was made from by changing it.
            force_setattr(self, "_text", "")

    def __str__(self) -> str:
        if not self._text:
            force_setattr(self, "_text", _written_out(self))
        return self._text

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={part!r}" for name, part in zip(self.__struct_fields__, self._parts, strict=False))
        return f"SessionKey({parts})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, SessionKey) and self._parts == other._parts)

    def __ne__(self, other: object) -> bool:
        # A Struct brings its own, which knows nothing of the one above.
        return not self == other

    def __hash__(self) -> int:
        # An enumeration's hash costs more than those of the others together.
        return hash((self.profile, self.platform, self.chat, self.thread, self.user))

    @property
    def _parts(self) -> tuple[str | None, ...]:
        return self.profile, self.platform, self.chat_type, self.chat, self.thread, self.user

    @classmethod
    def parse(cls, text: str) -> SessionKey:
        parts = text.split(":")
        if "%" in text:
            from urllib.parse import unquote  # noqa: PLC0415 - most keys are plain, and every command would wait for it

            parts = [unquote(part) for part in parts]
        if len(text) > KEY_CHARS_MAX or not 5 <= len(parts) <= 7 or parts[0] != "agent" or not all(parts[1:5]):
            raise BadKey(
                f"{text[:80]!r} is no session key; expected agent:PROFILE:PLATFORM:CHAT_TYPE:CHAT[:THREAD][:USER]"
            )
        try:
            chat_type = ChatType(parts[3])
        except ValueError:
            raise BadKey(f"{parts[3]!r} is no chat type; use one of {', '.join(ChatType)}") from None
        thread, user = (parts[5:] + ["", ""])[:2]
        return cls(parts[1], parts[2], chat_type, parts[4], thread or None, user or None)


_SAFE = "@+-._~!$&'()*,;= /"
_PLAIN = re.compile(f"[A-Za-z0-9:{re.escape(_SAFE)}]*")


def _written_out(key: SessionKey) -> str:
    parts = ["agent", key.profile, key.platform, key.chat_type.value, key.chat]
    if key.thread is not None or key.user is not None:
        parts.append(key.thread or "")
    if key.user is not None:
        parts.append(key.user)
    text = ":".join(parts)
    # Most keys are plain; only the others need their parts escaped one by one.
    if _PLAIN.fullmatch(text) and text.count(":") == len(parts) - 1:
        return text
    from urllib.parse import quote  # noqa: PLC0415 - as above

    return ":".join(quote(part, safe=_SAFE) for part in parts)


class Kind(StrEnum):
    """What a session is for. Only chats reach providers and reviews."""

    CHAT = "chat"
    CRON = "cron"
    SUBAGENT = "subagent"
    NOTES = "notes"
    """One per owner, never bound to a key: the log of what concerns the person and no single conversation."""

    @property
    def remembered(self) -> bool:
        return self in (Kind.CHAT, Kind.NOTES)


class Cause(StrEnum):
    """Why a session was opened."""

    NEW = "new_session"
    RESET = "reset"
    IDLE = "idle"
    DAILY = "daily"
    RESUME = "resume"
    BRANCH = "branch"
    COMPRESSION = "compression"
    DELEGATION = "delegation"
    IMPORT = "import"


class SessionRef(Struct, frozen=True):
    """Whose call this is, in which session, as of when. Goes with every call; nobody keeps a copy as `current`.

    `epoch` grows with each boundary of the key, `generation` with each change that concerns everyone on the
    session; a ref that differs in either was made before a boundary.
    """

    session_id: str
    generation: int
    key: SessionKey
    epoch: int
    owner: str


class Session(Struct, frozen=True):
    """One conversation record.

    A child sees its ancestors' turns numbered `floor + 1 .. base_turn` as of the parent's log position `base_seq`.
    Turn numbers grow along a lineage, so a number is unique in any one view.
    """

    id: str
    owner: str
    key: SessionKey
    kind: Kind
    cause: Cause
    opened_at: float
    parent_id: str | None = None
    title: str | None = None
    generation: int = 0
    ended_at: float | None = None
    end_reason: str | None = None
    active_at: float = 0.0
    floor: int = 0
    base_turn: int = 0
    base_seq: int = 0
    summary_id: str | None = None
    """The session whose stored summary stands for the turns up to `floor`."""
    last_turn: int = 0
    log_seq: int = 0
    dirty_seq: int = 0
    closed_seq: int = 0
    forgotten_seq: int | None = None

    @property
    def dirty(self) -> bool:
        """Something worth remembering came after the last close."""
        return self.dirty_seq > self.closed_seq

    def ref_at(self, key: SessionKey, epoch: int) -> SessionRef:
        """Return the reference to this session, as it is now, from a key at an epoch."""
        return SessionRef(self.id, self.generation, key, epoch, self.owner)

    def ended(self, reason: str, now: float) -> Session:
        return self.but(ended_at=now, end_reason=reason, generation=self.generation + 1)

    def but(self, **changes: Any) -> Session:
        """The same with some changes."""
        return replace(self, **changes)


class Binding(Struct, frozen=True):
    """Which session a key is on. `pending` says why it is on none since an expiry."""

    key: SessionKey
    owner: str
    session_id: str | None
    epoch: int
    pending: Cause | None = None
    kind: Kind = Kind.CHAT


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(Struct, frozen=True):
    id: str
    name: str
    arguments: str


class Thought(Struct, frozen=True):
    """What a model wants to have back with the results of its tools, as long as the turn goes on: its reasoning,
    signatures and the like. Only the client that wrote it down can read it.
    """

    content: str
    model: str = ""
    """Whose it is; no other model is sent it."""


class Message(Struct, frozen=True):
    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    thought: Thought | None = None
    """Never stored with a turn: it is of no use after it."""

    def texts(self) -> tuple[str, ...]:
        """Everything in it that takes room."""
        thought = (self.thought.content,) if self.thought else ()
        return (self.content, self.reasoning or "", *thought, *[call.arguments for call in self.tool_calls])


class TurnStatus(StrEnum):
    DONE = "done"
    INTERRUPTED = "interrupted"
    """Stopped by the user or a newer message: the message and what there was of an answer."""
    LATE = "late"
    """Finished after its key had left the session; the reply was withheld."""
    HIDDEN = "hidden"
    """Was running when the session was rewound; kept, never shown or remembered."""
    SET_ASIDE = "set_aside"
    """A message that waited when its key left the session; kept, never answered or remembered."""

    @property
    def remembered(self) -> bool:
        return self in _REMEMBERED_TURNS

    @property
    def in_words(self) -> str:
        """What to say of the turn beside its words; nothing of one that went as it should."""
        if self is TurnStatus.SET_ASIDE:
            return "set aside, not answered"
        return "" if self is TurnStatus.DONE else self.value


_REMEMBERED_TURNS = (TurnStatus.DONE, TurnStatus.INTERRUPTED, TurnStatus.LATE)


class Turn(Struct, frozen=True):
    """One user input and all that came of it, as stored."""

    session_id: str
    number: int
    turn_id: str
    status: TurnStatus
    at: float
    messages: tuple[Message, ...]
    inherited: bool = False

    @property
    def user_text(self) -> str:
        return "\n".join(m.content for m in self.messages if m.role is Role.USER)

    @property
    def assistant_text(self) -> str:
        return "\n".join(m.content for m in self.messages if m.role is Role.ASSISTANT and m.content)


class Fate(StrEnum):
    """What becomes of a running turn."""

    LIVE = "live"
    LATE = "late"
    HIDDEN = "hidden"


class Slot(Struct, frozen=True):
    """The durable row that says a turn is running. At most one per session is live."""

    turn_id: str
    ref: SessionRef
    holder: str
    fence: int
    fate: Fate
    inbox_id: int
    begun_at: float


class InboxState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    SET_ASIDE = "set_aside"


class Inbound(Struct, frozen=True):
    """A message as it came in. `update_id` is the platform's own number for it: the same one is taken once."""

    key: SessionKey
    owner: str
    text: str
    account: str = ""
    update_id: str | None = None
    command: bool = False
    """It is no message but a command, in its place among the messages."""
    user: str = ""
    """Who wrote it, by the platform's own id: where several people share a conversation, `owner` is all of them."""
    media: tuple[Media, ...] = ()
    """What came with it and is kept here, or will be: paths are those within the folder of such files."""
    message_id: str = ""
    """The platform's own id of the message, where what is there can be looked for. It is kept, and not read again."""

    @property
    def is_packed(self) -> bool:
        """Something that came with it was not fetched yet: its text is not what is to be answered."""
        return any(media.handle for media in self.media)


class InboxRow(Struct, frozen=True):
    id: int
    inbound: Inbound
    accepted_at: float
    state: InboxState
    session_id: str | None = None
    turn_id: str | None = None


class ReplyState(StrEnum):
    DRAFT = "draft"
    READY = "ready"
    SENDING = "sending"
    """Its next part was handed over; whether it went out is not known yet."""
    SENT = "sent"
    WITHHELD = "withheld"
    AMBIGUOUS = "ambiguous"
    """Whether it went out will never be known: it is shown as such, and not silently sent again."""
    FAILED = "failed"
    """The platform will not have it."""


class Reply(Struct, frozen=True):
    """An outgoing reply. One per turn; the platform's message id is kept so that recovery edits, never repeats.

    What answers a command, or tells of an expiry, is one too: `turn_id` then says which.
    """

    turn_id: str
    key: SessionKey
    session_id: str
    owner: str
    text: str
    state: ReplyState
    at: float
    platform_message_id: str | None = None
    """Empty if a beginning of it may be out, under an id that nobody was told."""
    parts: int = 0
    """So many parts of it are out."""
    file: str = ""
    """The name of a file that goes out with it, if one does."""
    sent_after: str = ""
    """What the platform called the newest message of that place when the last part, or a beginning, was handed over."""


class ToolState(StrEnum):
    STARTED = "started"
    DONE = "done"


class ToolRow(Struct, frozen=True):
    turn_id: str
    call_id: str
    name: str
    arguments: str
    state: ToolState
    result: str | None = None
    thought: Thought | None = None
    """Of the answer that the call is part of."""


class NoteAction(StrEnum):
    ADD = "add"
    REPLACE = "replace"
    REMOVE = "remove"


class NoteTarget(StrEnum):
    """The two curated collections; each is projected to a file of that name in capitals."""

    MEMORY = "memory"
    USER = "user"


class NoteVersion(Struct, frozen=True):
    """A note as of one change. Version numbers grow; the last one is the note."""

    note_id: str
    version: int
    owner: str
    target: NoteTarget
    action: NoteAction
    content: str
    session_id: str
    turn_id: str | None
    at: float


def chars_of(notes: Iterable[NoteVersion]) -> int:
    """The room that notes take up, as their limits count it."""
    return sum(len(note.content) for note in notes)


class Prefix(Struct, frozen=True):
    """The frozen start of every request of a session: system prompt and tool schemas, byte for byte."""

    session_id: str
    number: int
    content: bytes
    at: float


class Lease(Struct, frozen=True):
    """The right to drain a kind of lane, until somebody else gets a higher fence."""

    name: str
    holder: str
    fence: int


class Timer(Struct, frozen=True):
    name: str
    due_at: float
    key: SessionKey


class HookCall(Struct, frozen=True):
    """A plugin hook that a boundary asks for; run after the commit, in order per key."""

    hook: str
    session_id: str
    platform: str
    detail: dict[str, str] = {}
