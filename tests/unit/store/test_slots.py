import pytest

from everthread.domain.errors import BadInput, NotFound
from everthread.domain.model import Fate, Session, SessionRef, Slot, ToolRow, ToolState
from everthread.store.unit_of_work import UnitOfWork


def slot_of(session: Session, turn_id: str = "t1", holder: str = "p1") -> Slot:
    ref = SessionRef(session.id, session.generation, session.key, 1, session.owner)
    return Slot(turn_id, ref, holder, 1, Fate.LIVE, 1, 1.0)


def test_a_slot_that_is_taken_over_has_a_higher_fence(uow: UnitOfWork, session: Session) -> None:
    uow.slots.add(slot_of(session))
    taken = uow.slots.take_over("t1", "p2")
    assert (taken.holder, taken.fence) == ("p2", 2)
    assert uow.slots.live(session.id) == taken
    assert not uow.slots.held_by("p1")


def test_a_slot_is_an_orphan_without_its_process(uow: UnitOfWork, session: Session) -> None:
    uow.slots.add(slot_of(session))
    assert [slot.turn_id for slot in uow.slots.orphans(10.0)] == ["t1"]
    uow.leases.keep_alive("p1", 10.0, 30.0)
    assert uow.slots.orphans(20.0) == ()
    assert len(uow.slots.orphans(40.0)) == 1


def test_a_tool_call_has_an_id_of_its_own_and_a_start(uow: UnitOfWork, session: Session) -> None:
    uow.slots.add(slot_of(session))
    call = ToolRow("t1", "c1", "search", "{}", ToolState.STARTED)
    uow.slots.start_tool(call, "ann")
    with pytest.raises(BadInput, match="already has a tool call 'c1'"):
        uow.slots.start_tool(call, "ann")
    with pytest.raises(NotFound, match="'c2'"):
        uow.slots.finish_tool("t1", "c2", "done")
    uow.slots.finish_tool("t1", "c1", "done")
    assert [(row.state, row.result) for row in uow.slots.tools("t1")] == [(ToolState.DONE, "done")]
