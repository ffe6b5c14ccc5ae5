import pytest

from everthread.store.unit_of_work import NotInline, UnitOfWork


def test_long_work_leaves_the_event_loops_thread(uow: UnitOfWork) -> None:
    uow.leave_event_loop()
    uow.is_inline = True
    with pytest.raises(NotInline):
        uow.leave_event_loop()
