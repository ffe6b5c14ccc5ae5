"""Invariants of compressions: source, validity and content of a summary."""

from __future__ import annotations

from collections import Counter

from everthread.domain.boundary import Compress, Refusal
from everthread.domain.model import Cause
from everthread.domain.titles import split
from everthread.lifecycle import BoundaryResult
from everthread.ports.context import Middle
from everthread.store.unit_of_work import UnitOfWork
from tests.simulator import operations as asked
from tests.simulator.agent_model import summed_up
from tests.simulator.reference_model import ReferenceModel
from tests.simulator.reference_types import require

Name = tuple[str, int, str]
"""Identity of a summary: session, generation it was made from, text. Every text is unique."""


class Summaries:
    """Summaries made by agents, and forget operations since."""

    def __init__(self, reference: ReferenceModel, tables: UnitOfWork) -> None:
        self._world = reference
        self._tables = tables
        self._forgotten: Counter[str] = Counter()
        self._made: dict[Name, int] = {}
        self._stale: set[Name] = set()

    def begun(self, middle: Middle) -> int:
        """Number of forget operations of the owner so far."""
        return self._forgotten[middle.ref.owner]

    def made(self, middle: Middle, summary: str, begun: int) -> None:
        self._made[middle.ref.session_id, middle.ref.generation, summary] = begun

    def observe_result(self, operation: object | None, result: object) -> None:
        match operation, result:
            case asked.ForgetOperation(_, owner), int() if not isinstance(result, bool):
                self._forgotten[owner] += 1
            case asked.Cross(_, Compress() as boundary), BoundaryResult(refusal=None) as crossing:
                self._applied(boundary)
                check_compression(self._world, self._tables, boundary, crossing)
            case asked.Cross(_, Compress() as boundary), BoundaryResult(refusal=Refusal.STALE):
                self._refused(boundary)
            case _:
                pass

    def _applied(self, boundary: Compress) -> None:
        name = boundary.session_id, boundary.generation, boundary.summary
        owner = self._world.sessions[boundary.session_id].owner
        # An extract is made when it is applied, so it has no earlier start.
        begun = self._made.get(name, self._forgotten[owner])
        require(
            begun == self._forgotten[owner],
            f"something was forgotten since {boundary.session_id} was read, and its summary was applied",
        )

    def _refused(self, boundary: Compress) -> None:
        """Check that a stale summary is not offered again."""
        name = boundary.session_id, boundary.generation, boundary.summary
        require(name not in self._stale, f"a summary of {boundary.session_id} was stale, and is kept: {boundary}")
        if name in self._made:
            self._stale.add(name)


def check_compression(
    reference: ReferenceModel, tables: UnitOfWork, boundary: Compress, crossing: BoundaryResult
) -> None:
    """Check after a compression that every turn is either shown or in the summary."""
    assert crossing.ref is not None
    assert crossing.left is not None
    opened = reference.sessions[crossing.ref.session_id]
    lines = set(summed_up(boundary.summary))
    forgotten = [text for text, fate in reference.fates.items() if fate.startswith("forgotten")]
    known = [line for line in lines if any(line.split(": ", 1)[1] == text for text in forgotten)]
    require(not known, f"the summary of {crossing.left} says what was forgotten: {known}")
    for number, text in opened.behind:
        if _is_as_said(reference, text):
            kept = any(line.startswith(f"{number}: {text}") for line in lines)
            require(kept, f"turn {number} ({text!r}) of {crossing.left} is neither shown nor in the summary {lines}")
    before, after = tables.sessions.get(crossing.left), tables.sessions.get(opened.id)
    assert before is not None
    assert after is not None
    require(after.cause is Cause.COMPRESSION and after.parent_id == before.id, f"{after.id} continues nothing: {after}")
    name, goes_on = split(before.title or "")[0], split(after.title or "")[0]
    require(name == goes_on, f"{before.id} is called {before.title!r}, and goes on as {after.title!r}")


def _is_as_said(reference: ReferenceModel, text: str) -> bool:
    return reference.words.stored(text) == text and not reference.fates.get(text, "").startswith("forgotten")
