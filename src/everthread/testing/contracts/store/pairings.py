"""Access: guests by account, one pairing code per stranger, wrong codes counted per sender."""

from __future__ import annotations

from contextlib import aclosing

from msgspec.structs import replace

from everthread.domain.pairing import PairedAccount, PairingRequest, WrongCodes
from everthread.lifecycle import ForgetOwner
from everthread.testing import in_loop
from everthread.testing.contracts.store.fixtures import OpenStore, StoreConversation, StoreFixture, on_store

BEA = PairedAccount("telegram", "7", "bea", "Bea", 5.0)
ASKING = PairingRequest("telegram", "8", "hash", "Cy", 1.0, 3601.0)


class PairingContract(StoreFixture):
    @in_loop
    async def test_a_guest_is_found_by_platform_account_until_removed(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store, aclosing(await open_store()) as other:
            also, elsewhere = replace(BEA, user="9", owner="dan"), replace(BEA, platform="matrix")
            for guest in (also, BEA, elsewhere):
                await store.write(lambda uow, guest=guest: uow.access.add_guest(guest))
            assert await other.read(lambda uow: uow.access.guest("telegram", "7")) == BEA
            assert await other.read(lambda uow: uow.access.guest("telegram", "8")) is None
            assert await other.read(lambda uow: uow.access.guests()) == (elsewhere, BEA, also)
            assert await other.read(lambda uow: uow.access.guests("bea")) == (elsewhere, BEA)
            await store.write(lambda uow: uow.access.add_guest(replace(BEA, owner="ann", name="B", at=6.0)))
            assert await other.read(lambda uow: uow.access.guest("telegram", "7")) == PairedAccount(
                "telegram", "7", "ann", "B", 6.0
            )
            gone = [await store.write(lambda uow: uow.access.remove_guest("telegram", "7")) for _ in range(2)]
            assert gone == [True, False]
            assert await other.read(lambda uow: uow.access.guests()) == (elsewhere, also)

    @on_store
    async def test_an_account_has_one_code_which_is_the_newest(self, talk: StoreConversation) -> None:
        later = replace(ASKING, user="1", at=2.0)
        elsewhere = replace(ASKING, platform="matrix", at=3.0)
        await talk.write_each((later, ASKING, elsewhere), lambda uow, pairing: uow.access.put_pairing(pairing))
        assert await talk.read(lambda uow: uow.access.pairings()) == (ASKING, later, elsewhere)
        assert await talk.read(lambda uow: uow.access.pairings("telegram")) == (ASKING, later)
        again = PairingRequest("telegram", "8", "other", "Cyd", 4.0, 3604.0)
        await talk.write(lambda uow: uow.access.put_pairing(again))
        assert await talk.read(lambda uow: uow.access.pairing("telegram", "8")) == again
        gone = [await talk.write(lambda uow: uow.access.drop_pairing("telegram", "8")) for _ in range(2)]
        assert gone == [True, False]
        assert await talk.read(lambda uow: uow.access.pairing("telegram", "8")) is None
        assert await talk.read(lambda uow: uow.access.pairings()) == (later, elsewhere)

    @on_store
    async def test_wrong_codes_are_counted_per_approver(self, talk: StoreConversation) -> None:
        mine, theirs = WrongCodes("terminal", 1), WrongCodes("telegram:1", 5, 99.0)
        await talk.write(lambda uow: uow.access.put_wrong_codes(mine))
        await talk.write(lambda uow: uow.access.put_wrong_codes(theirs))
        await talk.write(lambda uow: uow.access.put_wrong_codes(replace(mine, count=2)))
        assert await talk.read(lambda uow: uow.access.wrong_codes("terminal")) == WrongCodes("terminal", 2)
        await talk.write(lambda uow: uow.access.drop_wrong_codes("terminal"))
        assert await talk.read(lambda uow: uow.access.wrong_codes("terminal")) is None
        assert await talk.read(lambda uow: uow.access.wrong_codes("telegram:1")) == theirs

    @on_store
    async def test_forgetting_a_person_removes_guest_and_code(self, talk: StoreConversation) -> None:
        own, stays = replace(BEA, user="9", owner="telegram:9"), replace(BEA, user="1", owner="ann")
        await talk.write_each((BEA, own, stays), lambda uow, guest: uow.access.add_guest(guest))
        for user in ("7", "9", "1", "5"):
            pairing = replace(ASKING, user=user)
            await talk.write(lambda uow, pairing=pairing: uow.access.put_pairing(pairing))
        await talk.write(lambda uow: uow.access.put_wrong_codes(WrongCodes("telegram:9", 1)))
        await talk.lifecycle.forget(ForgetOwner(), owner="bea")
        assert await talk.read(lambda uow: uow.access.guests()) == (stays, own)
        for account in ("telegram:9", "telegram:5"):
            await talk.lifecycle.forget(ForgetOwner(), owner=account)
        assert await talk.read(lambda uow: uow.access.guests()) == (stays,)
        assert [p.user for p in await talk.read(lambda uow: uow.access.pairings())] == ["1"]
        assert await talk.read(lambda uow: uow.access.wrong_codes("telegram:9")) is None
