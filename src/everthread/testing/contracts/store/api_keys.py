"""API keys: lookup by hash, names unique per owner."""

from __future__ import annotations

from contextlib import aclosing

from everthread.store.api_keys import ApiKey
from everthread.testing import in_loop
from everthread.testing.contracts.store.fixtures import OpenStore, StoreConversation, StoreFixture, on_store, present


class ApiKeyContract(StoreFixture):
    @in_loop
    async def test_a_token_is_found_by_its_hash_until_it_is_removed(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store, aclosing(await open_store()) as other:
            assert not await store.read(lambda uow: uow.api_keys.ever_existed())
            phone = ApiKey("h1", "ann", "phone", 1.0)
            assert await store.write(lambda uow: uow.api_keys.add(phone))
            assert await other.read_inline(lambda uow: uow.api_keys.get("h1")) == phone
            assert await other.read_inline(lambda uow: uow.api_keys.get("h2")) is None
            assert await other.read(lambda uow: uow.api_keys.ever_existed())
            await store.write(lambda uow: uow.api_keys.record_use("h1", 5.0))
            used = present(await other.read(lambda uow: uow.api_keys.get("h1")))
            assert used.used_at == 5.0
            assert await store.write(lambda uow: uow.api_keys.remove("ben", "phone")) is None
            assert await store.write(lambda uow: uow.api_keys.remove("ann", "phone")) == used
            assert await other.read(lambda uow: (uow.api_keys.get("h1"), uow.api_keys.all())) == (None, ())
            assert await other.read(lambda uow: uow.api_keys.ever_existed())

    @on_store
    async def test_two_owners_may_use_one_name_and_one_owner_may_not(self, talk: StoreConversation) -> None:
        first, second = ApiKey("h1", "ben", "phone", 1.0), ApiKey("h2", "ann", "phone", 2.0)
        assert await talk.write(lambda uow: uow.api_keys.add(first))
        assert await talk.write(lambda uow: uow.api_keys.add(second))
        assert not await talk.write(lambda uow: uow.api_keys.add(ApiKey("h3", "ann", "phone", 3.0)))
        assert await talk.read(lambda uow: uow.api_keys.all()) == (second, first)
