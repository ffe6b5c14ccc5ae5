import pytest

from everthread.store.unit_of_work import TakesLong, UnitOfWork


def test_long_work_leaves_the_event_loops_thread(uow: UnitOfWork) -> None:
    uow.takes_long()
    uow.is_inline = True
    with pytest.raises(TakesLong):
        uow.takes_long()
