"""Taking in what platforms hand over: who it is from, where it belongs, stored before it is acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from secrets import token_hex

from msgspec.structs import replace

from everthread.commands.context import CommandContext
from everthread.commands.registry import ParsedCommand, Unknown, carry_out, parse, withheld
from everthread.config.settings import Gateway, PlatformAccount
from everthread.domain.errors import BadInput, EverthreadError
from everthread.domain.model import Inbound, InboxState, Reply, ReplyState, SessionKey, whole
from everthread.domain.pairing import account_of
from everthread.gateway.access import Access, Guest, TurnedAway
from everthread.gateway.attachments import Luggage, Unpacked
from everthread.gateway.outbox import Outbox
from everthread.gateway.pairing import Door
from everthread.gateway.rate_limit import Rates
from everthread.gateway.routing import Sharings, key_of, owner_of, words_of
from everthread.gateway.worker import Worker
from everthread.lifecycle import Lifecycle
from everthread.lifecycle.pairing import Pairings
from everthread.ports.clock import Clock
from everthread.ports.platform import Incoming, MovedChat, Unreadable, Update
from everthread.store.leases import Incident
from everthread.store.unit_of_work import Store, UnitOfWork

log = logging.getLogger("everthread.gateway")

FOR_ADMINS = "That command is for admins only."
NEVER_TOO_MANY = ("stop", "help", "deny")
"""Commands that are taken however much somebody writes."""

MakeDesk = Callable[[SessionKey, str, Update], CommandContext]
"""For a key, an owner and an update."""


class InboundHandler:
    """Where every update of every platform comes in."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        store: Store,
        clock: Clock,
        access: Access,
        pairings: Pairings,
        door: Door,
        rates: Rates,
        working: Worker,
        delivery: Outbox,
        luggage: Luggage,
        desk: MakeDesk,
        *,
        profile: str,
        gateway: Gateway,
        accounts: Mapping[str, PlatformAccount],
    ) -> None:
        self._lifecycle = lifecycle
        self._store = store
        self._clock = clock
        self._access = access
        self._pairings = pairings
        self._door = door
        self._rates = rates
        self._working = working
        self._delivery = delivery
        self._luggage = luggage
        self._desk = desk
        self._profile = profile
        self._gateway = gateway
        self._accounts = accounts
        self._moved: dict[tuple[str, str], str] | None = None
        """By platform and the id there, what chats are known as that have moved; none: not read yet."""
        self.taken = 0
        self.turned_away = 0

    async def take(self, update: Incoming) -> None:
        """Comes back once the update is stored, or turned away for good. Raises only if it could not be stored."""
        match update:
            case Update():
                await self._take_in(await self._settled(update))
            case MovedChat():
                await self._move(update)
            case Unreadable():
                await self._pass_over(update)

    async def _settled(self, update: Update) -> Update:
        """Under the id by which the chat is known here."""
        if self._moved is None:
            self._moved = await self._store.read_inline(lambda uow: uow.inbox.moved_chats())
        known_as = self._moved.get((update.platform, update.chat)) if self._moved else None
        return replace(update, chat=known_as) if known_as is not None else update

    async def _move(self, moved: MovedChat) -> None:
        """The conversations of the chat go on under the id that they have."""

        def move(uow: UnitOfWork) -> dict[tuple[str, str], str]:
            known_as = uow.inbox.moved_chats().get((moved.platform, moved.chat), moved.chat)
            uow.inbox.move_chat(moved.platform, moved.to, known_as)
            return uow.inbox.moved_chats()

        if moved.to != moved.chat:
            self._moved = await self._store.write(move)
            log.info("%s: a chat has moved", moved.platform, extra={"platform": moved.platform})

    async def _pass_over(self, unreadable: Unreadable) -> None:
        """Nobody can do anything with it, now or later; that it is lost is told."""
        platform, number = unreadable.platform, unreadable.update_id
        text = (
            f"{platform}: update {number} could not be read ({unreadable.problem}) and was passed over; "
            "if this comes again, look for a newer version of the program"
        )
        log.warning("%s", text, extra={"platform": platform})
        incident = Incident(self._clock.now(), "platform", None, text)
        await self._store.write(lambda uow: uow.leases.add_incident(incident))

    async def _take_in(self, update: Update) -> None:
        try:
            _check_names(update)
            key = key_of(update, self._profile, self._sharings(update.platform))
            who = await self._access.admit(update)
            if isinstance(who, TurnedAway):
                self.turned_away += 1
                if who.may_pair:
                    await self._door.answer(update, key)
            else:
                await self._take(update, key, who)
        except BadInput as error:
            # Nobody can do anything with it, the platform least of all.
            log.warning("%s: an update was dropped: %s", update.platform, error, extra={"platform": update.platform})
        except EverthreadError:
            raise
        except Exception:
            # A mistake of ours, and it would be one again: whoever writes after it must not wait for ever.
            log.exception("%s: an update was dropped", update.platform, extra={"platform": update.platform})

    async def _take(self, update: Update, key: SessionKey, who: Guest) -> None:
        owner = owner_of(key, who.owner)
        found = parse(update.text)
        if (refusal := self._refusal(found, who)) is not None:
            await self._turn_away(update, key, who, refusal)
            return
        if isinstance(found, ParsedCommand) and found.command.unstored:
            await self._carry_out_unstored(update, key, owner, who, found)
            return
        if isinstance(found, ParsedCommand) and found.command.takes_message and found.argument:
            # It stores what is said itself, under the update's number.
            said = await carry_out(self._desk(key, owner, update), found)
            await self._say(_name("said", update), key, owner, said.text)
            self._working.wake(key)
            return
        command = found is not None
        packed = Unpacked(()) if command else self._luggage.handed_over(update)
        text = update.text if command else words_of(replace(update, media=packed.media), key)
        if packed.notice:
            await self._say(_name("unheard", update), key, owner, packed.notice)
        if not text:
            return
        row, new = await self._lifecycle.accept(
            Inbound(
                *(key, owner, text, update.account, update.update_id, command, update.user, packed.to_fetch),
                message_id=update.message_id,
            )
        )
        self.taken += new
        if not new:
            # That a platform repeats itself is not held against whoever wrote it.
            self._rates.give_back(who.owner)
        if new or row.state is InboxState.WAITING:
            self._working.take(row, self.busy_mode(update.platform))

    def _refusal(self, found: ParsedCommand | Unknown | None, who: Guest) -> str | None:
        """What somebody is told who may not write this now; `None` if they may."""
        name = found.command.name if isinstance(found, ParsedCommand) else ""
        if name not in NEVER_TOO_MANY and (told := self._rates.refusal(who.owner, self._clock.now())) is not None:
            return told
        leaves = isinstance(found, ParsedCommand) and found.command.leaves
        return FOR_ADMINS if name in self._withheld(who) and not leaves else None

    def _withheld(self, who: Guest) -> frozenset[str]:
        return withheld(self._gateway.admin_commands, admin=who.admin)

    async def _carry_out_unstored(
        self, update: Update, key: SessionKey, owner: str, who: Guest, order: ParsedCommand
    ) -> None:
        name = _name("said", update)
        if await self._store.read_inline(lambda uow: uow.outbox.reply(name)) is not None:
            return
        scope = account_of(update.platform, update.user)
        desk = replace(
            self._desk(key, owner, update),
            withheld=self._withheld(who),
            pair=partial(self._pairings.approve, scope=scope),
        )
        said = await carry_out(desk, order)
        await self._say(name, key, owner, said.text)
        if said.posts:
            await self._delivery.sweep()

    async def _turn_away(self, update: Update, key: SessionKey, who: Guest, told: str) -> None:
        self.turned_away += 1
        if told:
            await self._say(_name("door", update), key, who.owner, told)

    async def _say(self, name: str, key: SessionKey, owner: str, text: str) -> None:
        """Once, however often the update is delivered."""
        reply = Reply(name, key, "", owner, text, ReplyState.READY, self._clock.now())
        stored = await self._store.write(
            lambda uow: None if uow.outbox.reply(name) is not None else uow.outbox.put_reply(reply)
        )
        if stored is not None:
            self._delivery.put(stored)

    def busy_mode(self, platform: str) -> str:
        account = self._accounts.get(platform)
        return (account.busy if account is not None else None) or self._gateway.busy

    def _sharings(self, platform: str) -> Sharings:
        account = self._accounts.get(platform)
        return Sharings(account.groups, account.threads) if account is not None else Sharings()


def _check_names(update: Update) -> None:
    """Raises `BadInput` for what no platform calls anything by, and no file can hold."""
    names = (update.account, update.update_id, update.chat, update.thread or "", update.user)
    if any(whole(name) != name for name in names):
        raise BadInput("it has half a character in an id")


def _name(what: str, update: Update) -> str:
    """What is said to an update goes by a name, so that it is said once. What has no number never comes twice."""
    return f"{what}-{update.platform}-{update.account}-{update.update_id or token_hex(8)}"
