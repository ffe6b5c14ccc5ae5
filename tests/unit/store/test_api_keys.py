from msgspec.structs import replace

from everthread.store.api_keys import ApiKey
from everthread.store.unit_of_work import UnitOfWork

DAY_S = 86_400.0


def test_a_name_is_used_once_per_owner(uow: UnitOfWork) -> None:
    assert uow.api_keys.add(ApiKey("hash1", "ann", "phone", 1.0))
    assert not uow.api_keys.add(ApiKey("hash2", "ann", "phone", 2.0))
    assert uow.api_keys.add(ApiKey("hash3", "ben", "phone", 3.0))
    assert [key.owner for key in uow.api_keys.all()] == ["ann", "ben"]


def test_a_removed_key_is_not_found(uow: UnitOfWork) -> None:
    uow.api_keys.add(ApiKey("hash1", "ann", "phone", 1.0))
    uow.api_keys.record_use("hash1", 5.0)
    assert uow.api_keys.get("hash1") == ApiKey("hash1", "ann", "phone", 1.0, 5.0)
    assert uow.api_keys.remove("ann", "phone") == ApiKey("hash1", "ann", "phone", 1.0, 5.0)
    assert uow.api_keys.remove("ann", "phone") is None
    assert uow.api_keys.get("hash1") is None
    assert uow.api_keys.all() == ()


def test_a_store_remembers_that_it_had_a_key(uow: UnitOfWork) -> None:
    assert not uow.api_keys.ever_existed()
    uow.api_keys.add(ApiKey("hash1", "ann", "phone", 1.0))
    assert uow.api_keys.ever_existed()
    uow.api_keys.remove("ann", "phone")
    assert uow.api_keys.ever_existed()


def test_expiry_and_rights_are_stored(uow: UnitOfWork) -> None:
    key = ApiKey("hash1", "ann", "phone", 1.0, None, 5.0, read_only=True, automatic=True)
    uow.api_keys.add(key)
    assert uow.api_keys.get("hash1") == key
    assert uow.api_keys.all() == (key,)


def test_a_clock_that_was_set_back_does_not_extend_an_expired_key() -> None:
    made, expires = 1_800_000_000.0, 1_800_000_000.0 + 30 * DAY_S
    key = ApiKey("hash1", "ann", "phone", made, None, expires)
    assert key.is_valid(made)
    assert key.is_valid(expires - 1)
    assert not key.is_valid(expires)
    assert key.is_valid(made - 60), "a small correction of the clock"
    assert not key.is_valid(made - 3600)
    assert not key.is_valid(0.0), "a machine without a clock battery"
    assert replace(key, expires_at=None).is_valid(0.0)
