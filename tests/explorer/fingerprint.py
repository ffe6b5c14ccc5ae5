"""Canonical form of a state, so that the search visits each state once.

Two states are equal if nothing that may follow can tell them apart. So row ids, positions and audit rows are left out,
times count from now, and dead processes have no name. The reference model is left out too: after each step it agrees
with the store, or the step is a violation.
"""

from __future__ import annotations

import hashlib
from typing import Any

from tests.explorer.world import PROCESSES, State, World

# `:now` is the time, `:p` and `:q` are the names of the living processes.
_HOLDER = "CASE holder WHEN :p THEN 'P' WHEN :q THEN 'Q' WHEN '' THEN '' ELSE 'dead' END"
_LATER = "MAX({0} - :now, 0.0)"
# The ids of such turns contain the id of an inbox row.
_TURN = "CASE WHEN turn_id LIKE 'aside-%' OR turn_id LIKE 'order-%' THEN SUBSTR(turn_id, 1, 5) ELSE turn_id END"
_TABLES = (
    "SELECT id, key, kind, cause, parent_id, title, generation, end_reason, active_at - :now, floor, base_turn, "
    "base_seq, summary_id, last_turn, log_seq, dirty_seq, closed_seq, forgotten_seq FROM sessions ORDER BY id",
    "SELECT key, owner, session_id, epoch, pending, kind, generation FROM bindings ORDER BY key",
    f"SELECT {_HOLDER} AS who, session_id, key FROM serving WHERE holder IN (:p, :q) ORDER BY who, session_id",
    f"SELECT session_id, number, {_TURN}, status, (SELECT GROUP_CONCAT(role || content, '|') FROM messages m "
    "WHERE m.id / 4096 = t.id) FROM turns t ORDER BY session_id, number",
    "SELECT session_id, number, seq FROM hidden ORDER BY session_id, number",
    "SELECT session_id, number, content FROM prefixes ORDER BY session_id, number",
    f"SELECT turn_id, session_id, key, epoch, generation, {_HOLDER}, fence, fate, forgotten FROM slots "
    "ORDER BY turn_id",
    f"SELECT key, content, accepted_at - :now, state, session_id, {_TURN}, command FROM inbox "
    "WHERE state IN ('waiting', 'running') ORDER BY key, id",
    f"SELECT {_TURN} AS turn, session_id, content, state, parts FROM replies ORDER BY turn, content",
    "SELECT session_id, seq, kind, key, epoch, generation, number, detail FROM log ORDER BY session_id, seq",
    f"SELECT name, failures, {_LATER.format('open_until')} FROM providers ORDER BY name",
    "SELECT p.name, l.session_id, COUNT(*) FROM providers p JOIN log l ON l.pos > p.scanned_pos "
    "GROUP BY p.name, l.session_id ORDER BY 1, 2",
    f"SELECT provider, session_id, seq, replay, replay_last, attempts, {_LATER.format('due_at')}, told_from, copy_to "
    "FROM cursors ORDER BY provider, session_id",
    f"SELECT provider, session_id, seq, replay, attempts, {_LATER.format('due_at')} "
    "FROM redeliveries ORDER BY provider, session_id, seq, replay",
    "SELECT note_id, version, action, content, session_id FROM note_versions ORDER BY note_id, version",
    "SELECT kind, identity FROM tombstones ORDER BY kind, identity",
    f"SELECT name, {_HOLDER}, fence, {_LATER.format('expires_at')} FROM leases WHERE name NOT LIKE 'process:%' "
    "ORDER BY name",
    f"SELECT {_HOLDER} AS who, {_LATER.format('expires_at')} FROM leases "
    "WHERE name LIKE 'process:%' AND holder IN (:p, :q) ORDER BY who",
    "SELECT name, due_at - :now FROM timers ORDER BY name",
    "SELECT key, hook, session_id FROM hook_calls ORDER BY key, id",
    "SELECT session_id, content FROM summaries ORDER BY session_id",
)


def fingerprint(world: World) -> tuple[bytes, bytes]:
    """Return two hashes of a state: with, and without, the number of uses of each bounded step."""
    names = {label.lower(): world.state.processes[label].name for label in PROCESSES}
    values = {"now": world.state.now, **names}
    rows = [list(world.database.execute(sql, values)) for sql in _TABLES]  # pyright: ignore[reportArgumentType] - named
    content = hashlib.blake2b(repr((rows, _memory(world.state))).encode(), digest_size=16)
    content_alone = content.digest()
    content.update(repr(_bounds(world.state)).encode())
    return content.digest(), content_alone


def _memory(state: State) -> tuple[Any, ...]:
    """The part of a state that is not in the store."""
    processes = [
        (
            sorted((claim.turn_id, claim.fence) for claim in process.claims.values()),
            sorted((lease.name, lease.fence) for lease in process.leases.values()),
            process.sends,
        )
        for process in state.processes.values()
    ]
    backends = [
        (sorted((e.ref.session_id, place, e.delivery.key) for place, e in _by_session(b.effects)), sorted(b.rejected))
        for b in state.backends.values()
    ]
    summary = (state.summary, state.forgotten_before_summary) if state.summary else None
    return processes, backends, sorted(state.sent), summary, sorted(state.model.fates), sorted(state.ids.items())


def _bounds(state: State) -> tuple[Any, ...]:
    """The number of uses of each bounded step, and whether P is still its first process; see `World.actors`."""
    return sorted(item for item in state.used.items() if item[1]), state.processes["P"].name == "p1"


def _by_session(effects: list[Any]) -> list[tuple[int, Any]]:
    """Number the effects of each session. The order between sessions does not matter."""
    counts: dict[str, int] = {}
    numbered: list[tuple[int, Any]] = []
    for effect in effects:
        counts[effect.ref.session_id] = place = counts.get(effect.ref.session_id, 0) + 1
        numbered.append((place, effect))
    return numbered
