"""The values that all layers share. All are frozen; times are seconds since the epoch, UTC.

They are msgspec Structs: a dataclass adds a millisecond to start-up, and a turn creates dozens of values.
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
"""The text that replaces forgotten text."""


def replace_surrogates(text: str) -> str:
    """Return the text with lone surrogates, which UTF-8 can't encode, replaced by question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


SUBAGENT_PLATFORM = "subagent"
"""The platform of the keys of delegated work. They receive no messages from users."""


CRON_PLATFORM = "cron"
"""The platform of the keys of scheduled tasks. They receive no messages from users."""


HOOKS_PLATFORM = "hooks"
"""The platform of the keys of webhooks, whose messages other programs write."""


class ChatType(StrEnum):
    DM = "dm"
    GROUP = "group"
    CHANNEL = "channel"
    THREAD = "thread"


class SessionKey(Struct, frozen=True, eq=False):
    """The address of a conversation. Its text form is used only at the edges (CLI, HTTP, store)."""

    profile: str
    platform: str
    chat_type: ChatType
    chat: str
    thread: str | None = None
    user: str | None = None
    _text: str = ""
    """Cache of the text form: formatting a key costs as much as a row lookup, and a turn does it a dozen times."""

    def __post_init__(self) -> None:
        if self._text:
            # `replace` has copied the cache of the original key.
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
        # Struct defines `__ne__` itself, independent of `__eq__` above.
        return not self == other

    def __hash__(self) -> int:
        # `chat_type` is left out: hashing an enum costs more than hashing all other parts.
        return hash((self.profile, self.platform, self.chat, self.thread, self.user))

    @property
    def _parts(self) -> tuple[str | None, ...]:
        return self.profile, self.platform, self.chat_type, self.chat, self.thread, self.user

    @classmethod
    def parse(cls, text: str) -> SessionKey:
        """Parse the text form of a key. Raises `BadKey`."""
        parts = text.split(":")
        if "%" in text:
            from urllib.parse import unquote  # noqa: PLC0415 - most keys are plain, and every command would wait for it

            parts = [unquote(part) for part in parts]
        if len(text) > KEY_CHARS_MAX or not 5 <= len(parts) <= 7 or parts[0] != "agent" or not all(parts[1:5]):
            raise BadKey(
                f"{text[:80]!r} is not a session key; expected agent:PROFILE:PLATFORM:CHAT_TYPE:CHAT[:THREAD][:USER]"
            )
        try:
            chat_type = ChatType(parts[3])
        except ValueError:
            raise BadKey(f"{parts[3]!r} is not a chat type; use one of {', '.join(ChatType)}") from None
        thread, user = (parts[5:] + ["", ""])[:2]
        return cls(parts[1], parts[2], chat_type, parts[4], thread or None, user or None)


def subagent_key(profile: str, turn_id: str, call: str) -> SessionKey:
    """Return the key of the work that a tool call of a turn delegates. `call` contains no hyphen."""
    return SessionKey(profile, SUBAGENT_PLATFORM, ChatType.DM, f"{turn_id}-{call}")


def delegating_turn(key: SessionKey) -> str:
    """Return the id of the turn that delegated the work of a `subagent_key`."""
    return key.chat.rpartition("-")[0]


_SAFE = "@+-._~!$&'()*,;= /"
_PLAIN = re.compile(f"[A-Za-z0-9:{re.escape(_SAFE)}]*")


def _written_out(key: SessionKey) -> str:
    parts = ["agent", key.profile, key.platform, key.chat_type.value, key.chat]
    if key.thread is not None or key.user is not None:
        parts.append(key.thread or "")
    if key.user is not None:
        parts.append(key.user)
    text = ":".join(parts)
    # Most keys need no escaping, and a check of the whole text is cheaper than quoting each part.
    if _PLAIN.fullmatch(text) and text.count(":") == len(parts) - 1:
        return text
    from urllib.parse import quote  # noqa: PLC0415 - as above

    return ":".join(quote(part, safe=_SAFE) for part in parts)


class SessionKind(StrEnum):
    """The purpose of a session. Memory includes chats and notes; reviews cover chats only."""

    CHAT = "chat"
    CRON = "cron"
    SUBAGENT = "subagent"
    NOTES = "notes"
    """The log of events that concern the owner and not one conversation. One per owner, never bound to a key."""

    @property
    def remembered(self) -> bool:
        """Return True if memory providers and recall include sessions of this kind."""
        return self in (SessionKind.CHAT, SessionKind.NOTES)


class Cause(StrEnum):
    """The reason why a session was opened."""

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
    """The identity that every call passes: session, key and owner. No object stores a current session.

    `epoch` grows with each boundary of the key, `generation` with each change that affects all keys on the session. A
    ref with an older value of either is stale: a boundary came after it.
    """

    session_id: str
    generation: int
    key: SessionKey
    epoch: int
    owner: str


class Session(Struct, frozen=True):
    """One conversation record.

    A child shows its ancestors' turns numbered `floor + 1 .. base_turn`, as of the parent's log position `base_seq`.
    Turn numbers grow along a lineage, so a number is unique in each view.
    """

    id: str
    owner: str
    key: SessionKey
    kind: SessionKind
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
    """The session whose stored summary replaces the turns up to `floor`."""
    last_turn: int = 0
    log_seq: int = 0
    dirty_seq: int = 0
    closed_seq: int = 0
    forgotten_seq: int | None = None

    @property
    def dirty(self) -> bool:
        """Return True if a turn, note, delegation or rewind was logged after the last close."""
        return self.dirty_seq > self.closed_seq

    def ref_at(self, key: SessionKey, epoch: int) -> SessionRef:
        """Return a ref to this session at its current generation."""
        return SessionRef(self.id, self.generation, key, epoch, self.owner)

    def ended(self, reason: str, now: float) -> Session:
        """Return the session as ended at `now`."""
        return self.replace(ended_at=now, end_reason=reason, generation=self.generation + 1)

    def replace(self, **changes: Any) -> Session:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


class Binding(Struct, frozen=True):
    """The session that a key is on. `pending` is the expiry that left the key without a session."""

    key: SessionKey
    owner: str
    session_id: str | None
    epoch: int
    pending: Cause | None = None
    kind: SessionKind = SessionKind.CHAT


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
    """Opaque reasoning data (text, signatures) that a model expects back with its tool results during a turn.

    Only the model client that wrote the content can read it.
    """

    content: str
    model: str = ""
    """The model that wrote it. It is sent to no other model."""


class Message(Struct, frozen=True):
    """One message of a model conversation."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    thought: Thought | None = None
    """Not stored with a turn: no model reads it after the turn."""

    def texts(self) -> tuple[str, ...]:
        """Return all texts that count towards the size of the message."""
        thought = (self.thought.content,) if self.thought else ()
        return (self.content, self.reasoning or "", *thought, *[call.arguments for call in self.tool_calls])


class TurnStatus(StrEnum):
    """The outcome of a stored turn."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    """Stopped by the user or by a newer message. Has the message and the partial answer."""
    LATE = "late"
    """Finished after its key had left the session. The reply was withheld."""
    HIDDEN = "hidden"
    """Running when the session was rewound. Stored, but never shown or sent to memory."""
    SET_ASIDE = "set_aside"
    """A message that waited when its key left the session. Stored, but never answered or sent to memory."""

    @property
    def remembered(self) -> bool:
        """Return True if memory and later model requests include the turn."""
        return self in _REMEMBERED_TURNS

    @property
    def label(self) -> str:
        """Return the label for display; empty for a completed turn."""
        if self is TurnStatus.SET_ASIDE:
            return "set aside, not answered"
        return "" if self is TurnStatus.DONE else self.value


_REMEMBERED_TURNS = (TurnStatus.DONE, TurnStatus.INTERRUPTED, TurnStatus.LATE)


class Turn(Struct, frozen=True):
    """One user message and all model and tool messages up to the answer, as stored."""

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
    """The effect of a boundary on a running turn. LATE and HIDDEN become the status of the committed turn."""

    LIVE = "live"
    LATE = "late"
    HIDDEN = "hidden"


class Slot(Struct, frozen=True):
    """The stored row of a running turn. At most one slot per session is live."""

    turn_id: str
    ref: SessionRef
    holder: str
    fence: int
    fate: Fate
    inbox_id: int
    begun_at: float
    forgotten: str = ""
    """JSON marks of the facts that were forgotten while the turn ran; empty for nearly every turn."""


class InboxState(StrEnum):
    """The state of an incoming message or command."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    SET_ASIDE = "set_aside"


class Inbound(Struct, frozen=True):
    """An incoming message or command. `update_id` is the platform's id of the update; duplicates are dropped."""

    key: SessionKey
    owner: str
    text: str
    account: str = ""
    update_id: str | None = None
    command: bool = False
    """A slash command, handled in order with the messages."""
    user: str = ""
    """The platform's id of the author. In a shared conversation, `owner` is the group."""
    media: tuple[Media, ...] = ()
    """The attachments. Their paths are relative to the attachment folder."""
    message_id: str = ""
    """The platform's id of the message, on platforms that can search a chat. Stored, but not read into this value."""
    original_accounts: tuple[str, ...] = ()
    """The accounts that wrote the text, if `user` asks it again in a shared conversation; an unknown one is empty."""

    @property
    def has_pending_media(self) -> bool:
        """Return True if an attachment is not downloaded yet, so that the text to answer is incomplete."""
        return any(media.handle for media in self.media)


class InboxRow(Struct, frozen=True):
    """A stored incoming message or command."""

    id: int
    inbound: Inbound
    accepted_at: float
    state: InboxState
    session_id: str | None = None
    turn_id: str | None = None


class ReplyState(StrEnum):
    """The delivery state of a reply."""

    DRAFT = "draft"
    READY = "ready"
    SENDING = "sending"
    """The next part is being sent. Its outcome is not known yet."""
    SENT = "sent"
    WITHHELD = "withheld"
    AMBIGUOUS = "ambiguous"
    """The outcome can't be determined. The reply is reported as such, and not sent again automatically."""
    FAILED = "failed"
    """The platform rejected the reply."""


class Reply(Struct, frozen=True):
    """An outgoing message. A turn has one; `turn_id` also identifies the reply to a command and an expiry notice.

    The platform's message id is stored, so that recovery edits the message instead of sending it twice.
    """

    turn_id: str
    key: SessionKey
    session_id: str
    owner: str
    text: str
    state: ReplyState
    at: float
    platform_message_id: str | None = None
    """Empty string: a beginning of the reply may have been sent under an unknown id."""
    parts: int = 0
    """The number of parts that were sent."""
    file: str = ""
    """The name of the attached file, if any."""
    sent_after: str = ""
    """The id of the chat's newest message at the time when the last part, or a beginning, was sent."""


class ToolState(StrEnum):
    STARTED = "started"
    DONE = "done"


class ToolRow(Struct, frozen=True):
    """A stored tool call of a running turn."""

    turn_id: str
    call_id: str
    name: str
    arguments: str
    state: ToolState
    result: str | None = None
    thought: Thought | None = None
    """The thought of the model answer that has the call."""


class NoteAction(StrEnum):
    ADD = "add"
    REPLACE = "replace"
    REMOVE = "remove"


class NoteTarget(StrEnum):
    """The two curated collections of notes, written to `MEMORY.md` and `USER.md`."""

    MEMORY = "memory"
    USER = "user"


class NoteAuthor(StrEnum):
    """The author of a version of a note; see `note_provenance.is_owners` for those that have authority in a prompt."""

    OWNER = "owner"
    """The owner, with `/memory` or `everthread memory`. If the owner is a group: any member of it."""
    OPERATOR = "operator"
    """The person at this machine, in a note file."""
    TOOL = "tool"
    """The agent, with its `memory` tool."""
    REVIEW = "review"
    """A background review."""
    IMPORT = "import"
    """Another system, or an exported file."""


class NoteVersion(Struct, frozen=True):
    """One version of a note. Version numbers grow; the last version is the current note."""

    note_id: str
    version: int
    owner: str
    target: NoteTarget
    action: NoteAction
    content: str
    session_id: str
    turn_id: str | None
    at: float
    author: NoteAuthor | None = None
    """`None` for versions that were stored before the author was; see `note_provenance.author_of`."""
    chat: str | None = None
    """The group chat in which it was written; `None` for a private conversation."""


def count_chars(notes: Iterable[NoteVersion]) -> int:
    """Return the number of characters of the notes, as the limits count them."""
    return sum(len(note.content) for note in notes)


class Prefix(Struct, frozen=True):
    """The start of every model request of a session: system prompt and tool schemas, sent byte for byte."""

    session_id: str
    number: int
    content: bytes
    at: float


class Lease(Struct, frozen=True):
    """The right to drain a kind of lane, valid until another holder gets a higher fence."""

    name: str
    holder: str
    fence: int


class Timer(Struct, frozen=True):
    """A stored timer of a key."""

    name: str
    due_at: float
    key: SessionKey


class HookCall(Struct, frozen=True):
    """A queued call of a plugin hook. It runs after the commit, in order per key."""

    hook: str
    session_id: str
    platform: str
    detail: dict[str, str] = {}
