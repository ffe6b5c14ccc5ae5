from everthread.domain.pairing import Paired
from everthread.store.unit_of_work import UnitOfWork


def test_a_guest_is_one_account_of_an_owner(uow: UnitOfWork) -> None:
    uow.access.let_in(Paired("telegram", "7", "ann", "Ann", 1.0))
    uow.access.let_in(Paired("telegram", "7", "ben", "Ben", 2.0))
    assert uow.access.guests() == (Paired("telegram", "7", "ben", "Ben", 2.0),)
    assert uow.access.guests("ann") == ()
    assert uow.access.turn_out("telegram", "7")
    assert not uow.access.turn_out("telegram", "7")
