"""The only writer of sessions, bindings, turns and logs. Every boundary goes through `Lifecycle.cross`.

In the order of data flow:

| module | contents |
|---|---|
| `lifecycle` | `Lifecycle`, assembled from the operations below |
| `base` | dependencies, write context, the `transaction` decorator |
| `validation` | checks of texts, keys and owners |
| `turns` | accept a message, claim it, commit the turn |
| `inbox` | answer commands, retry turns, begin scheduled tasks |
| `recovery` | resume or abandon the turns of dead processes |
| `boundary_state` | read the state that a boundary is planned from |
| `boundaries` | carry out a boundary, write the session's log |
| `expiry` | expire sessions when their timers are due |
| `sessions` | title, model and prefix of one session |
| `session_lookup` | find a session by id, prefix or title |
| `notes` | write, rewrite and undo curated notes |
| `reviews` | schedule and claim reviews |
| `spend` | reserve and settle the cost of model calls |
| `schedules` | scheduled tasks and their occurrences |
| `pairing` | guests and pairing codes |
| `forget` | erase a session, a person or a fact |
| `archive` | forget, prune and import |
| `lineage` | the ancestors that a session shows |
| `export` | write sessions to an export file |
| `import_match`, `session_import` | compare an export file with the store, import what is new |
"""

from __future__ import annotations

from everthread.lifecycle.boundaries import BoundaryResult
from everthread.lifecycle.forget import ForgetFact, ForgetOwner, ForgetSession
from everthread.lifecycle.lifecycle import Lifecycle
from everthread.lifecycle.notes import NoteChange, NoteRewrite
from everthread.lifecycle.turns import CommittedTurn, TurnClaim
from everthread.lifecycle.validation import TEXT_CHARS_MAX, TURN_CHARS_MAX

__all__ = [
    "TEXT_CHARS_MAX",
    "TURN_CHARS_MAX",
    "CommittedTurn",
    "BoundaryResult",
    "ForgetFact",
    "ForgetOwner",
    "ForgetSession",
    "Lifecycle",
    "NoteChange",
    "NoteRewrite",
    "TurnClaim",
]
