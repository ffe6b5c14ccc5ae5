"""Tokens: found by what they are made into, one of a name for each owner."""

from __future__ import annotations

from contextlib import aclosing

from everthread.store.api_keys import Token
from everthread.testing import in_loop
from everthread.testing.contracts.store.fixtures import OnAStore, OpenStore


class KeysOfTheInterface(OnAStore):
    @in_loop
    async def test_a_token_is_found_by_its_hash_until_it_is_removed(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store, aclosing(await open_store()) as other:
            assert not await store.read(lambda uow: uow.tokens.are_any())
            phone = Token("h1", "ann", "phone", 1.0)
            assert await store.write(lambda uow: uow.tokens.add(phone))
            assert await other.read_inline(lambda uow: uow.tokens.get("h1")) == phone
            assert await other.read_inline(lambda uow: uow.tokens.get("h2")) is None
            assert await other.read(lambda uow: uow.tokens.are_any())
            await store.write(lambda uow: uow.tokens.used("h1", 5.0))
            used = await other.read(lambda uow: uow.tokens.get("h1"))
            assert used is not None
            assert used.used_at == 5.0
            assert not await store.write(lambda uow: uow.tokens.remove("ben", "phone"))
            assert await store.write(lambda uow: uow.tokens.remove("ann", "phone"))
            assert await other.read(lambda uow: (uow.tokens.get("h1"), uow.tokens.all())) == (None, ())

    @in_loop
    async def test_two_owners_may_use_one_name_and_one_owner_may_not(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            first, second = Token("h1", "ben", "phone", 1.0), Token("h2", "ann", "phone", 2.0)
            assert await store.write(lambda uow: uow.tokens.add(first))
            assert await store.write(lambda uow: uow.tokens.add(second))
            assert not await store.write(lambda uow: uow.tokens.add(Token("h3", "ann", "phone", 3.0)))
            assert await store.read(lambda uow: uow.tokens.all()) == (second, first)
