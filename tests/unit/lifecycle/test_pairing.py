"""PairingRequest codes: their lifetime, their hashes, and the lock-out after wrong ones."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from everthread.adapters.sqlite.store import SqliteStore
from everthread.domain.clock_rules import AHEAD_S_MAX
from everthread.domain.errors import BadInput, LockedOut, NotFound
from everthread.domain.model import Reply, ReplyState, SessionKey
from everthread.domain.pairing import (
    ACCOUNT_CODES_MAX,
    ACCOUNT_S,
    PLATFORM_CODES_MAX,
    WRONG_MAX,
    PairedAccount,
    new_code,
    person_problem,
)
from everthread.lifecycle.pairing import SENDING_S, TERMINAL, Pairings, approval_reply_id
from everthread.store.unit_of_work import Store
from everthread.testing.contracts.store.fixtures import StillClock

DM = SessionKey.parse("agent:main:telegram:dm:chat-7")


class AccessFixture:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = StillClock()
        self.pairings = Pairings(store, self.clock)

    async def shown(self, user: str = "7", platform: str = "telegram") -> str:
        """A pairing code that was sent to an account."""
        code = new_code(secrets.choice)
        pairing = await self.pairings.offer(platform, user, "Bea", code)
        assert pairing is not None
        await self.pairings.mark_sent(pairing, DM, "1")
        return code

    async def waiting(self) -> list[str]:
        return [pairing.user for pairing in (await self.pairings.list_all()).waiting]

    async def told(self, guest: PairedAccount) -> Reply | None:
        return await self.store.read(lambda uow: uow.outbox.reply(approval_reply_id(guest)))


@asynccontextmanager
async def gatehouse(folder: Path) -> AsyncIterator[AccessFixture]:
    store = await SqliteStore.open(folder / "everthread.db")
    try:
        yield AccessFixture(store)
    finally:
        await store.aclose()


HOUR_S = 3600.0


def bytes_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def test_an_approved_code_admits_its_account_once_and_notifies_it(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        code = await core.shown()
        await core.shown("8")
        guest = await core.pairings.approve(code, scope=TERMINAL)
        assert guest == PairedAccount("telegram", "7", "telegram:7", "Bea", core.clock.now())
        assert await core.waiting() == ["8"]
        told = await core.told(guest)
        assert told is not None
        assert (told.key, told.owner, told.state) == (DM, "telegram:7", ReplyState.READY)
        with pytest.raises(NotFound):
            await core.pairings.approve(code, scope=TERMINAL)
        assert (await core.pairings.list_all()).guests == (guest,)


async def test_a_code_is_accepted_in_any_case_and_sets_the_owner(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        code = await core.shown()
        guest = await core.pairings.approve(f" {code[:4].lower()}-{code[4:]} ", scope=TERMINAL, owner="bea")
        assert guest.owner == "bea"


async def test_a_code_expires_after_an_hour_or_if_the_clock_is_set_back(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        code = await core.shown()
        core.clock.time += HOUR_S - 1
        assert await core.waiting() == ["7"]
        core.clock.time += 2
        assert await core.waiting() == []
        with pytest.raises(NotFound):
            await core.pairings.approve(code, scope=TERMINAL)
        code = await core.shown()
        core.clock.ahead_s -= AHEAD_S_MAX
        assert await core.waiting() == ["7"], "a small correction of the clock takes no code away"
        core.clock.ahead_s -= 1
        with pytest.raises(NotFound):
            await core.pairings.approve(code, scope=TERMINAL)
        assert await core.pairings.approve(await core.shown(), scope=TERMINAL)


async def test_three_strangers_cannot_hold_all_pairing_codes(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        for hour in range(24):
            for user in ("1", "2", "3"):
                assert await core.pairings.may_offer("telegram", user) == (hour < ACCOUNT_CODES_MAX)
                if hour < ACCOUNT_CODES_MAX:
                    await core.shown(user)
                assert not await core.pairings.may_offer("telegram", user), "one at a time"
                assert await core.pairings.offer("telegram", user, "", "ABCDEFGH") is None
            await core.shown(f"friend {hour}")
            core.clock.time += HOUR_S
        assert await core.pairings.may_offer("telegram", "1"), "a day later"


async def test_a_platform_offers_a_limited_number_of_codes_an_hour(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        for number in range(PLATFORM_CODES_MAX):
            await core.shown(str(number))
        assert not await core.pairings.may_offer("telegram", "late")
        assert await core.pairings.offer("telegram", "late", "", "ABCDEFGH") is None
        await core.shown("late", "matrix")
        assert len(await core.waiting()) == PLATFORM_CODES_MAX + 1
        core.clock.time += HOUR_S
        await core.shown("late")
        assert await core.waiting() == ["late"]


async def test_codes_of_yesterday_are_not_kept(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        await core.shown("1")
        core.clock.time += ACCOUNT_S
        await core.shown("2")
        rows = await core.store.read(lambda uow: uow.access.pairings())
        assert [row.user for row in rows] == ["2"]


async def test_an_unsent_code_expires_soon(tmp_path: Path) -> None:
    """Its process has died: the stranger is not left without an answer for an hour."""
    async with gatehouse(tmp_path) as core:
        assert await core.pairings.offer("telegram", "7", "", "ABCDEFGH")
        assert not await core.pairings.may_offer("telegram", "7")
        core.clock.time += SENDING_S
        assert await core.pairings.may_offer("telegram", "7")
        for _ in range(2 * ACCOUNT_CODES_MAX):
            pairing = await core.pairings.offer("telegram", "7", "", "ABCDEFGJ")
            assert pairing is not None, "a code that could not be sent does not count"
            await core.pairings.withdraw(pairing)
            assert await core.waiting() == []


async def test_only_the_hash_of_a_code_is_stored(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        code = await core.shown()
        with pytest.raises(NotFound):
            await core.pairings.approve("ABCDEFGH", scope=TERMINAL)
        written = bytes_in(tmp_path)
        assert b"telegram" in written
        assert code.encode() not in written
        assert b"ABCDEFGH" not in written


async def test_five_wrong_codes_lock_out_for_an_hour(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        for _ in range(WRONG_MAX - 1):
            with pytest.raises(NotFound):
                await core.pairings.approve("WRONG", scope="telegram:1")
        with pytest.raises(LockedOut, match="60 minutes"):
            await core.pairings.approve("WRONG", scope="telegram:1")
        core.clock.time += HOUR_S - 90
        code = await core.shown()
        with pytest.raises(LockedOut, match="2 minutes"):
            await core.pairings.approve(code, scope="telegram:1")
        other = await core.shown("8")
        assert await core.pairings.approve(other, scope="telegram:2"), "others are not locked out"
        core.clock.time += 91
        with pytest.raises(NotFound):
            await core.pairings.approve("WRONG", scope="telegram:1")
        assert await core.pairings.approve(code, scope="telegram:1")


async def test_a_right_code_resets_the_count_of_wrong_ones(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        for _ in range(2):
            for _ in range(WRONG_MAX - 1):
                with pytest.raises(NotFound):
                    await core.pairings.approve("WRONG", scope=TERMINAL)
            assert await core.pairings.approve(await core.shown(), scope=TERMINAL)


async def test_a_clock_set_back_does_not_extend_a_lock_out(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        for _ in range(WRONG_MAX):
            with pytest.raises((NotFound, LockedOut)):
                await core.pairings.approve("WRONG", scope=TERMINAL)
        core.clock.ahead_s -= 10 * HOUR_S
        assert await core.pairings.approve(await core.shown(), scope=TERMINAL)


async def test_a_revoked_guest_gets_no_notice_of_admission(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        guest = await core.pairings.approve(await core.shown(), scope=TERMINAL)
        await core.shown("8")
        assert await core.pairings.revoke("telegram", "7")
        assert await core.pairings.revoke("telegram", "8")
        assert not await core.pairings.revoke("telegram", "7")
        known = await core.pairings.list_all()
        assert (known.waiting, known.guests) == ((), ())
        told = await core.told(guest)
        assert told is not None
        assert told.state is ReplyState.WITHHELD


@pytest.mark.parametrize("owner", ["group:telegram:1", " bea", "b\nea", "b" * 129])
async def test_an_invalid_owner_name_is_refused(owner: str, tmp_path: Path) -> None:
    assert person_problem(owner)
    async with gatehouse(tmp_path) as core:
        code = await core.shown()
        with pytest.raises(BadInput):
            await core.pairings.approve(code, scope=TERMINAL, owner=owner)
        assert await core.pairings.approve(code, scope=TERMINAL, owner="b" * 128)
