"""Invariants of a settled simulation: the store against the reference model, and each back end against both."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import cast

from everthread.adapters.sqlite.connection import Connection
from everthread.domain.model import FORGOTTEN, SessionKey, SessionKind, SessionRef
from everthread.store.unit_of_work import UnitOfWork
from tests.simulator.backends import Backend, Effect
from tests.simulator.reference_model import ReferenceModel
from tests.simulator.reference_types import Entry, ModelSession, require


@dataclass(frozen=True, slots=True)
class Evidence:
    """Final state of a simulation."""

    reference: ReferenceModel
    database: Connection
    tables: UnitOfWork
    backends: dict[str, Backend]
    hooks_called: dict[SessionKey, list[tuple[str, str]]]
    time_was_bent: bool
    """A process was stopped and continued, or the clock was moved."""
    interruptions: int | None = None
    """Number of faults that may repeat a hook; None if it is not known."""


def check_everything(fixture: Evidence) -> None:
    every_key_is_where_it_should_be(fixture)
    for session in fixture.reference.logs():
        the_store_agrees(fixture, session)
        _is_closed_if_left(fixture, session)
    _every_message_has_one_home(fixture)
    for backend in fixture.backends.values():
        _the_back_end_has_it_all(fixture, backend)
    _no_hook_is_repeated(fixture)
    for key, wanted in fixture.reference.hooks.items():
        hooks_came_in_order(key, fixture.hooks_called[key], wanted, strictly=not fixture.time_was_bent)


def every_key_is_where_it_should_be(fixture: Evidence) -> None:
    for key, session_id in fixture.reference.on.items():
        binding = fixture.tables.sessions.binding(key)
        found = (binding.session_id, binding.epoch) if binding else (None, 0)
        wanted = (session_id, fixture.reference.epoch[key])
        require(found == wanted, f"{key} is at {found}, not {wanted}")
        ref, session = fixture.tables.sessions.ref(key), fixture.tables.sessions.get(session_id or "")
        expected = session and SessionRef(
            session.id, session.generation, key, fixture.reference.epoch[key], session.owner
        )
        require(ref == expected, f"{key} is read as {ref}, not {expected}")


def the_store_agrees(fixture: Evidence, session: ModelSession) -> None:
    stored = fixture.tables.sessions.get(session.id)
    assert stored is not None
    require(stored.end_reason == session.ended, f"{session.id} ended {stored.end_reason}, not {session.ended}")
    found, wanted = (stored.owner, stored.kind), (session.owner, session.kind)
    require(found == wanted, f"{session.id} is {found}, not {wanted}")
    require(session.key in (None, stored.key), f"{session.id} was opened at {stored.key}, not {session.key}")
    require(stored.generation == session.generation, f"{session.id} has generation {stored.generation}")
    shown = [(turn.number, turn.user_text) for turn in fixture.tables.turns.view(stored).turns]
    wanted = [(number, _as_stored(fixture, text)) for number, text in session.shown]
    require(shown == wanted, f"{session.id} shows {shown}, not {wanted}")
    rows = fixture.database.execute("SELECT seq, kind FROM log WHERE session_id = ? ORDER BY seq", (session.id,))
    log = list(rows)
    require(
        log == list(enumerate((e[0] for e in session.log), 1)), f"the log of {session.id} is {log}, not {session.log}"
    )


def _is_closed_if_left(fixture: Evidence, session: ModelSession) -> None:
    stored = fixture.tables.sessions.get(session.id)
    left = session.kind is not SessionKind.NOTES and not fixture.tables.sessions.keys_on(session.id)
    require(stored is not None and not (stored.dirty and left), f"{session.id} was left unclosed")


def _as_stored(fixture: Evidence, text: str) -> str:
    return (
        FORGOTTEN
        if fixture.reference.fates.get(text, "").startswith("forgotten")
        else fixture.reference.words.stored(text)
    )


def _every_message_has_one_home(fixture: Evidence) -> None:
    """Check that an accepted message is in exactly one session, and was answered or visibly set aside."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    rows = fixture.database.execute(
        "SELECT m.content, t.session_id, t.status FROM messages m JOIN turns t ON t.id = m.id / 4096 "
        "WHERE m.role = 'user'"
    )
    for text, session_id, status in rows:
        homes[text].append(f"{status} in {session_id}")
    for text, fate in fixture.reference.fates.items():
        if fate.startswith("forgotten"):
            require(not homes[text], f"{text!r} was forgotten and is still in {homes[text]}")
            continue
        found = [
            home.replace("done", "live").replace("interrupted", "live").replace("set_aside", "aside")
            for home in homes[_as_stored(fixture, text)]
        ]
        require(found == [fate], f"{text!r} is {found}, not {fate}")


def _the_back_end_has_it_all(fixture: Evidence, backend: Backend) -> None:
    by_session: defaultdict[str, list[Effect]] = defaultdict(list)
    for effect in backend.effects:
        by_session[effect.ref.session_id].append(effect)
    for session in fixture.reference.logs():
        effects = by_session.pop(session.id, [])
        if not session.kind.remembered:
            require(not effects, f"{backend.name} was told of {session.id}, which is {session.kind.value}: {effects}")
            continue
        for effect in effects:
            the_effect_is_true(fixture, backend.name, session, effect)
        # A delivery in progress in a stopped process may arrive after another process delivered the forget event.
        if not (session.forgotten and fixture.time_was_bent):
            in_order(fixture, backend, session, effects)
        _complete(fixture, backend, session, effects)
    require(not by_session, f"{backend.name} was told of sessions that are none: {list(by_session)}")


def the_effect_is_true(fixture: Evidence, provider: str, session: ModelSession, effect: Effect) -> None:
    """Check that the effect matches its log entry, owner and session."""
    where = f"{provider} was told {effect.kind} {effect.facts} for {session.id}"
    require(1 <= effect.delivery.seq <= len(session.log), f"{where}: there is no entry {effect.delivery.seq}")
    entry = session.log[effect.delivery.seq - 1]
    require(effect.kind == entry[0], f"{where}: entry {effect.delivery.seq} is {entry}")
    require(effect.ref.owner == session.owner, f"{where}: it belongs to {session.owner}")
    at, (key, *numbers) = effect.ref, session.refs[effect.delivery.seq - 1]
    same = key in (None, at.key) and [at.epoch, at.generation] == numbers
    require(same, f"{where} at {at}: it should be at {(key, *numbers)}")
    facts = effect.facts
    told: Entry
    match effect.kind:
        case "turn":
            told = ("turn", facts["number"], facts["text"])
        case "opened":
            told = ("opened", facts["parent"], facts["reset"], facts["reason"])
            require(facts["id"] == session.id, where)
        case "rewind":
            told = ("rewind", facts["turns"])
        case "close":
            told = ("close", facts["shown"])
        case "forget":
            # After all providers have forgotten a fact, its text is blanked in the log.
            fact = (facts["text"] or entry[-1],) if facts["scope"] == "fact" else ()
            told = ("forget", facts["scope"], *fact)
        case _:
            told = (effect.kind, facts["text"])
    require(_same(fixture, told, entry), f"{where}: it should be {entry}")


def _same(fixture: Evidence, told: Entry, wanted: Entry) -> bool:
    """Compare entries. Texts that were forgotten since may be blanked."""
    return len(told) == len(wanted) and all(_same_part(fixture, a, b) for a, b in zip(told, wanted, strict=True))


def _same_part(fixture: Evidence, told: object, wanted: object) -> bool:
    if isinstance(told, tuple) and isinstance(wanted, tuple):
        return _same(fixture, cast(Entry, told), cast(Entry, wanted))
    return told == wanted or (isinstance(wanted, str) and told in fixture.reference.words.told(wanted))


def in_order(fixture: Evidence, backend: Backend, session: ModelSession, effects: list[Effect]) -> None:
    """Check log order within each replay. Only entries that were once rejected may come later, followed by a close."""
    newest: defaultdict[int, int] = defaultdict(int)
    # The journal does not wait for delivery of a forgotten note. If the process is considered dead while delivering it,
    # the note may arrive at any later time.
    overtaken = fixture.reference.forgotten_notes(session) if fixture.time_was_bent else ()
    for place, effect in enumerate(effects):
        seq, replay = effect.delivery.seq, effect.delivery.replay
        if effect.delivery.key in backend.rejected and seq < newest[replay]:
            passed = any(e.kind == "close" and e.delivery.seq > seq for e in effects[:place])
            closed = any(e.kind == "close" and e.delivery.seq > seq for e in effects[place:])
            require(
                not passed or closed or effect.kind == "close" or session.forgotten,
                f"{backend.name}: no close after the late entry {effect.delivery.key}",
            )
            continue
        if seq in overtaken and seq < newest[replay]:
            continue
        require(seq > newest[replay], f"{backend.name}: {effect.delivery.key} came after entry {newest[replay]}")
        newest[replay] = seq


def _complete(fixture: Evidence, backend: Backend, session: ModelSession, effects: list[Effect]) -> None:
    """Check that all entries of the lane's current replay have arrived; for a forgotten session, its forget event."""
    cursor = fixture.tables.cursors.get(backend.name, session.id)
    require(cursor is not None, f"{backend.name} never heard of {session.id}")
    assert cursor is not None
    arrived = {effect.delivery.seq for effect in effects if effect.delivery.replay == cursor.replay}
    first = _first_told(session)
    empty = fixture.reference.forgotten_notes(session)
    missing = set(range(first, len(session.log) + 1)) - arrived - empty
    require(not missing, f"{backend.name} lacks {sorted(missing)} of {session.id} in replay {cursor.replay}")
    if session.forgotten and not fixture.time_was_bent:
        told = next(i for i, e in enumerate(effects) if e.kind == "forget")
        later = [e.delivery.key for e in effects[told:] if e.delivery.seq < first]
        require(not later, f"{backend.name} was told {later} of {session.id} after it had been forgotten")
    closes = [effect for effect in effects if effect.kind == "close"]
    if fixture.time_was_bent:
        # Deliveries in progress in a process that was considered dead may arrive late, under an older replay.
        closes.sort(key=lambda effect: effect.delivery.replay)
    if closes and not session.forgotten:
        lacking = set(closes[-1].facts["missing"]) - empty
        require(not lacking, f"the last close of {session.id} lacks {lacking}")


def _first_told(session: ModelSession) -> int:
    """First entry that providers must receive: the last forget event of the session or owner, or the first entry."""
    return max((i for i, entry in enumerate(session.log, 1) if entry[1] in ("session", "owner")), default=1)


Calls = list[tuple[str, str]]


def _no_hook_is_repeated(fixture: Evidence) -> None:
    """Check that only a fault repeats a hook; one that raises or hangs is not called again."""
    if fixture.interruptions is not None:
        called, wanted = Counter[str](), Counter[str]()
        for key, calls in fixture.hooks_called.items():
            called += Counter(f"{key} {hook} {about}" for hook, about in calls)
            wanted += Counter(f"{key} {hook} {about}" for hook, about in fixture.reference.hooks[key])
        repeated = called - wanted
        require(repeated.total() <= fixture.interruptions, f"hooks were repeated: {repeated}")


def hooks_came_in_order(key: SessionKey, hooks_called: Calls, wanted: Calls, *, strictly: bool) -> None:
    """Check that each hook ran at least once, in order. A crash may repeat the interrupted hook, and a stopped process
    may repeat it later.
    """
    once = [call for place, call in enumerate(hooks_called) if place == 0 or call != hooks_called[place - 1]]
    calls = [call for place, call in enumerate(wanted) if place == 0 or call != wanted[place - 1]]
    if strictly:
        require(once == calls, f"the hooks of {key} were {once}, not {calls}")
    rest = iter(once)
    require(all(call in rest for call in calls), f"the hooks of {key} were {once}, which lacks some of {calls}")
    require(set(once) <= set(calls), f"the hooks of {key} were {once}, of which some were not asked for")
