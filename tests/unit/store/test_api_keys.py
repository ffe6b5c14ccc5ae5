from everthread.store.api_keys import ApiKey
from everthread.store.unit_of_work import UnitOfWork


def test_a_name_is_used_once_per_owner(uow: UnitOfWork) -> None:
    assert uow.api_keys.add(ApiKey("hash1", "ann", "phone", 1.0))
    assert not uow.api_keys.add(ApiKey("hash2", "ann", "phone", 2.0))
    assert uow.api_keys.add(ApiKey("hash3", "ben", "phone", 3.0))
    assert [key.owner for key in uow.api_keys.all()] == ["ann", "ben"]


def test_a_removed_key_is_not_found(uow: UnitOfWork) -> None:
    uow.api_keys.add(ApiKey("hash1", "ann", "phone", 1.0))
    uow.api_keys.record_use("hash1", 5.0)
    assert uow.api_keys.get("hash1") == ApiKey("hash1", "ann", "phone", 1.0, 5.0)
    assert uow.api_keys.remove("ann", "phone")
    assert not uow.api_keys.remove("ann", "phone")
    assert uow.api_keys.get("hash1") is None
    assert not uow.api_keys.any_exist()
