"""Reference model in plain dictionaries: a second, naive implementation of the boundary table.

The model copies lists where the store refers to rows, and never calls `plan`. It receives every commit in commit order.
The contents of the store and of the back ends must agree with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar, cast

from everthread.domain.boundary import Boundary, Branch, Compress, Expire, New, Refusal, Resume, Rewind
from everthread.domain.model import (
    FORGOTTEN,
    SUBAGENT_PLATFORM,
    InboxRow,
    NoteVersion,
    SessionKey,
    SessionKind,
    SessionRef,
)
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.domain.review_window import ReviewState
from everthread.lifecycle import BoundaryResult, CommittedTurn, ForgetFact, ForgetOwner, ForgetSession, TurnClaim
from everthread.lifecycle.forget import Forgettable
from everthread.store.sessions import BoundaryRow
from tests.simulator.environment import SimClock
from tests.simulator.operations import (
    Abandon,
    Accept,
    Begin,
    Commit,
    Cross,
    Delegate,
    EndReview,
    ForgetOperation,
    LowerTimes,
    Note,
    Recover,
    Rewrite,
    Stop,
    TakeOver,
)
from tests.simulator.plugin import name_of
from tests.simulator.reference_types import At, Entry, ModelSession, ModelSlot, StoredTexts, require

ActiveAt = Callable[[str], float]
Left = ModelSession | None
Others = list[SessionKey]
B = TypeVar("B")


AHEAD_S_MAX = 300.0
THIS_YEAR = 1_767_225_600.0


def _credible(at: float, now: float) -> float:
    """Time of a past event. One that is far ahead counts as the present, unless the clock itself is surely wrong."""
    return now if at > now + AHEAD_S_MAX and now >= THIS_YEAR else at


def _boundary(operation: object | None, kind: type[B]) -> B:
    """Return the requested boundary. Kinds that are never crossed unasked must match it."""
    boundary = operation.boundary if isinstance(operation, Cross) else None
    require(isinstance(boundary, kind), f"{kind.__name__} was crossed, but {operation} was asked for")
    assert isinstance(boundary, kind)
    return boundary


class ReferenceModel:
    """The model. Call `observe_result` after each commit with the operation and its result."""

    def __init__(
        self,
        owners: dict[SessionKey, str],
        policies: ResetPolicies,
        *,
        all_hooks: bool = False,
        clock: SimClock | None = None,
    ) -> None:
        self.all_hooks = all_hooks
        """Plugins implement every queued hook, not only those of session ends and resets."""
        self.policies = policies
        self.clock = clock
        """If given, the time that has really passed is compared with idle times."""
        self.sessions: dict[str, ModelSession] = {}
        # Delegated work runs under keys of its own, which are not in `owners`.
        self.on: defaultdict[SessionKey, str | None] = defaultdict(lambda: None, dict.fromkeys(owners))
        self.epoch: defaultdict[SessionKey, int] = defaultdict(int)
        self.pending: defaultdict[SessionKey, str | None] = defaultdict(lambda: None)
        self.kinds: defaultdict[SessionKey, SessionKind] = defaultdict(lambda: SessionKind.CHAT)
        self.waiting: defaultdict[SessionKey, list[tuple[str, float]]] = defaultdict(list)
        self.senders: dict[str, str] = {}
        self.words = StoredTexts()
        self.desks: dict[str, ModelSession] = {}
        self.slots: dict[str, ModelSlot] = {}
        self.fates: dict[str, str] = {}
        self.hooks: defaultdict[SessionKey, list[tuple[str, str]]] = defaultdict(list)
        self.told_of: set[str] = set()
        """Child sessions whose delegated work was recorded."""
        self.served: set[tuple[str, str]] = set()
        self.forgotten_facts: set[str] = set()
        self.accepted: dict[str, float] = {}
        """Elapsed time at which each message was accepted."""

    def observe_result(
        self, operation: object | None, result: object, rows: list[BoundaryRow], active_at: ActiveAt, now: float
    ) -> None:
        for row in rows:
            self._crossing(row, operation)
        match operation, result:
            case Accept(key, text, owner), (InboxRow() as row, True):
                self.waiting[key].append((text, row.accepted_at))
                self.senders[text] = owner
                self.fates[text] = "waiting"
                self.accepted[text] = self._elapsed()
            case Begin(key), TurnClaim() as claim:
                self._begun(key, claim, now, just_opened=bool(rows))
            case Commit(claim, interrupted), CommittedTurn() as done:
                self._held(claim)
                self._committed(claim.turn_id, done, interrupted, active_at, now)
            case Abandon(claim), None:
                self._held(claim)
                self.slots[claim.turn_id].claim = ("", 0)
            case TakeOver(), TurnClaim() as claim:
                self.slots[claim.turn_id].claim = (claim.holder, claim.fence)
                self.served.add((claim.holder, claim.ref.session_id))
            case Cross(key, boundary), BoundaryResult() as crossing:
                self._answered(key, boundary, crossing, rows)
            case _:
                self._expect(operation, result)

    def _expect(self, operation: object | None, result: object) -> None:
        """Apply operations that are neither turns nor boundaries."""
        match operation, result:
            case Note(ref, owner, change, review), NoteVersion() as note:
                slot = self.slots.get(change.turn_id or "")
                late = slot is not None and slot.outdated
                require(not late, f"{change} was noted by a turn during which something was forgotten")
                self.words.note(note.note_id, owner, change.content, note.session_id)
                self._written(ref, owner, ("note", change.content), closes=review is None)
            case Rewrite(ref, owner), tuple():
                for note in cast(tuple[NoteVersion, ...], result):
                    self.words.note(note.note_id, owner, note.content, note.session_id)
                    self._written(ref, owner, ("note", note.content), closes=False)
            case EndReview(review, ref, state), True if state is not ReviewState.WAITING:
                # The only close of a review, however many notes it has written.
                self._close_if_left(self.sessions[review.session_id], (ref.key, ref.epoch, ref.generation))
            case Delegate(ref, text, child), _:
                # A repeated record after a crash counts once.
                if child not in self.told_of:
                    self.told_of.add(child)
                    self._written(ref, ref.owner, ("delegation", text))
            case LowerTimes(now, latest), None:
                require(latest == now + AHEAD_S_MAX and now >= THIS_YEAR, f"times after {latest} were lowered at {now}")
                for session in [self.sessions[session_id] for session_id in self.on.values() if session_id]:
                    session.active_at = now if session.active_at > latest else session.active_at
            case ForgetOperation(what, owner), int() if not isinstance(result, bool):
                self._forgotten(what, owner)
            case _:
                pass

    def mended(self, note: NoteVersion) -> None:
        """Apply a note rewritten because a session was forgotten."""
        self.words.note(note.note_id, note.owner, note.content, note.session_id)
        session = self.sessions.get(note.session_id)
        if session is None:
            self._notes_session(note.owner).append_log((None, 0, 0), "note", note.content)
            return
        at = (session.key, 0, session.generation)
        session.write(at, "note", note.content)
        self._close_if_left(session, at)

    def logs(self) -> list[ModelSession]:
        """All sessions with a log, including the notes session of each owner."""
        return [*self.sessions.values(), *self.desks.values()]

    def forgotten_notes(self, session: ModelSession) -> set[int]:
        """Log entries that are forgotten notes."""
        entries = enumerate(session.log, 1)
        return {seq for seq, entry in entries if entry[0] == "note" and entry[1] in self.words.forgotten}

    # Expected effects of boundaries ---------------------------------------------------------------------------------

    def _crossing(self, row: BoundaryRow, operation: object | None) -> None:
        key, left = row.key, self.sessions.get(row.from_session or "")
        require(
            self.on[key] == row.from_session, f"{row.kind} of {key} left {row.from_session}, it was on {self.on[key]}"
        )
        strange = left is not None and left.owner != row.owner and row.actor == "user"
        require(not strange or row.kind in ("new", "reset"), f"{row.owner} crossed {row.kind} of {row.from_session}")
        others = [k for k, sid in self.on.items() if sid is not None and sid == row.from_session and k != key]
        known = set(self.sessions)
        told = getattr(self, f"_expect_{row.kind}", None)
        require(told, f"unknown boundary {row.kind}")
        assert told is not None
        told(row, left, others, operation)
        if self.all_hooks:
            self.hooks[key] += [("on_session_start", opened) for opened in self.sessions if opened not in known]
            self.hooks[key].append(("on_boundary", name_of(row)))
        if row.kind != "suspend":
            self.epoch[key] += 1
            self.on[key] = row.to_session
            if row.kind != "expire":
                self.pending[key] = None
        require(self.epoch[key] == row.epoch, f"{key} is at epoch {row.epoch}, not {self.epoch[key]}")

    def _expect_new(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        key = row.key
        asked = operation.boundary if isinstance(operation, Cross) else None
        kind = asked.kind if isinstance(asked, New) else None
        self.kinds[key] = kind or self.kinds[key]
        self._set_aside(key, left, None, operation)
        self._leave(key, left, row.kind if not others else None)
        cause = self.pending[key] or ("new_session" if row.kind == "new" else "reset")
        delegating = asked.parent if isinstance(asked, New) else ""
        entry = ("opened", delegating, True, "delegation") if delegating else ("opened", "", True, cause)
        opened = self._open(row, [], entry)
        opened.delegated_by = delegating
        opened.parent = delegating or None
        self._set_aside(key, None, opened, operation)
        if self.epoch[key]:
            self.hooks[key].append(("on_session_reset", opened.id))

    _expect_reset = _expect_new

    def _expect_resume(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        boundary = _boundary(operation, Resume)
        target = self.sessions[self._tip(boundary.target)]
        if target.kind is not SessionKind.CHAT and target.kind is not self.kinds[row.key]:
            require(left is None or self._branched_from(left) is not target, f"{left} was branched again from {target}")
            self._expect_branch_of(target, row, left, operation)
            return
        self._set_aside(row.key, left, target, operation)
        require(row.to_session == target.id, f"resume went to {row.to_session}, the tip is {target.id}")
        require(target.owner == row.owner, "resumed somebody else's session")
        self._leave(row.key, left, None)
        target.ended = None
        target.active_at = row.at
        target.used_at = self._elapsed()
        target.append_log(self._at(row, target), "opened", left.id if left else target.parent or "", False, "resume")

    def _expect_branch(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        assert left is not None
        self._expect_branch_of(left, row, left, operation)

    def _expect_branch_of(self, parent: ModelSession, row: BoundaryRow, left: Left, operation: object | None) -> None:
        """A branch belongs to the key that asked for it, and is remembered if that key's turns are."""
        require(parent.owner == row.owner, "branched from somebody else's session")
        self._set_aside(row.key, left, None, operation)
        self._leave(row.key, left, None)
        opened = self._open(row, list(parent.shown), ("opened", parent.id, False, "branch"), parent)
        opened.key = row.key
        opened.kind = parent.kind if parent.kind is SessionKind.CHAT else self.kinds[row.key]
        opened.behind = list(parent.behind)
        self._set_aside(row.key, None, opened, operation)

    def _branched_from(self, session: ModelSession) -> Left:
        """Parent of a branch or of its continuation."""
        first = self._first_of(session)
        return self.sessions.get(first.parent or "") if not first.delegated_by else None

    def _first_of(self, session: ModelSession) -> ModelSession:
        """The session that was compressed first, if this one continues it."""
        parent = self.sessions.get(session.parent or "")
        return self._first_of(parent) if parent is not None and parent.continued_by == session.id else session

    def _expect_compress(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        assert left is not None
        boundary = _boundary(operation, Compress)
        require(boundary.generation == left.generation, f"a summary of generation {boundary.generation} was applied")
        require(not self._running(left.id), "compressed in mid-turn")
        following = self.sessions.get(left.continued_by or "")
        require(following is None or following.forgotten, f"{left.id} was compressed twice")
        left.close(self._here(row.key, left))
        left.end("compressed")
        kept = [(n, text) for n, text in left.shown if n > boundary.covers_to]
        opened = self._open(row, kept, ("opened", left.id, False, "compression"), left)
        opened.behind = left.behind + [(n, text) for n, text in left.shown if n <= boundary.covers_to]
        left.continued_by = opened.id
        self.served = {(h, str(row.to_session) if sid == left.id else sid) for h, sid in self.served}
        for other in others:
            self.epoch[other] += 1
            self.on[other] = row.to_session

    def _expect_rewind(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        assert left is not None
        running = any(slot.session == left.id and slot.fate == "live" for slot in self.slots.values())
        turns = _boundary(operation, Rewind).turns - running
        hidden = left.shown[-turns:] if turns else []
        del left.shown[len(left.shown) - len(hidden) :]
        left.generation += 1
        if hidden:
            left.write(self._at(row, left), "rewind", tuple(n for n, _ in hidden))
        for slot in self.slots.values():
            if slot.session == left.id and slot.fate == "live":
                slot.fate = "hidden"

    def _expect_suspend(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        assert left is not None
        if isinstance(operation, Stop) and (operation.holder, left.id) in self.served:
            self._finalize(row.key, left)
        if isinstance(operation, Recover):
            # The work that the session was opened for has not started.
            require(self._is_unwanted(left, row.key), f"{left.id} was given up, and somebody waits for it")
        if isinstance(operation, Recover) or (isinstance(operation, Stop) and operation.close_memory):
            self._set_aside(row.key, left, None, operation)
            left.close(self._here(row.key, left))

    def _expect_forget(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        assert left is not None
        left.end("forgotten")
        self._finalize(row.key, left)
        for other in others:
            self.epoch[other] += 1
            self.on[other] = None

    def _expect_expire(self, row: BoundaryRow, left: Left, others: Others, operation: object | None) -> None:
        assert left is not None
        key = row.key
        asked = operation.boundary if isinstance(operation, Cross) else None
        policy, as_of = (asked.policy, asked.at) if isinstance(asked, Expire) else (self.policies.of(key), row.at)
        due = policy.due(left.active_at)
        waiting = self.waiting[key]
        require(due is not None and (as_of >= due or (waiting and waiting[0][1] >= due)), f"{key} expired too early")
        require(not self._running(left.id), f"{key} expired in mid-turn")
        if not isinstance(asked, Expire):
            # Delegated work ends by request, as of a later time.
            self._is_idle(left, policy, key)
        require(not self._has_delegated(left), f"{key} expired while others worked for it")
        require(not (waiting and due is not None and waiting[0][1] < due), f"{key} expired before a message in time")
        at = max(as_of, waiting[0][1]) if waiting else as_of
        reason = policy.expired(left.active_at, at)
        assert reason is not None
        self._leave(key, left, reason.value if not others else None)
        self.pending[key] = reason.value

    def _has_delegated(self, session: ModelSession) -> bool:
        """Return True while delegated work runs, which holds expiry up.

        A branch of delegated work belongs to its user; only work delegated by the session itself counts.
        """
        children = [s.id for s in self.sessions.values() if s.parent == session.id and s.kind is SessionKind.SUBAGENT]
        return any(self._running(child) for child in children)

    def _is_idle(self, left: ModelSession, policy: ResetPolicy, key: SessionKey) -> None:
        """Check the time that has really passed, unless the clock was set forward, which is accepted."""
        if self.clock is None or policy.idle_s is None or self.clock.set_forward_at >= left.used_at:
            return
        if any(self.clock.set_at >= self.accepted[text] for text, _ in self.waiting[key][:1]):
            # A step back of a few minutes is not noticed: the message seems to be later than it was.
            return
        idle_s = self.clock.elapsed() - left.used_at
        require(idle_s > policy.idle_s - 0.001, f"{key} expired after {idle_s:.3f} s, not {policy.idle_s}")

    def _elapsed(self) -> float:
        return self.clock.elapsed() if self.clock is not None else 0.0

    def _leave(self, key: SessionKey, left: ModelSession | None, ends: str | None) -> None:
        if left is None:
            return
        left.close(self._here(key, left))
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
        require(row.to_session not in self.sessions, f"{row.to_session} was opened twice")
        kind, key = (parent.kind, parent.key) if parent else (self.kinds[row.key], row.key)
        session = ModelSession(row.to_session, row.owner, key, kind, shown, row.at)
        session.used_at = self._elapsed()
        session.append_log(self._at(row, session), *entry)
        if parent is not None:
            session.last, session.parent = parent.last, parent.id
        self.sessions[session.id] = session
        return session

    def _here(self, key: SessionKey, session: ModelSession) -> At:
        return key, self.epoch[key], session.generation

    def _at(self, row: BoundaryRow, session: ModelSession) -> At:
        """Ref after the boundary."""
        return row.key, self.epoch[row.key] + 1, session.generation

    def _set_aside(self, key: SessionKey, left: Left, opened: Left, operation: object | None) -> None:
        """Set waiting messages aside in the left or the opened session, by sender. Others keep waiting."""
        if isinstance(operation, Begin):
            return
        for text, accepted_at in list(self.waiting[key]):
            into = next((s for s in (left, opened) if s is not None and s.owner == self.senders[text]), None)
            if into is not None:
                into.last += 1
                self.fates[text] = f"aside in {into.id}"
                self.waiting[key].remove((text, accepted_at))

    def _answered(self, key: SessionKey, boundary: Boundary, crossing: BoundaryResult, rows: list[BoundaryRow]) -> None:
        require(
            (crossing.refusal is None) == bool(rows), f"{boundary} of {key} answered {crossing.refusal}, wrote {rows}"
        )
        if isinstance(boundary, Branch) and crossing.refusal is not None:
            require(self.on[key] is None, f"branch of {key} refused: {crossing.refusal}")
        if isinstance(boundary, Resume) and crossing.refusal is Refusal.ALREADY_THERE:
            target, here = self.sessions[self._tip(boundary.target)], self.sessions[self.on[key] or ""]
            there = here is target or (target.kind is not SessionKind.CHAT and self._branched_from(here) is target)
            require(there, f"resume of {target.id} refused at {here.id}: {crossing.refusal}")

    # Turns ----------------------------------------------------------------------------------------------------------

    def _begun(self, key: SessionKey, claim: TurnClaim, now: float, *, just_opened: bool) -> None:
        text, accepted_at = self.waiting[key].pop(0)
        accepted_at = _credible(accepted_at, now)
        session = self.sessions[self.on[key] or ""]
        found = claim.message.inbound.text
        require(found == self.words.stored(text), f"{key} took up {found!r} before {text!r}")
        require(session.owner == self.senders[text], f"{text!r} of {self.senders[text]} began in {session.id}")
        require(
            claim.ref.session_id == session.id,
            f"{text!r} began in {claim.ref.session_id}, its key is on {session.id}",
        )
        at = self._here(key, session)
        ref = claim.ref
        require((ref.key, ref.epoch, ref.generation, ref.owner) == (*at, session.owner), f"{text!r} began at {ref}")
        require(not self._running(session.id), f"two turns run in {session.id}")
        due = self.policies.of(key).due(_credible(session.active_at, accepted_at))
        held_up = self._has_delegated(session)
        require(just_opened or held_up or due is None or accepted_at < due, f"{text!r} went to an expired session")
        session.active_at = max(_credible(session.active_at, now), accepted_at)
        session.used_at = max(session.used_at, self.accepted[text])
        self.slots[claim.turn_id] = ModelSlot(key, session.id, text, at, (claim.holder, claim.fence))
        self.fates[text] = "running"
        self.served.add((claim.holder, session.id))

    def _held(self, claim: TurnClaim) -> None:
        slot = self.slots.get(claim.turn_id)
        require(slot is not None, f"turn {claim.turn_id} was written twice, or never began")
        assert slot is not None
        mine = (claim.holder, claim.fence)
        require(slot.claim == mine, f"turn {claim.turn_id} was written by {mine}, it is {slot.claim}'s")

    def _committed(self, turn_id: str, done: CommittedTurn, interrupted: bool, active_at: ActiveAt, now: float) -> None:
        slot = self.slots.pop(turn_id)
        wanted = {"late": "late", "hidden": "hidden", "live": "interrupted" if interrupted else "done"}[slot.fate]
        require(done.status.value == wanted, f"{slot.text!r} was stored as {done.status.value}, it is {wanted}")
        require(done.ref.session_id == slot.session, f"{slot.text!r} was committed into {done.ref.session_id}")
        withheld = done.reply is not None and done.reply.state.value == "withheld"
        require(withheld == (slot.fate != "live") or done.reply is None, f"the reply to {slot.text!r} went out wrongly")
        if slot.fate == "live":
            session = self.sessions[slot.session]
            session.active_at = max(_credible(session.active_at, now), now)
            session.used_at = self._elapsed()
            require(active_at(session.id) == session.active_at, f"{session.id} was last active {active_at(session.id)}")
        self._store_turn(slot)

    def _store_turn(self, slot: ModelSlot) -> None:
        session = self.sessions[slot.session]
        session.last += 1
        if self.all_hooks:
            self.hooks[slot.key].append(("on_turn_end", f"{session.id}:{session.last}"))
        self.fates[slot.text] = f"{slot.fate} in {session.id}"
        if slot.fate != "hidden":
            session.shown.append((session.last, slot.text))
            session.write(slot.at, "turn", session.last, slot.text)
        if slot.fate != "live":
            self._close_if_left(session, slot.at)

    def settled(self, turn_id: str, now: float) -> None:
        """Apply that a cancelled turn of a dead process was stored with its partial content."""
        slot = self.slots.pop(turn_id)
        if slot.fate == "live":
            session = self.sessions[slot.session]
            require(self._is_unwanted(session, slot.key), f"the running turn {slot.text!r} was thrown away")
            session.active_at = max(_credible(session.active_at, now), now)
            session.used_at = self._elapsed()
        self._store_turn(slot)

    def _is_unwanted(self, session: ModelSession, key: SessionKey) -> bool:
        """Return True for delegated work whose parent has no running turn."""
        work = self._first_of(session)
        waits = any(slot.session == work.delegated_by for slot in self.slots.values())
        return bool(work.delegated_by) and work.key == key and not waits

    def _written(self, ref: SessionRef | None, owner: str, entry: Entry, *, closes: bool = True) -> None:
        if ref is None:
            self._notes_session(owner).append_log((None, 0, 0), *entry)
            return
        session, at = self.sessions[ref.session_id], (ref.key, ref.epoch, ref.generation)
        session.write(at, *entry)
        if closes:
            self._close_if_left(session, at)

    def _close_if_left(self, session: ModelSession, at: At) -> None:
        if session.id not in self.on.values() and all(slot.session != session.id for slot in self.slots.values()):
            session.close(at)

    # Forgetting -----------------------------------------------------------------------------------------------------

    def _notes_session(self, owner: str) -> ModelSession:
        """Notes session of an owner: the log of entries without a conversation."""
        fresh = ModelSession(f"notes:{owner}", owner, None, SessionKind.NOTES, [], 0.0)
        return self.desks.setdefault(owner, fresh)

    def _forgotten(self, what: Forgettable, owner: str) -> None:
        match what:
            case ForgetFact(note_id):
                require(note_id not in self.forgotten_facts, f"the note {note_id} was forgotten twice")
                self.forgotten_facts.add(note_id)
                # A removed note has no text any more, but its versions have.
                text = (
                    self.words.notes[note_id][1] if note_id in self.words.notes else self.words.note_texts[note_id][0]
                )
                self.words.forget_fact(note_id, owner, [t for t, whose in self.senders.items() if whose == owner])
                self._notes_session(owner).append_log((None, 0, 0), "forget", "fact", text)
                for slot in self.slots.values():
                    slot.outdated |= self.sessions[slot.session].owner == owner
            case ForgetSession(session_id):
                self._forgotten_session(self.sessions[session_id])
            case ForgetOwner():
                for session in self.sessions.values():
                    if session.owner == owner and not session.forgotten:
                        self._forgotten_session(session)
                self._forgotten_owner(owner)

    def _forgotten_owner(self, owner: str) -> None:
        for waiting in self.waiting.values():
            for text, accepted_at in [(t, at) for t, at in waiting if self.senders[t] == owner]:
                self.fates[text] = "forgotten in the inbox"
                waiting.remove((text, accepted_at))
        self.words.forget_notes(lambda whose, session_id: whose == owner)
        self._notes_session(owner).append_log((None, 0, 0), "forget", "owner")

    def _forgotten_session(self, session: ModelSession) -> None:
        session.forgotten = True
        if session.ended is None:
            session.end("forgotten")
        session.append_log((session.key, 0, session.generation), "forget", "session")
        session.dirty = False
        self._forgotten_rows(session)
        if session.key is not None and session.key.platform == SUBAGENT_PLATFORM:
            # Delegated work that has not started is dropped with its session.
            self.fates |= {text: "forgotten in the inbox" for text, _ in self.waiting[session.key]}
            self.waiting[session.key].clear()
        for other in self.sessions.values():
            if self._descends(other, session):
                # A summary covers all earlier turns, so it is dropped too.
                other.behind.clear()
        for child in sorted(self.sessions.values(), key=lambda s: s.id):
            if child.delegated_by == session.id and not child.forgotten:
                self._forgotten_session(child)

    def _descends(self, session: ModelSession, ancestor: ModelSession) -> bool:
        parent = self.sessions.get(session.parent or "")
        return session is ancestor or (parent is not None and self._descends(parent, ancestor))

    def _forgotten_rows(self, session: ModelSession) -> None:
        self.words.forget_notes(lambda whose, session_id: session_id == session.id)
        for turn_id, slot in list(self.slots.items()):
            if slot.session == session.id:
                self.fates[slot.text] = f"forgotten in {session.id}"
                del self.slots[turn_id]
        for text, fate in self.fates.items():
            if fate.endswith(f" in {session.id}"):
                self.fates[text] = f"forgotten in {session.id}"
                self.words.written(text, FORGOTTEN)

    def _running(self, session_id: str) -> bool:
        return any(slot.session == session_id and slot.fate == "live" for slot in self.slots.values())

    def _tip(self, session_id: str) -> str:
        following = self.sessions[session_id].continued_by
        if following is None or self.sessions[following].forgotten:
            return session_id
        return self._tip(following)
