"""Who may write, and who they are. Whoever is not let in learns nothing."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from everthread.config.settings import Gateway, PlatformAccount
from everthread.domain.model import ChatType, SessionKey
from everthread.domain.pairing import USER_CHARS_MAX, account_of
from everthread.ports.platform import Update
from everthread.store.unit_of_work import Store, UnitOfWork


class Guest(Struct, frozen=True):
    """Somebody who may write."""

    owner: str
    """The person, whichever account they write from."""
    admin: bool = False


class TurnedAway(Struct, frozen=True):
    """Somebody who may not."""

    may_pair: bool = False
    """They may be shown a code, with which they can be let in; else they hear nothing."""


class Access:
    """The door of every platform: whom the settings name, and who was let in by a code."""

    def __init__(
        self, store: Store, gateway: Gateway, accounts: Mapping[str, PlatformAccount], home_owner: str = ""
    ) -> None:
        """`home_owner` is the owner at this machine."""
        self._store = store
        self._home_owner = home_owner
        self._gateway = gateway
        self._accounts = accounts
        self._owners = {account: owner for owner, linked in gateway.links.items() for account in linked}

    def may_approve(self, platform: str, user: str, owner: str) -> bool:
        """Whether somebody who writes there may allow a dangerous tool, in a conversation of that owner."""
        if self._gateway.approvals != "admins":
            return self._gateway.approvals == "everybody"
        account = self._accounts.get(platform)
        person = self._owners.get(account_of(platform, user), owner)
        return (account is not None and user in account.admins) or person == self._home_owner

    async def admit(self, update: Update) -> Guest | TurnedAway:
        """Whether the update is taken in, and as whose.

        Who a person is, the settings' links say first, then the pairing; without either an account is a person.
        """
        if update.platform not in self._accounts or not 0 < len(update.user) <= USER_CHARS_MAX:
            return TurnedAway()
        guest = await self._store.read_inline(lambda uow: self._guest(uow, update.platform, update.user))
        if guest is None:
            return TurnedAway(may_pair=self._gateway.pairing and update.chat_type is ChatType.DM)
        return guest

    def reaches(self, uow: UnitOfWork, key: SessionKey, owner: str) -> bool:
        """Whether whoever writes at that key, in a chat of two, still may, and is that owner."""
        account = self._accounts.get(key.platform)
        if account is None or not account.enabled:
            return False
        # Of what was said long ago it is not known who wrote it; most platforms call such a chat by the person.
        guest = self._guest(uow, key.platform, uow.inbox.last_user(key) or key.chat)
        return guest is not None and guest.owner == owner

    def is_turned_out(self, uow: UnitOfWork, owner: str) -> bool:
        """Whether an owner is somebody who writes from a platform, and may do so no more.

        Whoever is known by no account is not: a task may be kept for anybody at this machine.
        """
        # Who was let in under another name is known by where they wrote from, once they are no guest any more.
        wrote_from = [
            account_of(key.platform, uow.inbox.last_user(key) or key.chat)
            for key in uow.sessions.keys_of(owner)
            if key.chat_type is ChatType.DM and key.platform in self._accounts
        ]
        guests = (guest.account for guest in uow.access.guests(owner))
        accounts = (*self._gateway.links.get(owner, ()), *guests, *wrote_from, owner)
        theirs = [(platform, user) for platform, _, user in (account.partition(":") for account in accounts) if user]
        known = [(platform, user) for platform, user in theirs if platform in self._accounts]
        if not known or owner == self._home_owner:
            return False
        return all(self._guest(uow, platform, user) is None for platform, user in known)

    def _guest(self, uow: UnitOfWork, platform: str, user: str) -> Guest | None:
        account, paired = self._accounts[platform], uow.access.guest(platform, user)
        admin = user in account.admins
        if not (admin or account.allow_all or user in account.allow or paired is not None):
            return None
        name = account_of(platform, user)
        return Guest(self._owners.get(name) or (paired.owner if paired is not None else name), admin)
