"""Who may write: the door's rules, codes that hold for an hour, wrong ones that are counted, how much is too much."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from everthread.adapters.sqlite.store import SqliteStore
from everthread.config.settings import GatewaySettings, LimitSettings, PlatformAccount, Settings
from everthread.domain.errors import BadInput, LockedOut, NotFound
from everthread.domain.model import ChatType, Reply, ReplyState, SessionKey
from everthread.domain.pairing import (
    ALPHABET,
    PENDING_MAX,
    WRONG_MAX,
    PairedAccount,
    PairingRequest,
    hash_code,
    matches_code,
    new_code,
    person_problem,
)
from everthread.gateway import rate_limit as rates
from everthread.gateway.access import Access, RejectedSender, Sender
from everthread.gateway.rate_limit import RateLimiter
from everthread.lifecycle.pairing import SENDING_S, TERMINAL, Pairings, approval_reply_id
from everthread.ports.platform import Update
from everthread.store.unit_of_work import Store
from everthread.testing.contracts.store.fixtures import StillClock

DM = SessionKey.parse("agent:main:telegram:dm:chat-7")
HOUR_S = 3600.0


class Gatehouse:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = StillClock()
        self.pairings = Pairings(store, self.clock)

    async def shown(self, user: str = "7", platform: str = "telegram") -> str:
        """A code that somebody was shown."""
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
async def gatehouse(folder: Path) -> AsyncIterator[Gatehouse]:
    store = await SqliteStore.open(folder / "everthread.db")
    try:
        yield Gatehouse(store)
    finally:
        await store.aclose()


def bytes_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


# --- Codes -----------------------------------------------------------------------------------------------------------


def test_a_code_has_eight_characters_that_nobody_mixes_up() -> None:
    codes = {new_code(secrets.choice) for _ in range(200)}
    assert len(codes) == 200
    assert {len(code) for code in codes} == {8}
    assert not set("".join(codes)) & set("01OIL")
    assert len(set(ALPHABET)) == len(ALPHABET) == 31


def test_a_hash_is_of_one_account_only() -> None:
    pairing = PairingRequest("telegram", "7", "", "", 0.0, 1.0)
    theirs = replace(pairing, code_hash=hash_code("telegram", "8", "ABCDEFGH"))
    mine = replace(pairing, code_hash=hash_code("telegram", "7", "ABCDEFGH"))
    assert (matches_code(theirs, "ABCDEFGH"), matches_code(mine, "ABCDEFGH"), matches_code(mine, "ABCDEFGJ")) == (
        False,
        True,
        False,
    )


async def test_an_approved_code_lets_its_account_in_once_and_they_are_told(tmp_path: Path) -> None:
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


async def test_a_code_may_be_typed_as_people_do_and_makes_the_account_somebody(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        code = await core.shown()
        guest = await core.pairings.approve(f" {code[:4].lower()}-{code[4:]} ", scope=TERMINAL, owner="bea")
        assert guest.owner == "bea"


async def test_a_code_holds_for_an_hour_and_no_longer_if_the_clock_is_put_back(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        code = await core.shown()
        core.clock.time += HOUR_S - 1
        assert await core.waiting() == ["7"]
        core.clock.time += 2
        assert await core.waiting() == []
        with pytest.raises(NotFound):
            await core.pairings.approve(code, scope=TERMINAL)
        code = await core.shown()
        core.clock.time -= 10
        with pytest.raises(NotFound):
            await core.pairings.approve(code, scope=TERMINAL)
        assert await core.pairings.approve(await core.shown(), scope=TERMINAL)


async def test_whoever_has_a_code_gets_no_other_and_a_few_of_a_platform_may_wait(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        for user in ("1", "2", "3"):
            assert await core.pairings.may_offer("telegram", user)
            await core.shown(user)
        for user in ("1", "4"):
            assert not await core.pairings.may_offer("telegram", user)
            assert await core.pairings.offer("telegram", user, "", "ABCDEFGH") is None
        assert await core.pairings.may_offer("matrix", "1")
        await core.shown("1", "matrix")
        assert len(await core.waiting()) == PENDING_MAX + 1
        core.clock.time += HOUR_S
        await core.shown("4")
        assert await core.waiting() == ["4"]
        rows = await core.store.read(lambda uow: uow.access.pairings())
        assert [row.user for row in rows] == ["4"], "what holds no more is not kept"


async def test_a_code_that_was_not_sent_holds_for_a_moment_only(tmp_path: Path) -> None:
    """Its process has died: the stranger is not left without an answer for an hour."""
    async with gatehouse(tmp_path) as core:
        assert await core.pairings.offer("telegram", "7", "", "ABCDEFGH")
        assert not await core.pairings.may_offer("telegram", "7")
        core.clock.time += SENDING_S
        assert await core.pairings.may_offer("telegram", "7")
        pairing = await core.pairings.offer("telegram", "7", "", "ABCDEFGJ")
        assert pairing is not None
        await core.pairings.withdraw(pairing)
        assert await core.pairings.may_offer("telegram", "7")


async def test_only_what_a_code_is_made_into_is_in_the_file(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        code = await core.shown()
        with pytest.raises(NotFound):
            await core.pairings.approve("ABCDEFGH", scope=TERMINAL)
        written = bytes_in(tmp_path)
        assert b"telegram" in written
        assert code.encode() not in written
        assert b"ABCDEFGH" not in written


async def test_after_five_wrong_codes_none_is_looked_at_for_an_hour(tmp_path: Path) -> None:
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


async def test_a_right_code_makes_wrong_ones_forgotten(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        for _ in range(2):
            for _ in range(WRONG_MAX - 1):
                with pytest.raises(NotFound):
                    await core.pairings.approve("WRONG", scope=TERMINAL)
            assert await core.pairings.approve(await core.shown(), scope=TERMINAL)


async def test_a_clock_that_is_put_back_locks_nobody_out_for_longer(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        for _ in range(WRONG_MAX):
            with pytest.raises((NotFound, LockedOut)):
                await core.pairings.approve("WRONG", scope=TERMINAL)
        core.clock.time -= 10 * HOUR_S
        assert await core.pairings.approve(await core.shown(), scope=TERMINAL)


async def test_whoever_is_turned_out_is_no_guest_and_is_not_told_of_having_been_let_in(tmp_path: Path) -> None:
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
async def test_a_name_that_is_nobodys_is_refused(owner: str, tmp_path: Path) -> None:
    assert person_problem(owner)
    async with gatehouse(tmp_path) as core:
        code = await core.shown()
        with pytest.raises(BadInput):
            await core.pairings.approve(code, scope=TERMINAL, owner=owner)
        assert await core.pairings.approve(code, scope=TERMINAL, owner="b" * 128)


# --- The door --------------------------------------------------------------------------------------------------------


def update(user: str, platform: str = "telegram", chat_type: ChatType = ChatType.DM) -> Update:
    return Update(platform, "bot", "1", "chat", chat_type, user, "hello")


ACCOUNTS = {
    "telegram": PlatformAccount("telegram", allow=("1",), admins=("9",)),
    "matrix": PlatformAccount("matrix", allow_all=True),
}


async def test_nobody_is_let_in_but_those_who_are_named_or_paired(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        access = Access(core.store, GatewaySettings(), ACCOUNTS)
        assert await access.admit(update("1")) == Sender("telegram:1")
        assert await access.admit(update("9")) == Sender("telegram:9", admin=True)
        assert await access.admit(update("anybody", "matrix")) == Sender("matrix:anybody")
        assert await access.admit(update("7")) == RejectedSender(may_pair=True)
        for chat_type in (ChatType.GROUP, ChatType.CHANNEL, ChatType.THREAD):
            assert await access.admit(update("7", chat_type=chat_type)) == RejectedSender()
        for stranger in (update("1", "discord"), update(""), update("7" * 129), update("", "matrix")):
            assert await access.admit(stranger) == RejectedSender()
        assert await Access(core.store, GatewaySettings(pairing=False), ACCOUNTS).admit(update("7")) == RejectedSender()
        guest = await core.pairings.approve(await core.shown(), scope=TERMINAL)
        for gateway in (GatewaySettings(), GatewaySettings(pairing=False)):
            for chat_type in (ChatType.DM, ChatType.GROUP):
                found = await Access(core.store, gateway, ACCOUNTS).admit(update("7", chat_type=chat_type))
                assert found == Sender(guest.owner)
        assert await access.admit(update("7", "discord")) == RejectedSender(), "an account is one platform's"
        await core.pairings.revoke("telegram", "7")
        assert await access.admit(update("7")) == RejectedSender(may_pair=True)


async def test_one_person_on_two_platforms_is_one_owner(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        gateway = GatewaySettings(links={"ann": ("telegram:1", "matrix:@ann:home.org")})
        access = Access(core.store, gateway, ACCOUNTS)
        assert await access.admit(update("1")) == Sender("ann")
        assert await access.admit(update("@ann:home.org", "matrix")) == Sender("ann")
        await core.pairings.approve(await core.shown("7"), scope=TERMINAL, owner="ann")
        assert await access.admit(update("7")) == Sender("ann")
        await core.pairings.approve(await core.shown("1"), scope=TERMINAL, owner="bea")
        assert await access.admit(update("1")) == Sender("ann"), "what the settings say counts first"


async def test_what_is_sent_reaches_only_whoever_may_still_write(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        off = {**ACCOUNTS, "off": PlatformAccount("off", enabled=False, allow_all=True)}
        access = Access(core.store, GatewaySettings(links={"ann": ("telegram:1", "off:1")}), off)

        async def reaches(key: str, owner: str) -> bool:
            return await core.store.read(lambda uow: access.reaches(uow, SessionKey.parse(key), owner))

        assert await reaches("agent:main:telegram:dm:1", "ann")
        assert not await reaches("agent:main:telegram:dm:1", "bea"), "somebody else's by now"
        assert not await reaches("agent:main:telegram:dm:7", "telegram:7"), "not let in"
        assert not await reaches("agent:main:off:dm:1", "ann"), "not served"
        assert not await reaches("agent:main:gone:dm:1", "ann"), "not set up"


# --- Limits ----------------------------------------------------------------------------------------------------------


def test_so_many_messages_a_minute_are_taken_and_more_is_told_of_once_a_minute() -> None:
    limits = RateLimiter(6)
    assert [limits.refusal("ann", 0.0) for _ in range(6)] == [None] * 6
    assert limits.refusal("bea", 0.0) is None
    assert "10 seconds" in (limits.refusal("ann", 0.0) or "")
    assert limits.refusal("ann", 5.0) == ""
    assert limits.refusal("ann", 10.0) is None
    assert limits.refusal("ann", 10.0) == ""
    assert limits.refusal("ann", 20.0) is None
    for second in (30.0, 40.0, 50.0, 60.0):
        assert limits.refusal("ann", second) is None
    assert "9 seconds" in (limits.refusal("ann", 61.0) or "")
    assert [limits.refusal("ann", 1000.0) for _ in range(9)].count(None) == 6, "no more than a minute's adds up"


def test_a_clock_that_is_put_back_gives_nothing_and_takes_nothing() -> None:
    limits = RateLimiter(2)
    assert [limits.refusal("ann", 1000.0) for _ in range(2)] == [None, None]
    assert "30 seconds" in (limits.refusal("ann", 100.0) or "")
    assert limits.refusal("ann", 130.0) is None


def test_those_who_have_been_quiet_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "KEPT_MAX", 10)
    limits = RateLimiter(1)
    for number in range(10):
        assert limits.refusal(str(number), 0.0) is None
    assert limits.refusal("late", 61.0) is None
    assert len(limits._buckets) == 1  # noqa: SLF001 - what it keeps is what is looked at
    assert limits.refusal("late", 61.0)


def test_guests_may_spend_the_lower_of_two_limits_and_the_owner_what_the_limits_say(tmp_path: Path) -> None:
    def limits(own: float | None, guests: float | None) -> tuple[float | None, float | None]:
        settings = Settings(
            tmp_path, limits=LimitSettings(spend_per_day=own), gateway=GatewaySettings(spend_per_day=guests)
        )
        return settings.spend_per_day_of("me"), settings.spend_per_day_of("telegram:1")

    assert limits(None, None) == (None, None)
    assert limits(5.0, None) == (5.0, 5.0)
    assert limits(None, 1.0) == (None, 1.0)
    assert limits(5.0, 1.0) == (5.0, 1.0)
    assert limits(1.0, 5.0) == (1.0, 1.0)
    assert limits(5.0, 0.0) == (5.0, 0.0)
