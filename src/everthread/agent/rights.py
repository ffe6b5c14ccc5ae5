"""Look up the rights of a session's owner and of the speakers of a turn.

The rules are in `everthread.domain.rights`; the store adds the accounts of people who were paired.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from everthread.domain.model import SessionKey, SessionRef
from everthread.domain.pairing import is_group
from everthread.domain.rights import AccessRole, Rights, RightsPolicy, accounts_of, rights_of
from everthread.store.unit_of_work import Store, UnitOfWork


class RightsLookup(Struct, frozen=True):
    """Answers for one configuration. The rights of the owner cost no read."""

    store: Store
    policy: RightsPolicy

    async def of_session(self, ref: SessionRef) -> Rights:
        """Return the rights of a session's owner, a person or a group."""
        return await self.of_owner(ref.owner, ref.key.platform)

    async def of_owner(self, owner: str, platform: str = "") -> Rights:
        """Return the rights of an owner who writes from that platform."""
        accounts: tuple[str, ...] = ()
        if owner != self.policy.owner and not is_group(owner):
            accounts = await self.store.read_inline(lambda uow: _paired_accounts(uow, owner))
        return rights_of(self.policy, owner, accounts=accounts, platform=platform)

    async def of_speaker(self, account: str) -> Rights:
        """Return the rights of the person with that account; those of any guest if it is empty."""
        owner = self.policy.linked_owner(account)
        if not owner and account:
            owner = await self.store.read_inline(lambda uow: _paired_owner(uow, account))
        return await self.of_owner(owner or account)

    async def of_speakers(self, rights: Rights, accounts: Collection[str]) -> Rights:
        """Limit the rights of a session to those of the people whose messages a turn answers.

        In a private conversation they are the same person. In a group each of them must have the right as well.
        """
        if rights.role is not AccessRole.GROUP:
            return rights
        return rights.limited_to([await self.of_speaker(account) for account in sorted(accounts or ("",))])

    async def model_of_next_turn(self, key: SessionKey, turn_id: str = "") -> str:
        """Return the model that the key has chosen, if its next turn, or the cut-off turn `turn_id`, may use it.

        In a group the author of the message must have the right as well. Empty means the configured model, which
        everybody may use.
        """
        chosen = await self.store.read_inline(lambda uow: _chosen_model(uow, key, turn_id))
        if chosen is None:
            return ""
        rights = await self.of_speakers(await self.of_owner(chosen.owner), chosen.accounts)
        return rights.granted_model(chosen.model)


class _ChosenModel(Struct, frozen=True):
    model: str
    owner: str
    accounts: frozenset[str]
    """The accounts that limit the message in a group; empty elsewhere."""


def _chosen_model(uow: UnitOfWork, key: SessionKey, turn_id: str) -> _ChosenModel | None:
    model = uow.sessions.chosen_model(key)
    if not model:
        return None
    slot, row = (uow.slots.get(turn_id), None) if turn_id else (None, uow.inbox.next(key))
    owner = slot.ref.owner if slot is not None else row.inbound.owner if row is not None else ""
    if not is_group(owner):
        return _ChosenModel(model, owner, frozenset())
    if slot is not None:
        row = uow.inbox.get(slot.inbox_id)
    return _ChosenModel(model, owner, accounts_of(row.inbound) if row is not None else frozenset())


def _paired_accounts(uow: UnitOfWork, owner: str) -> tuple[str, ...]:
    return tuple(guest.account for guest in uow.access.guests(owner))


def _paired_owner(uow: UnitOfWork, account: str) -> str:
    platform, _, user = account.partition(":")
    guest = uow.access.guest(platform, user)
    return guest.owner if guest is not None else ""
