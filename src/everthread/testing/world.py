"""What must be true, kept in plain dictionaries: a second, naive telling of the boundary table.

The model copies lists where the store refers to rows, and never calls `plan`. It is told of every commit in the order
of the commits; whatever the store then holds, and whatever the back ends have taken in, must agree with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from everthread.domain.boundary import Boundary, Branch, Compress, Resume, Rewind
from everthread.domain.model import InboxRow, SessionKey
from everthread.domain.policy import ResetPolicies
from everthread.lifecycle import Committed, Crossing, ForgetOwner, ForgetSession, NoteChange, Ticket
from everthread.ports.store import BoundaryRow


class Violation(AssertionError):
    """Something that must hold does not."""


def hold(condition: object, what: str) -> None:
    if not condition:
        raise Violation(what)


@dataclass(frozen=True, slots=True)
class Accept:
    key: SessionKey
    text: str


@dataclass(frozen=True, slots=True)
class Begin:
    key: SessionKey


@dataclass(frozen=True, slots=True)
class Commit:
    ticket: Ticket
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Abandon:
    """A turn is given back: a cancelled one is settled, a live one stays what it is, for somebody else."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Cross:
    key: SessionKey
    boundary: Boundary


@dataclass(frozen=True, slots=True)
class Recover:
    """Late and hidden turns of dead processes are settled."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """A turn of a dead process is gone on with."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A process says goodbye."""

    holder: str
    close_memory: bool


@dataclass(frozen=True, slots=True)
class Note:
    session_id: str
    change: NoteChange


@dataclass(frozen=True, slots=True)
class Delegate:
    session_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Forgetting:
    what: ForgetSession | ForgetOwner
    owner: str


Entry = tuple[Any, ...]
ActiveAt = Callable[[str], float]


@dataclass
class ModelSession:
    id: str
    owner: str
    shown: list[tuple[int, str]]
    active_at: float
    last: int = 0
    log: list[Entry] = field(default_factory=list[Entry])
    dirty: bool = False
    ended: str | None = None
    forgotten: bool = False
    parent: str | None = None
    continued_by: str | None = None
    generation: int = 0

    def end(self, reason: str) -> None:
        self.ended = reason
        self.generation += 1

    def close(self) -> None:
        if self.dirty:
            self.log.append(("close", tuple(text for _, text in self.shown)))
            self.dirty = False

    def write(self, *entry: Any) -> None:
        self.log.append(entry)
        self.dirty = True


Left = ModelSession | None
Others = list[SessionKey]
B = TypeVar("B")


def _boundary(operation: object | None, kind: type[B]) -> B:
    """The boundary that was asked for: some are never crossed unasked."""
    boundary = operation.boundary if isinstance(operation, Cross) else None
    hold(isinstance(boundary, kind), f"{kind.__name__} was crossed, but {operation} was asked for")
    assert isinstance(boundary, kind)
    return boundary


@dataclass
class ModelSlot:
    key: SessionKey
    session: str
    text: str
    ticket: tuple[str, int]
    """Who may write it, under which fence."""
    fate: str = "live"


class World:
    """The model. `sees` is called after each commit, with what was asked for and what came back."""

    def __init__(self, owners: dict[SessionKey, str], policies: ResetPolicies) -> None:
        self.owners = owners
        self.policies = policies
        self.sessions: dict[str, ModelSession] = {}
        self.on: dict[SessionKey, str | None] = dict.fromkeys(owners)
        self.epoch: dict[SessionKey, int] = dict.fromkeys(owners, 0)
        self.pending: dict[SessionKey, str | None] = dict.fromkeys(owners)
        self.waiting: dict[SessionKey, list[tuple[int, str, float]]] = {key: [] for key in owners}
        self.slots: dict[str, ModelSlot] = {}
        self.fates: dict[str, str] = {}
        self.hooks: dict[SessionKey, list[tuple[str, str]]] = {key: [] for key in owners}
        self.served: set[tuple[str, str]] = set()
        self._aside: dict[str, list[str]] = {}

    def sees(
        self, operation: object | None, result: object, rows: list[BoundaryRow], active_at: ActiveAt, now: float
    ) -> None:
        for row in rows:
            self._crossing(row, operation)
        match operation, result:
            case Accept(key, text), (InboxRow() as row, True):
                self.waiting[key].append((row.id, text, row.accepted_at))
                self.fates[text] = "waiting"
            case Begin(key), Ticket() as ticket:
                self._begun(key, ticket, just_opened=bool(rows))
            case Commit(ticket, interrupted), Committed() as done:
                self._held(ticket)
                self._committed(ticket.turn_id, done, interrupted, active_at, now)
            case Abandon(ticket), None:
                self._held(ticket)
                self.slots[ticket.turn_id].ticket = ("", 0)
            case TakeOver(), Ticket() as ticket:
                self.slots[ticket.turn_id].ticket = (ticket.holder, ticket.fence)
                self.served.add((ticket.holder, ticket.ref.session_id))
            case Cross(key, boundary), Crossing() as crossing:
                self._answered(key, boundary, crossing, rows)
            case _:
                self._told(operation, result)

    def _told(self, operation: object | None, result: object) -> None:
        """What belongs to no turn and is no boundary."""
        match operation, result:
            case Note(session_id, change), _:
                self._written(session_id, ("note", change.content))
            case Delegate(session_id, text), _:
                self._written(session_id, ("delegation", text))
            case Forgetting(what, owner), int() if not isinstance(result, bool):
                self._forgotten(what, owner)
            case _:
                pass

    # What a boundary does, told once more ---------------------------------------------------------------------------

    def _crossing(self, row: BoundaryRow, operation: object | None) -> None:
        key, left = row.key, self.sessions.get(row.from_session or "")
        hold(self.on[key] == row.from_session, f"{row.kind} of {key} left {row.from_session}, it was on {self.on[key]}")
        others = [k for k, sid in self.on.items() if sid is not None and sid == row.from_session and k != key]
        told = getattr(self, f"_told_{row.kind}", None)
        hold(told, f"unknown boundary {row.kind}")
        assert told is not None
        told(row, left, others, operation)
        if row.kind != "suspend":
            self.epoch[key] += 1
            self.on[key] = row.to_session
            if row.kind != "expire":
                self.pending[key] = None
        hold(self.epoch[key] == row.epoch, f"{key} is at epoch {row.epoch}, not {self.epoch[key]}")

    def _told_new(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        key = row.key
        self._set_aside(key, left or row.to_session, operation)
        self._leave(key, left, row.kind if not others else None)
        cause = self.pending[key] or ("new_session" if row.kind == "new" else "reset")
        opened = self._open(row, [], ("opened", "", True, cause))
        if left is not None or self.pending[key]:
            self.hooks[key].append(("on_session_reset", opened.id))

    _told_reset = _told_new

    def _told_resume(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        boundary = _boundary(operation, Resume)
        target = self.sessions[self._tip(boundary.target)]
        self._set_aside(row.key, left or target, operation)
        hold(row.to_session == target.id, f"resume went to {row.to_session}, the tip is {target.id}")
        hold(target.owner == row.owner, "resumed somebody else's session")
        self._leave(row.key, left, None)
        target.ended = None
        target.active_at = row.at
        target.log.append(("opened", left.id if left else target.parent or "", False, "resume"))

    def _told_branch(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        assert left is not None
        self._set_aside(row.key, left, operation)
        self._leave(row.key, left, None)
        self._open(row, list(left.shown), ("opened", left.id, False, "branch"), left)

    def _told_compress(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        assert left is not None
        boundary = _boundary(operation, Compress)
        hold(boundary.generation == left.generation, f"a summary of generation {boundary.generation} was applied")
        hold(not self._running(left.id), "compressed in mid-turn")
        left.close()
        left.end("compressed")
        kept = [(n, text) for n, text in left.shown if n > boundary.covers_to]
        left.continued_by = self._open(row, kept, ("opened", left.id, False, "compression"), left).id
        self.served = {(h, str(row.to_session) if sid == left.id else sid) for h, sid in self.served}
        for other in others:
            self.epoch[other] += 1
            self.on[other] = row.to_session

    def _told_rewind(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        assert left is not None
        hidden = left.shown[-_boundary(operation, Rewind).turns :]
        del left.shown[len(left.shown) - len(hidden) :]
        left.generation += 1
        if hidden:
            left.write("rewind", tuple(n for n, _ in hidden))
        for slot in self.slots.values():
            if slot.session == left.id and slot.fate == "live":
                slot.fate = "hidden"

    def _told_suspend(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        assert left is not None
        assert isinstance(operation, Stop)
        if (operation.holder, left.id) in self.served:
            self._finalize(row.key, left)
        if operation.close_memory:
            left.close()

    def _told_forget(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        assert left is not None
        left.end("forgotten")
        self._finalize(row.key, left)
        for other in others:
            self.epoch[other] += 1
            self.on[other] = None

    def _told_expire(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        assert left is not None
        key = row.key
        policy = self.policies.of(key)
        due = policy.due(left.active_at)
        waiting = self.waiting[key]
        hold(due is not None and (row.at >= due or (waiting and waiting[0][2] >= due)), f"{key} expired too early")
        hold(not self._running(left.id), f"{key} expired in mid-turn")
        hold(not (waiting and due is not None and waiting[0][2] < due), f"{key} expired before a message in time")
        at = max(row.at, waiting[0][2]) if waiting else row.at
        reason = policy.expired(left.active_at, at)
        assert reason is not None
        self._leave(key, left, reason.value if not others else None)
        self.pending[key] = reason.value

    def _leave(self, key: SessionKey, left: ModelSession | None, ends: str | None) -> None:
        if left is None:
            return
        left.close()
        if ends is not None:
            left.end(ends)
        self._finalize(key, left)
        for slot in self.slots.values():
            if slot.session == left.id and slot.key == key and slot.fate == "live":
                slot.fate = "late"

    def _finalize(self, key: SessionKey, left: ModelSession) -> None:
        self.hooks[key].append(("on_session_finalize", left.id))
        self.served = {(holder, session_id) for holder, session_id in self.served if session_id != left.id}

    def _open(
        self, row: BoundaryRow, shown: list[tuple[int, str]], entry: Entry, parent: ModelSession | None = None
    ) -> ModelSession:
        assert row.to_session is not None
        hold(row.to_session not in self.sessions, f"{row.to_session} was opened twice")
        session = ModelSession(row.to_session, row.owner, shown, row.at)
        session.log.append(entry)
        if parent is not None:
            session.last, session.parent = parent.last, parent.id
        held = self._aside.pop(row.to_session, [])
        self.sessions[session.id] = session
        for text in held:
            session.last += 1
            self.fates[text] = f"aside in {session.id}"
        return session

    def _set_aside(self, key: SessionKey, into: ModelSession | str | None, operation: object | None) -> None:
        if isinstance(operation, Begin):
            return
        for _, text, _ in self.waiting[key]:
            if isinstance(into, ModelSession):
                into.last += 1
                self.fates[text] = f"aside in {into.id}"
            else:
                self._aside.setdefault(str(into), []).append(text)
        self.waiting[key].clear()

    def _answered(self, key: SessionKey, boundary: Boundary, crossing: Crossing, rows: list[BoundaryRow]) -> None:
        hold((crossing.refusal is None) == bool(rows), f"{boundary} of {key} answered {crossing.refusal}, wrote {rows}")
        if isinstance(boundary, Branch) and crossing.refusal is not None:
            hold(self.on[key] is None, f"branch of {key} refused: {crossing.refusal}")

    # Turns ----------------------------------------------------------------------------------------------------------

    def _begun(self, key: SessionKey, ticket: Ticket, *, just_opened: bool) -> None:
        _, text, accepted_at = self.waiting[key].pop(0)
        session = self.sessions[self.on[key] or ""]
        hold(ticket.message.inbound.text == text, f"{key} took up {ticket.message.inbound.text!r} before {text!r}")
        hold(
            ticket.ref.session_id == session.id,
            f"{text!r} began in {ticket.ref.session_id}, its key is on {session.id}",
        )
        hold(ticket.ref.epoch == self.epoch[key], f"{text!r} began at epoch {ticket.ref.epoch}")
        hold(not self._running(session.id), f"two turns run in {session.id}")
        due = self.policies.of(key).due(session.active_at)
        hold(just_opened or due is None or accepted_at < due, f"{text!r} went to an expired session")
        session.active_at = max(session.active_at, accepted_at)
        self.slots[ticket.turn_id] = ModelSlot(key, session.id, text, (ticket.holder, ticket.fence))
        self.fates[text] = "running"
        self.served.add((ticket.holder, session.id))

    def _held(self, ticket: Ticket) -> None:
        slot = self.slots.get(ticket.turn_id)
        hold(slot is not None, f"turn {ticket.turn_id} was written twice, or never began")
        assert slot is not None
        mine = (ticket.holder, ticket.fence)
        hold(slot.ticket == mine, f"turn {ticket.turn_id} was written by {mine}, it is {slot.ticket}'s")

    def _committed(self, turn_id: str, done: Committed, interrupted: bool, active_at: ActiveAt, now: float) -> None:
        slot = self.slots.pop(turn_id)
        wanted = {"late": "late", "hidden": "hidden", "live": "interrupted" if interrupted else "done"}[slot.fate]
        hold(done.status.value == wanted, f"{slot.text!r} was stored as {done.status.value}, it is {wanted}")
        hold(done.ref.session_id == slot.session, f"{slot.text!r} was committed into {done.ref.session_id}")
        withheld = done.reply is not None and done.reply.state.value == "withheld"
        hold(withheld == (slot.fate != "live") or done.reply is None, f"the reply to {slot.text!r} went out wrongly")
        if slot.fate == "live":
            session = self.sessions[slot.session]
            session.active_at = max(session.active_at, now)
            hold(active_at(session.id) == session.active_at, f"{session.id} was last active {active_at(session.id)}")
        self._store_turn(slot)

    def _store_turn(self, slot: ModelSlot) -> None:
        session = self.sessions[slot.session]
        session.last += 1
        self.fates[slot.text] = f"{slot.fate} in {session.id}"
        if slot.fate != "hidden":
            session.shown.append((session.last, slot.text))
            session.write("turn", session.last, slot.text)
        if slot.fate != "live":
            self._close_if_left(session)

    def settled(self, turn_id: str) -> None:
        """A cancelled turn of a dead process was stored with what there was of it."""
        slot = self.slots.pop(turn_id)
        hold(slot.fate != "live", f"the running turn {slot.text!r} was thrown away")
        self._store_turn(slot)

    def _written(self, session_id: str, entry: Entry) -> None:
        session = self.sessions[session_id]
        session.write(*entry)
        self._close_if_left(session)

    def _close_if_left(self, session: ModelSession) -> None:
        if session.id not in self.on.values() and all(slot.session != session.id for slot in self.slots.values()):
            session.close()

    def _forgotten(self, what: ForgetSession | ForgetOwner, owner: str) -> None:
        ids = [what.session_id] if isinstance(what, ForgetSession) else list(self.sessions)
        for session in (self.sessions[sid] for sid in ids):
            if session.owner == owner and not session.forgotten:
                self._forgotten_session(session)
        if isinstance(what, ForgetOwner):
            for key in (key for key, whose in self.owners.items() if whose == owner):
                for _, text, _ in self.waiting[key]:
                    self.fates[text] = "forgotten in the inbox"
                self.waiting[key].clear()

    def _forgotten_session(self, session: ModelSession) -> None:
        session.forgotten = True
        if session.ended is None:
            session.end("forgotten")
        session.log.append(("forget", "session"))
        session.dirty = False
        for turn_id, slot in list(self.slots.items()):
            if slot.session == session.id:
                self.fates[slot.text] = f"forgotten in {session.id}"
                del self.slots[turn_id]
        for text, fate in self.fates.items():
            if fate.endswith(f" in {session.id}"):
                self.fates[text] = f"forgotten in {session.id}"

    def _running(self, session_id: str) -> bool:
        return any(slot.session == session_id and slot.fate == "live" for slot in self.slots.values())

    def _tip(self, session_id: str) -> str:
        following = self.sessions[session_id].continued_by
        if following is None or self.sessions[following].forgotten:
            return session_id
        return self._tip(following)
