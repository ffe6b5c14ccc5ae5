"""Senders: admitted or rejected, and mapped to owners."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from everthread.adapters.sqlite.store import SqliteStore
from everthread.config.schema import GatewaySettings, LimitSettings, PlatformAccount, Settings
from everthread.domain.model import ChatType, Reply, SessionKey
from everthread.domain.pairing import (
    PairedAccount,
    new_code,
)
from everthread.gateway.access import Access, RejectedSender, Sender
from everthread.lifecycle.pairing import TERMINAL, Pairings, approval_reply_id
from everthread.ports.platform import Update
from everthread.store.unit_of_work import Store
from everthread.testing.contracts.store.fixtures import StillClock

DM = SessionKey.parse("agent:main:telegram:dm:chat-7")


class AccessFixture:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = StillClock()
        self.pairings = Pairings(store, self.clock)

    async def shown(self, user: str = "7", platform: str = "telegram") -> str:
        """Request a pairing code and mark it as sent."""
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


def update(user: str, platform: str = "telegram", chat_type: ChatType = ChatType.DM) -> Update:
    return Update(platform, "bot", "1", "chat", chat_type, user, "hello")


ACCOUNTS = {
    "telegram": PlatformAccount("telegram", allow=("1",), admins=("9",)),
    "matrix": PlatformAccount("matrix", allow_all=True),
}


async def test_only_configured_and_paired_senders_are_admitted(tmp_path: Path) -> None:
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
        assert await access.admit(update("7", "discord")) == RejectedSender(), "an account belongs to one platform"
        await core.pairings.revoke("telegram", "7")
        assert await access.admit(update("7")) == RejectedSender(may_pair=True)


async def test_linked_accounts_have_one_owner(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        gateway = GatewaySettings(links={"ann": ("telegram:1", "matrix:@ann:home.org")})
        access = Access(core.store, gateway, ACCOUNTS)
        assert await access.admit(update("1")) == Sender("ann")
        assert await access.admit(update("@ann:home.org", "matrix")) == Sender("ann")
        await core.pairings.approve(await core.shown("7"), scope=TERMINAL, owner="ann")
        assert await access.admit(update("7")) == Sender("ann")
        await core.pairings.approve(await core.shown("1"), scope=TERMINAL, owner="bea")
        assert await access.admit(update("1")) == Sender("ann"), "the settings take precedence"


async def test_the_owners_linked_accounts_may_use_the_commands_for_admins(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        access = Access(core.store, GatewaySettings(links={"me": ("telegram:1",)}), ACCOUNTS, "me")
        assert await access.admit(update("1")) == Sender("me", admin=True)
        assert await access.admit(update("other", "matrix")) == Sender("matrix:other")


async def test_a_message_reaches_only_users_who_may_still_write(tmp_path: Path) -> None:
    async with gatehouse(tmp_path) as core:
        off = {**ACCOUNTS, "off": PlatformAccount("off", enabled=False, allow_all=True)}
        access = Access(core.store, GatewaySettings(links={"ann": ("telegram:1", "off:1")}), off)

        async def reaches(key: str, owner: str) -> bool:
            return await core.store.read(lambda uow: access.reaches(uow, SessionKey.parse(key), owner))

        assert await reaches("agent:main:telegram:dm:1", "ann")
        assert not await reaches("agent:main:telegram:dm:1", "bea"), "now belongs to another owner"
        assert not await reaches("agent:main:telegram:dm:7", "telegram:7"), "not admitted"
        assert not await reaches("agent:main:off:dm:1", "ann"), "not served"
        assert not await reaches("agent:main:gone:dm:1", "ann"), "not configured"


def test_guests_get_the_lower_of_two_spending_limits(tmp_path: Path) -> None:
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
