"""The invariants: those that hold after every step, and those that hold when all work is completed.

Most of them compare the store and the back ends with the reference model of the simulator. `docs/contributing/
explore-all-schedules.md` lists which invariant is checked where, and which are not.
"""

from __future__ import annotations

from dataclasses import replace

from everthread.domain.model import SessionKey
from everthread.memory.recall import Recall
from everthread.ports.memory import RecallItem
from tests.explorer.platform import BareProvider
from tests.explorer.world import KEYS, World
from tests.simulator.backends import Backend
from tests.simulator.invariants import (
    Evidence,
    check_everything,
    every_key_is_where_it_should_be,
    hooks_came_in_order,
    in_order,
    the_effect_is_true,
    the_store_agrees,
)
from tests.simulator.reference_types import ModelSession, require
from tests.simulator.store_consistency import inconsistencies

FINAL = {"sent", "ambiguous", "withheld", "failed"}


def check_step(world: World) -> None:
    """Check what holds after every step, also after a crash."""
    require(not world.state.problems, "; ".join(world.state.problems))
    evidence = _evidence(world)
    every_key_is_where_it_should_be(evidence)
    for session in world.state.model.logs():
        the_store_agrees(evidence, session)
    _turns_run_once(world)
    _messages_wait_in_order(world)
    _hooks_are_queued(world)
    for backend in evidence.backends.values():
        _deliveries_are_a_prefix(world, evidence, backend)
    _replies_are_sent_once(world)
    _prefixes_stay(world)
    _recall_ends_at_a_boundary(world)


def check_settled(world: World) -> None:
    """Check what holds when the faults have stopped and all work is done."""
    model = world.state.model
    require(not world.state.problems, "; ".join(world.state.problems))
    require(not model.slots, f"turns run for ever: {list(model.slots)}")
    waiting = {str(key): texts for key, texts in model.waiting.items() if texts}
    require(not waiting, f"messages wait for ever: {waiting}")
    evidence = _evidence(world)
    check_everything(replace(evidence, backends=_remembering(world)))
    unsent = [row for row in world.rows("SELECT turn_id, state FROM replies") if row[1] not in FINAL]
    require(not unsent, f"replies were neither sent nor given up: {unsent}")
    _replies_are_sent_once(world)
    if BareProvider.name in world.providers:
        _the_bare_provider_is_done(world)
    found = inconsistencies(world.database)
    require(not found, "; ".join(found))


def _evidence(world: World) -> Evidence:
    state = world.state
    return Evidence(
        state.model, world.database, world.tables, _remembering(world), state.hooks_called, time_was_bent=False
    )


def _remembering(world: World) -> dict[str, Backend]:
    return {name: backend for name, backend in world.state.backends.items() if name != BareProvider.name}


def _turns_run_once(world: World) -> None:
    """The running turns are those of the model, each with its holder and fence."""
    fence = "CASE holder WHEN '' THEN 0 ELSE fence END"
    rows = world.rows(f"SELECT turn_id, session_id, holder, {fence}, fate FROM slots ORDER BY turn_id")
    found = [(turn_id, session, (holder, fence), fate) for turn_id, session, holder, fence, fate in rows]
    slots = sorted(world.state.model.slots.items())
    wanted = [(turn_id, slot.session, slot.claim, slot.fate) for turn_id, slot in slots]
    require(found == wanted, f"the running turns are {found}, not {wanted}")
    live = [session for _, session, _, fate in found if fate == "live"]
    require(len(live) == len(set(live)), f"two turns run in one session: {found}")


def _messages_wait_in_order(world: World) -> None:
    rows = world.rows("SELECT key, content FROM inbox WHERE state = 'waiting' AND NOT command ORDER BY id")
    for key in map(KEYS.__getitem__, world.keys):
        found = [text for at, text in rows if at == str(key)]
        wanted = [text for text, _ in world.state.model.waiting[key]]
        require(found == wanted, f"{found} wait at {key}, not {wanted}")


def _hooks_are_queued(world: World) -> None:
    """The hooks that were called and those in the queue are the ones that the boundaries asked for, in order."""
    rows = world.rows("SELECT key, hook, session_id FROM hook_calls ORDER BY id")
    for key in map(KEYS.__getitem__, world.keys):
        queued = [(hook, session_id) for at, hook, session_id in rows if at == str(key)]
        called = world.state.hooks_called.get(key, [])
        hooks_came_in_order(key, [*called, *queued], world.state.model.hooks[key], strictly=True)


def _deliveries_are_a_prefix(world: World, evidence: Evidence, backend: Backend) -> None:
    """A back end has correct entries, in order, and all up to the cursor except parked and forgotten ones."""
    rows = world.rows("SELECT session_id, seq, due_at FROM redeliveries WHERE provider = ?", backend.name)
    sessions = {session.id: session for session in world.state.model.logs()}
    # Forgetting a session also deletes the incidents about its rejected entries.
    if any(due_at is None and not sessions[session_id].forgotten for session_id, _, due_at in rows):
        reported = world.rows("SELECT 1 FROM incidents WHERE source = ?", f"memory:{backend.name}")
        require(reported, f"nobody was told that {backend.name} rejected an entry")
    for effect in backend.effects[world.state.effects_checked[backend.name] :]:
        the_effect_is_true(evidence, backend.name, sessions[effect.ref.session_id], effect)
    world.state.effects_checked[backend.name] = len(backend.effects)
    for session in sessions.values():
        effects = [effect for effect in backend.effects if effect.ref.session_id == session.id]
        if not rows:
            in_order(evidence, backend, session, effects)
        if session.kind.remembered and not session.forgotten:
            arrived = {effect.delivery.seq for effect in effects}
            postponed = {seq for session_id, seq, _ in rows if session_id == session.id}
            _nothing_is_skipped(world, backend.name, session, arrived | postponed)


def _nothing_is_skipped(world: World, provider: str, session: ModelSession, known: set[int]) -> None:
    cursor = world.tables.cursors.get(provider, session.id)
    if cursor is not None:
        missing = set(range(1, cursor.seq + 1)) - known - world.state.model.forgotten_notes(session)
        require(not missing, f"{provider} is at entry {cursor.seq} of {session.id} and never got {sorted(missing)}")


def _replies_are_sent_once(world: World) -> None:
    sent = world.state.sent
    require(len(sent) == len(set(sent)), f"a reply was sent twice: {sent}")
    states = dict(world.rows("SELECT turn_id, state FROM replies"))
    for message_id in sent:
        turn_id = message_id.rsplit(".", 1)[0]
        state = states.get(turn_id)
        require(state in ("sending", "sent", "ambiguous"), f"the reply of {turn_id} was sent, it is {state}")


def _the_bare_provider_is_done(world: World) -> None:
    """A provider that lacks most hooks gets every turn, and its cursor skips the other entries."""
    told = world.state.backends[BareProvider.name].keys
    for session in world.state.model.sessions.values():
        turns = {f"{session.id}:{seq}" for seq, entry in enumerate(session.log, 1) if entry[0] == "turn"}
        require(session.forgotten or turns <= told, f"bare lacks {sorted(turns - told)}")


def _prefixes_stay(world: World) -> None:
    """A session keeps its prompt prefix byte for byte; a branch begins with that of its parent."""
    known, sessions = world.state.prefixes, world.state.model.sessions
    for session_id, content in world.rows(
        "SELECT session_id, content FROM prefixes WHERE number = 1 ORDER BY session_id"
    ):
        session = sessions[session_id]
        if _has_forgotten_ancestor(world, session):
            continue
        if session_id not in known:
            require(session.log[0][3] == "branch", f"{session_id} has a prefix that nobody built")
            known[session_id] = known[session.parent or ""]
        require(content == known[session_id], f"the prefix of {session_id} became {content}")


def _has_forgotten_ancestor(world: World, session: ModelSession) -> bool:
    parent = world.state.model.sessions.get(session.parent or "")
    return session.forgotten or (parent is not None and _has_forgotten_ancestor(world, parent))


def _recall_ends_at_a_boundary(world: World) -> None:
    """Items that were recalled before the step are usable after it only if the key still has the same ref."""
    for key, before in world.state.refs.items():
        now = world.tables.sessions.ref(key)
        if before is not None and now is not None:
            recall = Recall(before, (RecallItem("something"),))
            same = (before.session_id, before.generation, before.epoch) == _position(world, key)
            require(
                recall.usable_at(now) == same, f"recall made at {before} may {'not ' if same else ''}be used at {now}"
            )


def _position(world: World, key: SessionKey) -> tuple[str, int, int]:
    model = world.state.model
    session_id = model.on[key] or ""
    return session_id, model.sessions[session_id].generation, model.epoch[key]
