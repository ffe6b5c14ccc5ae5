import pytest

from everthread.domain.model import Session, SessionRef
from everthread.domain.spend import SpendEntry
from everthread.store.unit_of_work import UnitOfWork


@pytest.fixture
def ref(session: Session) -> SessionRef:
    return SessionRef(session.id, 1, session.key, 1, session.owner)


def test_a_reservation_counts_until_it_is_settled(uow: UnitOfWork, ref: SessionRef) -> None:
    reserved = uow.spend.reserve(ref, "t1", "big", 2.0, 10.0)
    assert uow.spend.total("ann", 0.0) == 2.0
    uow.spend.settle(SpendEntry("big", 0.5, 100, 20, reserved), ref, "t1", 11.0)
    assert uow.spend.total("ann", 0.0) == 0.5
    assert uow.spend.of_turn(ref, "t1", 0.0) == 0.5
    assert uow.spend.total("ann", 20.0) == 0.0


def test_usage_is_listed_by_cost(uow: UnitOfWork, ref: SessionRef) -> None:
    uow.spend.settle(SpendEntry("small", 0.1, 10, 1), ref, "t1", 1.0)
    uow.spend.settle(SpendEntry("big", 0.5, 100, 20), ref, "t2", 2.0)
    assert [used.model for used in uow.spend.by_model("ann", 0.0)] == ["big", "small"]
    assert uow.spend.by_model("ann", 0.0, []) == ()
