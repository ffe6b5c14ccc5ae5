from everthread.domain.pairing import PairedAccount
from everthread.store.unit_of_work import UnitOfWork


def test_a_guest_is_one_account_of_an_owner(uow: UnitOfWork) -> None:
    uow.access.add_guest(PairedAccount("telegram", "7", "ann", "Ann", 1.0))
    uow.access.add_guest(PairedAccount("telegram", "7", "ben", "Ben", 2.0))
    assert uow.access.guests() == (PairedAccount("telegram", "7", "ben", "Ben", 2.0),)
    assert uow.access.guests("ann") == ()
    assert uow.access.remove_guest("telegram", "7")
    assert not uow.access.remove_guest("telegram", "7")
