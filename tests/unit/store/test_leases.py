import pytest

from everthread.domain.errors import Fenced
from everthread.domain.model import SessionKey, Timer
from everthread.store.unit_of_work import UnitOfWork


def test_a_lease_is_held_by_one_process_until_it_expires(uow: UnitOfWork) -> None:
    first = uow.leases.acquire("timers", "p1", 0.0, 15.0)
    assert first is not None
    assert uow.leases.acquire("timers", "p2", 10.0, 15.0) is None
    second = uow.leases.acquire("timers", "p2", 15.0, 15.0)
    assert second is not None
    assert second.fence > first.fence
    with pytest.raises(Fenced):
        uow.leases.check(first)
    uow.leases.check(second)


def test_a_released_lease_is_free(uow: UnitOfWork) -> None:
    lease = uow.leases.acquire("timers", "p1", 0.0, 15.0)
    assert lease is not None
    assert uow.leases.is_held("timers", 1.0)
    uow.leases.release(lease)
    assert not uow.leases.is_held("timers", 1.0)


def test_a_lease_that_ends_too_far_ahead_is_shortened(uow: UnitOfWork) -> None:
    assert uow.leases.acquire("wrong", "p1", 100.0, 215.5)
    assert uow.leases.acquire("right", "p1", 100.0, 215.0)
    uow.leases.shorten(15.0, 60.0)
    assert [uow.leases.is_held(name, 75.0) for name in ("wrong", "right")] == [False, True]
    assert uow.leases.is_held("wrong", 74.0)


def test_a_timer_keeps_its_earliest_time(uow: UnitOfWork, key: SessionKey) -> None:
    uow.leases.arm(Timer("idle", 7.0, key))
    uow.leases.arm(Timer("idle", 5.0, key))
    uow.leases.arm(Timer("idle", 9.0, key))
    assert uow.leases.next_timer() == 5.0
    assert uow.leases.due_timers(4.0, 10) == ()
    assert uow.leases.due_timers(5.0, 10) == (Timer("idle", 5.0, key),)
