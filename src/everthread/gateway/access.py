"""Access control: admit or reject senders, and map their accounts to owners."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from everthread.config.schema import GatewaySettings, PlatformAccount
from everthread.domain.model import ChatType, SessionKey
from everthread.domain.pairing import USER_CHARS_MAX, format_account
from everthread.ports.platform import Update
from everthread.store.unit_of_work import Store, UnitOfWork

FOR_ADMINS = "That command is for admins only."
FOR_PRIVATE_CHATS = "Ask me that in a private chat: here others would read it."


class Sender(Struct, frozen=True):
    """A person who may write."""

    owner: str
    """The same for all linked accounts of a person."""
    admin: bool = False


class RejectedSender(Struct, frozen=True):
    """A person who may not write."""

    may_pair: bool = False
    """They may be shown a pairing code; otherwise they get no reply."""


class Access:
    """Admits the senders that the settings name and those that were paired."""

    def __init__(
        self, store: Store, gateway: GatewaySettings, accounts: Mapping[str, PlatformAccount], home_owner: str = ""
    ) -> None:
        """`home_owner` is the owner of this installation."""
        self._store = store
        self._home_owner = home_owner
        self._gateway = gateway
        self._accounts = accounts
        self._owners = {account: owner for owner, linked in gateway.links.items() for account in linked}

    def may_approve(self, platform: str, user: str, owner: str) -> bool:
        """Return true if that user may approve a dangerous tool call in a session of that owner."""
        if self._gateway.approvals != "admins":
            return self._gateway.approvals == "everybody"
        account = self._accounts.get(platform)
        person = self._owners.get(format_account(platform, user), owner)
        return (account is not None and user in account.admins) or person == self._home_owner

    async def admit(self, update: Update) -> Sender | RejectedSender:
        """Admit or reject the sender of an update.

        The owner comes from the links in the settings, then from the pairing; otherwise the account is the owner.
        """
        if update.platform not in self._accounts or not 0 < len(update.user) <= USER_CHARS_MAX:
            return RejectedSender()
        sender = await self._store.read_inline(lambda uow: self._find(uow, update.platform, update.user))
        if sender is None:
            return RejectedSender(may_pair=self._gateway.pairing and update.chat_type is ChatType.DM)
        return sender

    def reaches(self, uow: UnitOfWork, key: SessionKey, owner: str) -> bool:
        """Return true if the user of that private chat may still write, and is that owner."""
        account = self._accounts.get(key.platform)
        if account is None or not account.enabled:
            return False
        # Old messages have no user; on most platforms a private chat has the id of its user.
        sender = self._find(uow, key.platform, uow.inbox.last_user(key) or key.chat)
        return sender is not None and sender.owner == owner

    def is_excluded(self, uow: UnitOfWork, owner: str) -> bool:
        """Return true if an owner used to write from a platform, and may no longer.

        An owner without an account is not excluded: a local user may own a task.
        """
        # A former guest with a name of their own is known only by the chats they wrote from.
        wrote_from = [
            format_account(key.platform, uow.inbox.last_user(key) or key.chat)
            for key in uow.sessions.keys_of(owner)
            if key.chat_type is ChatType.DM and key.platform in self._accounts
        ]
        guests = (guest.account for guest in uow.access.guests(owner))
        accounts = (*self._gateway.links.get(owner, ()), *guests, *wrote_from, owner)
        theirs = [(platform, user) for platform, _, user in (account.partition(":") for account in accounts) if user]
        known = [(platform, user) for platform, user in theirs if platform in self._accounts]
        if not known or owner == self._home_owner:
            return False
        return all(self._find(uow, platform, user) is None for platform, user in known)

    def _find(self, uow: UnitOfWork, platform: str, user: str) -> Sender | None:
        account, paired = self._accounts[platform], uow.access.guest(platform, user)
        admin = user in account.admins
        if not (admin or account.allow_all or user in account.allow or paired is not None):
            return None
        name = format_account(platform, user)
        owner = self._owners.get(name) or (paired.owner if paired is not None else name)
        # The owner of this installation may use every command, from all accounts.
        return Sender(owner, admin or owner == self._home_owner)
