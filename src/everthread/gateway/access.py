"""Who may write, and who they are. Whoever is not let in learns nothing."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from everthread.config import Gateway, PlatformAccount
from everthread.ports import Clock, Store
from everthread.ports.platform import Update


class Guest(Struct, frozen=True):
    """Somebody who may write."""

    owner: str
    """The person, whichever account they write from."""
    admin: bool = False


class TurnedAway(Struct, frozen=True):
    """Somebody who may not, at least not now."""

    told: str = ""
    """What they are told, if anything."""


class Access:
    """The door of every platform."""

    def __init__(
        self, store: Store, clock: Clock, gateway: Gateway, accounts: Mapping[str, PlatformAccount], me: str
    ) -> None:
        """`me` is the owner at this machine."""
        self._store = store
        self._clock = clock
        self._gateway = gateway
        self._accounts = accounts
        self._owners = {account: owner for owner, linked in gateway.links.items() for account in linked}
        self._me = me

    async def admit(self, update: Update) -> Guest | TurnedAway:
        """Whether the update is taken in, and as whose."""
        account = self._accounts.get(update.platform)
        if account is None:
            return TurnedAway()
        admin = update.user in account.admins
        if not (admin or account.allow_all or update.user in account.allow):
            return TurnedAway()
        return Guest(self._owner(update), admin)

    def _owner(self, update: Update) -> str:
        name = f"{update.platform}:{update.user}"
        return self._owners.get(name, name)
