"""Handle the updates of every platform: admit the sender, route to a session key, store before acknowledging."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from secrets import token_hex

from msgspec.structs import replace

from everthread.commands.context import CommandContext
from everthread.commands.registry import ParsedCommand, UnknownCommand, hidden_commands, parse, run_command
from everthread.config.schema import PlatformAccount
from everthread.domain.errors import BadInput, EverthreadError
from everthread.domain.model import Inbound, InboxState, Reply, ReplyState, SessionKey, replace_surrogates
from everthread.domain.pairing import format_account
from everthread.gateway.access import FOR_ADMINS, Access, RejectedSender, Sender
from everthread.gateway.attachments import AttachmentFetcher, Attachments
from everthread.gateway.command_runner import GatewayRuntime
from everthread.gateway.outbox import Outbox
from everthread.gateway.pairing import PairingOffers
from everthread.gateway.rate_limit import RateLimiter
from everthread.gateway.routing import key_of, message_text, owner_of
from everthread.gateway.worker import Worker
from everthread.lifecycle.pairing import Pairings
from everthread.ports.platform import Incoming, MovedChat, Unreadable, Update
from everthread.store.incidents import Incident
from everthread.store.unit_of_work import UnitOfWork

log = logging.getLogger("everthread.gateway")

UNLIMITED_COMMANDS = ("stop", "help", "deny")
"""Commands that the rate limit never refuses."""


class InboundHandler:
    """The entry point of every update of every platform."""

    def __init__(
        self,
        runtime: GatewayRuntime,
        access: Access,
        pairings: Pairings,
        pairing_offers: PairingOffers,
        rate_limiter: RateLimiter,
        worker: Worker,
        outbox: Outbox,
        attachments: AttachmentFetcher,
        build_context: Callable[[SessionKey, str], CommandContext],
    ) -> None:
        self._lifecycle, self._store, self._clock = runtime.lifecycle, runtime.store, runtime.clock
        self._settings = runtime.settings
        self._access = access
        self._pairings = pairings
        self._pairing_offers = pairing_offers
        self._rate_limiter = rate_limiter
        self._worker = worker
        self._outbox = outbox
        self._attachments = attachments
        self._build_context = build_context
        self._moved: dict[tuple[str, str], str] | None = None
        """The known id of each moved chat, by platform and new id; `None` until it is read from the store."""
        self.accepted = 0
        self.rejected = 0

    async def handle(self, update: Incoming) -> None:
        """Return once the update is stored or rejected for good. Raise only if it could not be stored."""
        match update:
            case Update():
                await self._handle_update(await self._with_known_chat(update))
            case MovedChat():
                await self._move_chat(update)
            case Unreadable():
                await self._report_unreadable(update)

    async def _with_known_chat(self, update: Update) -> Update:
        """Replace the id of a moved chat with the id its sessions are stored under."""
        if self._moved is None:
            self._moved = await self._store.read_inline(lambda uow: uow.inbox.moved_chats())
        known_as = self._moved.get((update.platform, update.chat)) if self._moved else None
        return replace(update, chat=known_as) if known_as is not None else update

    async def _move_chat(self, moved: MovedChat) -> None:
        """Keep the sessions of a moved chat under their old id."""

        def move(uow: UnitOfWork) -> dict[tuple[str, str], str]:
            known_as = uow.inbox.moved_chats().get((moved.platform, moved.chat), moved.chat)
            uow.inbox.move_chat(moved.platform, moved.to, known_as)
            return uow.inbox.moved_chats()

        if moved.to != moved.chat:
            self._moved = await self._store.write(move)
            log.info("%s: a chat has moved", moved.platform, extra={"platform": moved.platform})

    async def _report_unreadable(self, unreadable: Unreadable) -> None:
        """Record an incident: the update is lost, and retrying would not help."""
        platform, number = unreadable.platform, unreadable.update_id
        text = (
            f"{platform}: update {number} could not be read ({unreadable.problem}) and was skipped; "
            "if this happens again, look for a newer version of the program"
        )
        log.warning("%s", text, extra={"platform": platform})
        incident = Incident(self._clock.now(), "platform", None, text)
        await self._store.write(lambda uow: uow.incidents.add(incident))

    async def _handle_update(self, update: Update) -> None:
        try:
            _check_ids(update)
            key = key_of(update, self._settings.profile, self._account(update.platform))
            sender = await self._access.admit(update)
            if isinstance(sender, RejectedSender):
                self.rejected += 1
                if sender.may_pair:
                    await self._pairing_offers.offer(update, key)
            else:
                await self._accept(update, key, sender)
        except BadInput as error:
            # The platform cannot fix it either, so it is acknowledged.
            log.warning("%s: dropped an update: %s", update.platform, error, extra={"platform": update.platform})
        except EverthreadError:
            raise
        except Exception:
            # A bug, which would happen again: the updates behind this one must not wait for ever.
            log.exception("%s: dropped an update", update.platform, extra={"platform": update.platform})

    async def _accept(self, update: Update, key: SessionKey, sender: Sender) -> None:
        owner = owner_of(key, sender.owner)
        found = parse(update.text)
        if (refusal := self._refusal(found, sender)) is not None:
            self.rejected += 1
            if refusal:
                await self._reply(_reply_id("door", update), key, sender.owner, refusal)
            return
        if isinstance(found, ParsedCommand) and found.command.unstored:
            await self._run_unstored(update, key, owner, sender, found)
            return
        if isinstance(found, ParsedCommand) and found.command.takes_message and found.argument:
            # The command stores the message itself, under the update's id.
            result = await run_command(self._context(update, key, owner), found)
            await self._reply(_reply_id("said", update), key, owner, result.text)
            self._worker.wake(key)
            return
        is_command = found is not None
        attachments = Attachments(()) if is_command else self._attachments.plan(update)
        text = update.text if is_command else message_text(replace(update, media=attachments.media), key)
        if attachments.notice:
            await self._reply(_reply_id("unheard", update), key, owner, attachments.notice)
        if not text:
            return
        inbound = Inbound(key, owner, text, update.account, update.update_id, is_command, update.user)
        inbound = replace(inbound, media=attachments.to_fetch, message_id=update.message_id)
        row, is_new = await self._lifecycle.accept(inbound)
        self.accepted += is_new
        if not is_new:
            # A platform that repeats an update does not use up the sender's limit.
            self._rate_limiter.refund(sender.owner)
        if is_new or row.state is InboxState.WAITING:
            self._worker.submit(row, self.busy_mode(update.platform))

    def _refusal(self, found: ParsedCommand | UnknownCommand | None, sender: Sender) -> str | None:
        """Return the text for a sender who may not write this now; `None` if they may."""
        name = found.command.name if isinstance(found, ParsedCommand) else ""
        if name not in UNLIMITED_COMMANDS:
            refusal = self._rate_limiter.refusal(sender.owner, self._clock.now())
            if refusal is not None:
                return refusal
        leaves = isinstance(found, ParsedCommand) and found.command.terminal_only
        return FOR_ADMINS if name in self._hidden_from(sender) and not leaves else None

    def _hidden_from(self, sender: Sender) -> frozenset[str]:
        return hidden_commands(self._settings.gateway.admin_commands, admin=sender.admin)

    def _context(self, update: Update, key: SessionKey, owner: str) -> CommandContext:
        context = self._build_context(key, owner)
        return replace(context, account=update.account, update_id=update.update_id, user=update.user)

    async def _run_unstored(
        self, update: Update, key: SessionKey, owner: str, sender: Sender, command: ParsedCommand
    ) -> None:
        reply_id = _reply_id("said", update)
        if await self._store.read_inline(lambda uow: uow.outbox.reply(reply_id)) is not None:
            return
        context = replace(
            self._context(update, key, owner),
            hidden_commands=self._hidden_from(sender),
            pair=partial(self._pairings.approve, scope=format_account(update.platform, update.user)),
        )
        result = await run_command(context, command)
        await self._reply(reply_id, key, owner, result.text)
        if result.wrote_outbox:
            await self._outbox.sweep()

    async def _reply(self, reply_id: str, key: SessionKey, owner: str, text: str) -> None:
        """Send a reply once, however often the update is delivered."""
        reply = Reply(reply_id, key, "", owner, text, ReplyState.READY, self._clock.now())
        stored = await self._store.write(
            lambda uow: None if uow.outbox.reply(reply_id) is not None else uow.outbox.put_reply(reply)
        )
        if stored is not None:
            self._outbox.put(stored)

    def busy_mode(self, platform: str) -> str:
        return self._account(platform).busy or self._settings.gateway.busy

    def _account(self, platform: str) -> PlatformAccount:
        return self._settings.platforms.get(platform) or PlatformAccount(platform)


def _check_ids(update: Update) -> None:
    """Raise `BadInput` for ids with lone surrogates, which the store cannot hold."""
    ids = (update.account, update.update_id, update.chat, update.thread or "", update.user)
    if any(replace_surrogates(text) != text for text in ids):
        raise BadInput("an id contains half a character")


def _reply_id(purpose: str, update: Update) -> str:
    """Derive the id of a reply from its update, so that it is sent once. An update without an id never repeats."""
    return f"{purpose}-{update.platform}-{update.account}-{update.update_id or token_hex(8)}"
