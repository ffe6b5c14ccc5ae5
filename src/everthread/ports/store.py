"""The store: one unit of work is one transaction.

A unit of work is a plain function that is handed a `UnitOfWork`. It may be run again if its transaction had to be
repeated, so it must touch nothing but what it is handed. Its result is given to the caller after the commit is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from everthread.domain.events import EntryKind, Event, LogEntry, View
from everthread.domain.media import Media
from everthread.domain.model import (
    Binding,
    Fate,
    HookCall,
    Inbound,
    InboxRow,
    InboxState,
    Lease,
    Message,
    NoteTarget,
    NoteVersion,
    Prefix,
    Reply,
    ReplyState,
    Session,
    SessionKey,
    SessionRef,
    Slot,
    Timer,
    ToolRow,
    Turn,
    TurnStatus,
)
from everthread.domain.review import Review, ReviewState, Window
from everthread.domain.spend import Spent, Used
from everthread.ports.access import AccessRows
from everthread.ports.news import BoundaryRow as BoundaryRow
from everthread.ports.news import News
from everthread.ports.schedules import Schedules
from everthread.ports.tokens import Tokens

T = TypeVar("T")


class Cursor(Struct, frozen=True):
    """How far a provider has come in a session's log."""

    provider: str
    session_id: str
    seq: int
    replay: int = 0
    attempts: int = 0
    due_at: float | None = None
    error: str | None = None
    copy_to: int = 0
    """Up to here it is told the past as it stands now."""


class ToCopy(Struct, frozen=True):
    """A session that a provider was not told of from its beginning."""

    session_id: str
    entries: int
    turns: int
    characters: int
    is_at_rest: bool
    """Nothing of it waits for the provider."""


class Redelivery(Struct, frozen=True):
    """An entry outside its lane's order: parked (no `due_at`), or waiting to be delivered once more."""

    provider: str
    session_id: str
    seq: int
    replay: int
    error: str
    attempts: int = 0
    due_at: float | None = None


class ProviderRow(Struct, frozen=True):
    """What is known of a provider beyond its cursors: how far the logs were looked through, and its breaker."""

    name: str
    scanned_pos: int
    failures: int = 0
    open_until: float = 0.0
    last_error: str | None = None
    last_error_at: float | None = None


class LaneCount(Struct, frozen=True):
    """A provider's lag, for people."""

    waiting_entries: int
    waiting_sessions: int
    parked: int
    oldest_at: float | None = None
    """When the oldest entry that waits was written."""


class QueuedHook(Struct, frozen=True):
    id: int
    key: SessionKey
    call: HookCall
    attempts: int


class Incident(Struct, frozen=True):
    """Something that went wrong at a boundary and changed nothing else."""

    at: float
    source: str
    session_id: str | None
    text: str


class Rest(Struct, frozen=True):
    """Why a session is not compressed for now: a summary failed, or the last ones saved too little."""

    session_id: str
    model: str
    """The one that it was with."""
    poor: int
    """Passes in a row that saved too little."""
    cool_until: float
    problem: str


class ReviewRow(Struct, frozen=True):
    """What is known of the review of some turns."""

    session_id: str
    window: Window
    state: ReviewState
    fence: int
    """How often somebody took it."""
    due_at: float


class Examined(Struct, frozen=True):
    """What an examination of a store has found."""

    engine: str
    """What keeps it, with its version."""
    engine_problem: str
    schema: int
    """0 if there is none yet."""
    schema_known: int
    """The newest that this program knows."""
    damage: str
    """Empty if none was found."""
    whole: bool
    """False if there was not time for all of it."""


class Hit(Struct, frozen=True):
    """A message that a search found, with where it stands."""

    session_id: str
    number: int
    index: int
    role: str
    content: str
    at: float
    score: float = 0.0
    """From 0 to 1 how much it has to do with a question; of other searches 0."""


class Contents(Struct, frozen=True):
    """How much a store holds, to compare a copy by."""

    schema: int
    sessions: int
    turns: int
    messages: int
    notes: int
    log_entries: int


class Whereabouts(Struct, frozen=True):
    """Where a key is, and who else is there."""

    binding: Binding | None = None
    session: Session | None = None
    other_keys: tuple[SessionKey, ...] = ()
    """Which other keys are on the session."""
    running: SessionKey | None = None
    """The key whose turn runs in the session."""


class Sessions(Protocol):
    def get(self, session_id: str) -> Session | None: ...
    def add(self, session: Session, summary: str | None = None) -> None: ...
    def save(self, session: Session) -> None:
        """Store what has changed of a session; for the generation, see `renew`."""
        ...

    def renew(self, session: Session) -> None:
        """The same for one whose generation has grown: every key on it must show that, unless it is bound anew."""
        ...

    def tip(self, session_id: str) -> Session | None:
        """The newest continuation of a session that is not forgotten: itself, if it was never compressed."""
        ...

    def titled(self, owner: str | None, title: str) -> tuple[Session, ...]:
        """The owner's (or everybody's) sessions whose titles begin like `title`, lowest lineage number first."""
        ...

    def named(self, owner: str | None, beginning: str, limit: int) -> tuple[Session, ...]:
        """The owner's (or everybody's) sessions whose titles begin so, by title; of no beginning, the last opened.

        Of those it looks at the newest only, so that it is fast however many there are.
        """
        ...

    def matching(self, id_prefix: str, limit: int, owner: str | None = None) -> tuple[Session, ...]: ...
    def recent(self, *, owner: str | None, limit: int, kind: str | None = None) -> tuple[Session, ...]: ...
    def conversations(self, limit: int, *, delegated: bool = False) -> tuple[Session, ...]:
        """What people have to do with, the last active first: nothing forgotten, and no session that only has notes.

        Work that was delegated or scheduled is left out, unless it is asked for.
        """
        ...

    def page(self, owner: str, limit: int, before: tuple[float, str] | None = None) -> tuple[Session, ...]:
        """The owner's conversations, the last active first, behind the one that was active then and has that id."""
        ...

    def of_owner(self, owner: str) -> tuple[Session, ...]: ...
    def descendants(self, session_id: str) -> tuple[Session, ...]: ...
    def binding(self, key: SessionKey) -> Binding | None: ...
    def at(self, key: SessionKey) -> tuple[Binding | None, Session | None]:
        """A key's binding, and the session it is on."""
        ...

    def whereabouts(self, key: SessionKey) -> Whereabouts:
        """The same with who else is there, at once: what every boundary has to know."""
        ...

    def ref(self, key: SessionKey) -> SessionRef | None:
        """Where a key is now."""
        ...

    def bind(self, binding: Binding, *, same_owner: bool = False) -> None:
        """Put a key on a session or on none. `same_owner`: it was seen to be nobody else's before."""
        ...

    def keys_on(self, session_id: str) -> tuple[SessionKey, ...]: ...
    def keys_of(self, owner: str) -> tuple[SessionKey, ...]:
        """Where the owner has been, the last active first."""
        ...

    def add_boundary(self, row: BoundaryRow) -> int: ...
    def boundary(self, boundary_id: int) -> BoundaryRow | None: ...
    def boundaries(
        self, *, limit: int, session_id: str | None = None, kind: str | None = None
    ) -> tuple[BoundaryRow, ...]: ...
    def serve(self, holder: str, session_id: str, key: SessionKey) -> None: ...
    def is_served(self, holder: str, session_id: str) -> bool: ...
    def served(self, holder: str) -> tuple[tuple[str, SessionKey], ...]: ...
    def finalized(self, session_id: str) -> None: ...
    def serving_moved(self, from_session: str, to_session: str) -> None: ...
    def set_title(self, session_id: str, title: str | None) -> None: ...
    def chosen_model(self, key: SessionKey) -> str:
        """The model that was chosen at the key; empty if it is the usual one."""
        ...

    def choose_model(self, key: SessionKey, owner: str, model: str) -> None: ...


class Turns(Protocol):
    def add(
        self,
        session: Session,
        number: int,
        turn_id: str,
        status: TurnStatus,
        messages: Sequence[Message],
        at: float,
    ) -> None: ...
    def view(self, session: Session, *, as_of_seq: int | None = None, up_to: int | None = None, after: int = 0) -> View:
        """What the session shows, of the turns numbered `after + 1 .. up_to`."""
        ...

    def view_for_people(self, session: Session, *, up_to: int | None = None, after: int = 0) -> View:
        """The same, and among its turns the messages that were set aside: whoever wrote them looks for them."""
        ...

    def last_visible(self, session: Session, count: int) -> tuple[int, ...]: ...
    def count(self, session: Session) -> int:
        """How many turns the session shows, inherited ones included, without reading them."""
        ...

    def get(self, session_id: str, number: int) -> Turn | None: ...
    def asked(self, session_id: str, limit: int, chars_max: int = 10_000) -> tuple[tuple[float, str], ...]:
        """What the session's own turns began with and when, the latest first; nothing longer than that."""
        ...

    def own(self, session_id: str, *, after: int, up_to: int, limit: int) -> tuple[Turn, ...]:
        """The session's own turns, of whatever status and shown or not."""
        ...

    def number(self, session_id: str, turn_id: str) -> int | None:
        """Which turn of the session that is; none if it was not committed there."""
        ...

    def hide(self, session: Session, numbers: Sequence[int], seq: int) -> None: ...
    def put_prefix(self, prefix: Prefix, owner: str) -> None: ...
    def prefix(self, session_id: str) -> Prefix | None: ...
    def prefix_number(self, session_id: str) -> int:
        """The number of the session's newest prefix, without reading it; 0 if there is none."""
        ...

    def index(self) -> None:
        """Make the words of all messages searchable; it is also done now and then when turns are added."""
        ...

    def is_indexed(self, owner: str | None = None, beside: str | None = None) -> bool:
        """Whether the words of all messages are searchable, or of the owner's, leaving out the session `beside`."""
        ...

    def search(self, owner: str, query: str, *, limit: int, ranked: bool = False) -> tuple[Hit, ...]:
        """The owner's messages that hold all terms of the query, newest or best first; none of an undone turn."""
        ...

    def is_anything_beside(self, owner: str, session: Session) -> bool:
        """Whether the owner may have said anything that the session does not show; said without looking far."""
        ...

    def recall(self, owner: str, question: str, *, limit: int, beside: Session | None = None) -> tuple[Hit, ...]:
        """What was said that has to do with a question as people ask it, best first, one message of a turn.

        A message counts by how many of the question's telling words it holds, how rare they are, and how short it is.
        Only what a person or the model said in a chat; not what was undone or set aside; nothing of what the session
        `beside` shows, nor of what was undone there.
        """
        ...


class Slots(Protocol):
    def add(self, slot: Slot) -> None: ...
    def get(self, turn_id: str) -> Slot | None: ...
    def live(self, session_id: str) -> Slot | None: ...
    def of_session(self, session_id: str) -> tuple[Slot, ...]: ...
    def delegated(self, session_id: str) -> bool: ...
    def held_by(self, holder: str) -> bool: ...
    def set_fate(self, turn_id: str, fate: Fate) -> None: ...
    def take_over(self, turn_id: str, holder: str) -> Slot: ...
    def drop(self, turn_id: str) -> None: ...
    def orphans(self, now: float) -> tuple[Slot, ...]:
        """Slots whose process has lost its lease."""
        ...

    def start_tool(self, row: ToolRow, owner: str) -> None: ...
    def finish_tool(self, turn_id: str, call_id: str, result: str) -> None: ...
    def tools(self, turn_id: str) -> tuple[ToolRow, ...]: ...
    def drop_tools(self, turn_id: str) -> None: ...


class Log(Protocol):
    def append(self, entry: LogEntry) -> None: ...
    def entry(self, session_id: str, seq: int) -> LogEntry | None: ...
    def after(self, session_id: str, seq: int) -> LogEntry | None:
        """The next entry, if there is one."""
        ...

    def of_kind(self, session_id: str, kind: EntryKind) -> tuple[LogEntry, ...]: ...
    def last_close(self, session_id: str, up_to_seq: int) -> LogEntry | None: ...
    def event(self, entry: LogEntry, missing: tuple[int, ...], *, as_of_now: bool = False) -> Event:
        """What an entry tells; with `as_of_now`, a close leaves out what was taken back after it."""
        ...

    def is_taken_back(self, session_id: str, number: int) -> bool:
        """Whether the turn was hidden since."""
        ...

    def is_light(self, entry: LogEntry) -> bool:
        """Whether its event is read in microseconds."""
        ...

    def end(self) -> int:
        """The position of the newest entry of any log."""
        ...


class Cursors(Protocol):
    def register(self, provider: str) -> None:
        """A provider that was never here starts at the logs' ends."""
        ...

    def provider(self, name: str) -> ProviderRow | None: ...
    def providers(self) -> tuple[ProviderRow, ...]: ...
    def save_provider(self, row: ProviderRow) -> None: ...
    def discover(self, provider: str, now: float, limit: int) -> bool:
        """Make the lanes of new log entries due; true if there may be more of them."""
        ...

    def get(self, provider: str, session_id: str) -> Cursor | None: ...
    def save(self, cursor: Cursor) -> None: ...
    def due_sessions(self, provider: str, now: float, limit: int) -> tuple[str, ...]:
        """Sessions with something to deliver now, the longest waiting first."""
        ...

    def next_due(self, provider: str, after: float) -> float | None: ...
    def set_back(self, provider: str, session_id: str | None, now: float) -> int:
        """Start lanes again from their logs' beginnings under a new replay number; how many lanes."""
        ...

    def to_copy(self, provider: str, after: str, limit: int) -> tuple[ToCopy, ...]:
        """Sessions that the provider was not told of from the beginning, by their ids, from behind `after`."""
        ...

    def copy(self, provider: str, session_id: str, now: float) -> bool:
        """Start the lane of such a session at its log's beginning; false if it is none, or something of it waits."""
        ...

    def copying(self, provider: str) -> tuple[int, int]:
        """Sessions and entries that are left of the copies that were started."""
        ...

    def new_replay(self, provider: str, session_id: str) -> int: ...
    def add_redelivery(self, row: Redelivery) -> None: ...
    def redeliveries(self, provider: str, session_id: str | None = None) -> tuple[Redelivery, ...]: ...
    def drop_redelivery(self, row: Redelivery) -> None: ...
    def bring_forward(self, provider: str, now: float, latest: float) -> None:
        """What waits for a time after `latest` waits no longer: lanes, redeliveries and the breaker."""
        ...

    def parked(self, provider: str, session_id: str) -> tuple[int, ...]: ...
    def count(self, provider: str) -> LaneCount: ...


class Inbox(Protocol):
    def accept(self, inbound: Inbound, now: float) -> tuple[InboxRow, bool]:
        """The stored row, and whether it is new: an update that was taken before is not taken again."""
        ...

    def known(self, inbound: Inbound) -> InboxRow | None:
        """What was taken under the same number before, if anything was."""
        ...

    def get(self, inbox_id: int) -> InboxRow | None: ...
    def first_waiting(self, key: SessionKey) -> InboxRow | None:
        """The key's next message."""
        ...

    def next(self, key: SessionKey) -> InboxRow | None:
        """The key's next message or command; also a command that was begun and never answered."""
        ...

    def last_user(self, key: SessionKey) -> str:
        """Who wrote there last; empty if nobody did, or it is not known. Not to be asked often."""
        ...

    def commands(self, key: SessionKey) -> tuple[InboxRow, ...]:
        """The key's commands that are not answered yet."""
        ...

    def keys_waiting(self) -> tuple[SessionKey, ...]:
        """Where a message or a command waits, the longest waiting first."""
        ...

    def waiting(self, key: SessionKey, before_id: int | None = None) -> tuple[InboxRow, ...]:
        """The key's messages that wait."""
        ...

    def of_turn(self, key: SessionKey, turn_id: str) -> tuple[InboxRow, ...]:
        """The messages that a running turn of the key answers: the one it began with, and those it was steered by."""
        ...

    def unpack(self, inbox_id: int, text: str, media: tuple[Media, ...]) -> bool:
        """What came with the message was fetched: it reads so from now on; without a text, nothing is to be answered.
        False if it waits no longer.
        """
        ...

    def take_up(self, inbox_id: int, session_id: str, turn_id: str) -> None:
        """The message is answered by this turn, which runs."""
        ...

    def set_aside(self, inbox_id: int, session_id: str, turn_id: str) -> None:
        """The message stands in this turn, unanswered."""
        ...

    def end_command(self, inbox_id: int) -> None:
        """The command was carried out."""
        ...

    def end_turn(self, key: SessionKey, turn_id: str, state: InboxState) -> None:
        """The messages `of_turn` are done, or set aside: their words stand in the turn, if anywhere."""
        ...

    def move_chat(self, platform: str, chat: str, known_as: str) -> None:
        """The chat that has this id on its platform now is the one that is known by another."""
        ...

    def moved_chats(self) -> dict[tuple[str, str], str]:
        """By platform and the id there: what such a chat is known as."""
        ...

    def put_reply(self, reply: Reply) -> Reply:
        """What is known of it then: the platform's id of a draft is kept."""
        ...

    def attach(self, turn_id: str, owner: str, name: str, content: bytes) -> None:
        """What goes out with a reply, kept until nothing more is to become of it."""
        ...

    def attached(self, turn_id: str) -> bytes | None: ...
    def reply(self, turn_id: str) -> Reply | None: ...
    def replies(self, state: ReplyState, limit: int, after: tuple[float, str] | None = None) -> tuple[Reply, ...]:
        """The oldest first, from behind the one of that time and turn."""
        ...


class Notes(Protocol):
    def put(self, version: NoteVersion) -> None: ...
    def current(self, owner: str, target: NoteTarget) -> tuple[NoteVersion, ...]: ...
    def get(self, note_id: str) -> NoteVersion | None: ...
    def versions(self, note_id: str) -> tuple[NoteVersion, ...]: ...
    def history(self, owner: str, limit: int) -> tuple[NoteVersion, ...]:
        """Every change of the owner's notes, the newest first."""
        ...

    def projected(self, owner: str, target: NoteTarget) -> str | None: ...
    def set_projected(self, owner: str, target: NoteTarget, digest: str) -> None: ...


class LaneRows(Protocol):
    def acquire(self, name: str, holder: str, now: float, ttl_s: float) -> Lease | None:
        """The lease, unless somebody has it. All who want one of that name ask for it for the same time."""
        ...

    def may_acquire(self, name: str, now: float, ttl_s: float) -> bool:
        """Whether it is worth asking: nobody has it, or has it for longer than anybody can."""
        ...

    def renew(self, lease: Lease, now: float, ttl_s: float) -> bool: ...
    def release(self, lease: Lease) -> None: ...
    def check(self, lease: Lease) -> None:
        """Raises `Fenced` unless the lease is still this holder's."""
        ...

    def keep_alive(self, holder: str, now: float, ttl_s: float) -> None:
        """This process is there: what it has begun is nobody else's to recover."""
        ...

    def is_alive(self, holder: str, now: float) -> bool:
        """Whether the process was there lately and has not left."""
        ...

    def bound_lives(self, until: float) -> None:
        """No process is there until later than this: whatever says so was written before the clock was put back."""
        ...

    def leave(self, holder: str) -> None:
        """This process is not there any more: what it has begun, and the lanes it served, are anybody's."""
        ...

    def sweep(self, before: float) -> None:
        """Let go of what is known of processes that were last heard of before."""
        ...

    def arm(self, timer: Timer) -> None:
        """Set a timer unless one of that name is set already."""
        ...

    def disarm(self, name: str) -> None: ...
    def due_timers(self, now: float, limit: int) -> tuple[Timer, ...]: ...
    def next_timer(self) -> float | None: ...
    def add_hook(self, key: SessionKey, call: HookCall, now: float) -> None: ...
    def hooks(
        self, limit: int, names: Collection[str] | None = None, except_keys: Collection[SessionKey] = ()
    ) -> tuple[QueuedHook, ...]:
        """The oldest that wait, of these names."""
        ...

    def hook_tried(self, hook_id: int) -> bool:
        """False if it waits no longer."""
        ...

    def drop_hook(self, hook_id: int) -> None: ...
    def add_incident(self, incident: Incident) -> None: ...
    def incidents(self, limit: int) -> tuple[Incident, ...]: ...


class Reviews(Protocol):
    """Background reviews of sessions' turns, each window once."""

    def add(self, session_id: str, window: Window, now: float) -> None:
        """Have the turns reviewed. Nothing happens if they are or were, unless that was stopped."""
        ...

    def reviewed_to(self, session_id: str) -> int:
        """The last turn of the session that is in some window which was not stopped; 0 if there is none."""
        ...

    def take(self, holder: str, now: float) -> tuple[str, Window, int] | None:
        """The longest due of the reviews that nobody who is alive carries out: session, window, fence."""
        ...

    def is_due(self, now: float) -> bool:
        """Whether there is one to take, without the cost of writing."""
        ...

    def is_held(self, review: Review) -> bool:
        """Whether it is still to be carried out by whoever took it: not stopped, forgotten or taken over."""
        ...

    def end(self, review: Review, state: ReviewState, due_at: float = 0.0) -> None:
        """Write down what became of it, if it is still held; one that waits again is due then."""
        ...

    def stop(self, session_id: str, turns: Window) -> None:
        """Stop what waits or runs and is about some of these turns."""
        ...

    def of_session(self, session_id: str) -> tuple[ReviewRow, ...]: ...


class Rests(Protocol):
    """Why sessions are not compressed for now."""

    def get(self, session_id: str) -> Rest | None: ...
    def put(self, rest: Rest) -> None: ...
    def drop(self, session_id: str) -> None: ...


class Spend(Protocol):
    def reserve(self, ref: SessionRef, turn_id: str, model: str, amount: float, now: float) -> int: ...
    def settle(self, spent: Spent, ref: SessionRef, turn_id: str, now: float) -> None:
        """Write down what a call has cost, whether or not something was reserved for it."""
        ...

    def total(self, owner: str, since: float) -> float: ...
    def of_turn(self, ref: SessionRef, turn_id: str, since: float) -> float:
        """What was spent or is set aside for one turn, or whatever stands in its place."""
        ...

    def by_model(self, owner: str, since: float, sessions: Collection[str] | None = None) -> tuple[Used, ...]:
        """What each model was used for since, in these sessions or in all; the dearest first."""
        ...


class Forgetting(Protocol):
    def scrub_session(self, session: Session) -> tuple[str, ...]:
        """What the notes said that were written in it."""
        ...

    def scrub_descendants(self, session: Session, session_ids: tuple[str, ...]) -> None: ...
    def scrub_owner(self, owner: str) -> tuple[str, ...]:
        """What the owner's notes said."""
        ...

    def scrub_fact(self, note_id: str, owner: str) -> tuple[str, ...]:
        """The wordings that the note had."""
        ...

    def bury(self, kind: str, identity: str, owner: str, now: float) -> None:
        """Leave a tombstone against replay and import."""
        ...

    def purge(self, *, begin: bool) -> bool:
        """Take a slice of what is marked as deleted out of the search index for good; true if there is more to do."""
        ...

    def discarded(self) -> tuple[str, ...]:
        """Files that came with what was forgotten or pruned, and are still to be removed: paths within their folder."""
        ...

    def removed(self, path: str) -> None: ...
    def told(self, session_id: str, seq: int) -> None:
        """A provider has been told to forget a fact; once all have, the fact's words go from the log as well."""
        ...

    def burials(self, owner: str) -> int:
        """How often something of the owner's was forgotten: whatever was read before the last time may not be used."""
        ...

    def buried(self, kind: str, identity: str) -> bool: ...


class Archive(Protocol):
    """Sessions that come or go as a whole."""

    def untold(self, session_id: str) -> bool:
        """Whether some provider has not been told all of the session's log."""
        ...

    def count_as_told(self, session_id: str) -> None:
        """Every provider there is now counts as told of all that the session's log has so far."""
        ...

    def ended_before(self, before: float, session_id: str | None = None) -> tuple[Session, ...]:
        """Conversations that ended, and were last active, before then, and that nobody is on or at work for."""
        ...

    def children(self, parent_id: str | None = None) -> tuple[tuple[str, str], ...]:
        """Who grew out of whom, of all that are not forgotten: the child, and the nearest above it that is not."""
        ...

    def holds_the_newest(self, session_id: str) -> bool:
        """Whether the newest turn or log entry of all is the session's: their numbers must not be given again."""
        ...

    def remove(self, session_id: str) -> int:
        """Take every row of the session's conversation away; how many turns it had. Notes and the audit trail stay."""
        ...


class UnitOfWork(Protocol):
    @property
    def sessions(self) -> Sessions: ...
    @property
    def turns(self) -> Turns: ...
    @property
    def slots(self) -> Slots: ...
    @property
    def log(self) -> Log: ...
    @property
    def cursors(self) -> Cursors: ...
    @property
    def inbox(self) -> Inbox: ...
    @property
    def notes(self) -> Notes: ...
    @property
    def lanes(self) -> LaneRows: ...
    @property
    def spend(self) -> Spend: ...
    @property
    def reviews(self) -> Reviews: ...
    @property
    def rests(self) -> Rests: ...
    @property
    def forgetting(self) -> Forgetting: ...
    @property
    def archive(self) -> Archive: ...
    @property
    def access(self) -> AccessRows: ...
    @property
    def tokens(self) -> Tokens: ...
    @property
    def news(self) -> News: ...
    @property
    def schedules(self) -> Schedules: ...


class Store(Protocol):
    async def write(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run one unit of work in one transaction; returns once it is durable."""
        ...

    async def read(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run a function that only reads, on one consistent snapshot."""
        ...

    async def peek(self, work: Callable[[UnitOfWork], T]) -> T:
        """The same for what takes microseconds: done on the spot, without the cost of going to another thread."""
        ...

    async def index(self) -> None:
        """Make the words of everything committed searchable: they are indexed some turns at a time."""
        ...

    async def changed(self) -> int:
        """A number that differs whenever somebody has committed, in this process or another."""
        ...

    async def tidy(self) -> bool:
        """Take what was deleted or overwritten out of the files beside the data. False if somebody reads there now."""
        ...

    async def copy(self, target: Path, progress: Callable[[int, int], None]) -> None:
        """Copy everything committed so far to a new file, while others go on writing; `progress` hears of what."""
        ...

    async def aclose(self) -> None: ...
