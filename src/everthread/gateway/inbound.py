"""Handle the updates of every platform: admit the sender, route to a session key, store before acknowledging."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from secrets import token_hex

import msgspec
from msgspec.structs import replace

from everthread.commands.context import CommandContext, sentence
from everthread.commands.registry import Command, ParsedCommand, UnknownCommand, hidden_commands, parse, run_command
from everthread.config.schema import PlatformAccount
from everthread.domain.backoff import Backoff
from everthread.domain.errors import BadInput, EverthreadError, QuotaReached, StoreError
from everthread.domain.model import Inbound, InboxState, Reply, ReplyState, SessionKey, replace_surrogates
from everthread.domain.pairing import format_account
from everthread.gateway.access import FOR_ADMINS, Access, RejectedSender, Sender
from everthread.gateway.attachments import AttachmentFetcher, Attachments
from everthread.gateway.command_runner import GatewayRuntime
from everthread.gateway.outbox import Outbox
from everthread.gateway.pairing import PairingOffers
from everthread.gateway.rate_limit import RateLimiter, commands_bucket
from everthread.gateway.routing import key_of, message_text, owner_of
from everthread.gateway.worker import Worker
from everthread.lifecycle.pairing import Pairings
from everthread.log_context import Private, log_fields
from everthread.ports.platform import Incoming, MovedChat, Unreadable, Update
from everthread.store.failed_updates import CONTENT_CHARS_MAX, RETRY_S_MAX, FailedUpdate
from everthread.store.incidents import Incident
from everthread.store.sql import to_json
from everthread.store.unit_of_work import UnitOfWork

log = logging.getLogger("everthread.gateway")

RETRY = Backoff(first_s=60.0, max_s=RETRY_S_MAX)
RETRIED_MAX = 20
FAILED = "Something went wrong here, and your message could not be handled. It is kept; I will try again."
FAILED_FOR_GOOD = (
    "Something went wrong here, and your message could not be handled. Send it again, or tell the operator."
)
FAILED_COMMAND = "Something went wrong here, and /{name} failed. Send it again if you still need it."
SAFETY_COMMANDS = ("stop", "help", "deny")
"""Commands that still work when the messages of a person are over the limit; they have a larger one of their own."""


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
        self.failed = 0

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
        log.warning("%s: skipped an unreadable update: %s", platform, Private(text), extra={"platform": platform})
        incident = Incident(self._clock.now(), "platform", None, text)
        await self._store.write(lambda uow: uow.incidents.add(incident))

    async def _handle_update(self, update: Update) -> None:
        try:
            await self._process(update)
        except EverthreadError:
            raise
        except Exception as error:
            # A bug. If the platform repeated the update, it would fail again and block the updates behind it.
            sender, key = await self._find_sender(update)
            owner = _owner_of_failed(update, sender, key)
            fields = log_fields(key, owner=owner) if key is not None else {"platform": update.platform, "owner": owner}
            log.exception("%s: could not handle an update", update.platform, extra=fields)
            await self._keep_failed(update, error, sender, key)

    async def _process(self, update: Update, *, is_retry: bool = False) -> None:
        try:
            _check_ids(update)
            key = key_of(update, self._settings.profile, self._account(update.platform))
            sender = await self._access.admit(update)
            if isinstance(sender, RejectedSender):
                self.rejected += 1
                if sender.may_pair:
                    await self._pairing_offers.offer(update, key)
            else:
                await self._accept(update, key, sender, is_retry=is_retry)
        except BadInput as error:
            # The platform cannot fix it either, so it is acknowledged.
            log.warning("%s: dropped an update: %s", update.platform, error, extra={"platform": update.platform})

    # --- Updates whose handling failed -------------------------------------------------------------------------------

    async def begin_retries(self) -> None:
        """Make all kept updates due at start: this version of the program may be able to handle them."""
        if await self._store.read_inline(lambda uow: uow.failed_updates.newest(1)):
            await self._store.write(lambda uow: uow.failed_updates.make_due(self._clock.now()))

    async def retry_failed(self) -> None:
        """Retry the kept updates that are due, the oldest first."""
        now = self._clock.now()
        for row in await self._store.read_inline(lambda uow: uow.failed_updates.due(now, RETRIED_MAX)):
            await self._retry(row)

    async def _retry(self, row: FailedUpdate) -> None:
        fields = {"platform": row.platform}
        try:
            update = msgspec.json.decode(row.content, type=Update)
            await self._process(await self._with_known_chat(update), is_retry=True)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - it failed before; the traceback was logged then
            problem, pause_s = type(error).__name__, RETRY.delay_s(row.attempts + 1)
            log.warning(
                "%s: handling an update failed again (%s); retrying in %.0f s",
                row.platform,
                problem,
                pause_s,
                extra=fields,
            )
            retry_at = self._clock.now() + pause_s
            await self._store.write(lambda uow: uow.failed_updates.record_failure(row.id, problem, retry_at))
        else:
            await self._store.write(lambda uow: uow.failed_updates.remove(row.id))
            log.info("%s: handled an update that had failed before", row.platform, extra=fields)

    async def _keep_failed(
        self, update: Update, error: Exception, sender: Sender | RejectedSender | None, key: SessionKey | None
    ) -> None:
        """Keep an update for a retry if it may be handled late, record an incident, and tell the sender once."""
        self.failed += 1
        now, problem = self._clock.now(), type(error).__name__
        if isinstance(sender, RejectedSender):
            return
        owner = _owner_of_failed(update, sender, key)
        command = _immediate_command(update)
        row = _failed_update(update, owner, problem, now) if command is None else None
        if command is not None:
            fate, says = "a command that runs at once is not retried", FAILED_COMMAND.format(name=command.name)
        elif row is not None:
            fate, says = "it is kept and retried", FAILED
        else:
            fate, says = "it can't be kept", FAILED_FOR_GOOD
        text = f"{update.platform}: handling update {update.update_id} failed ({problem}); {fate}. See everthread logs"
        reply = None
        if sender is not None and key is not None:
            reply = Reply(_reply_id("failed", update), key, "", owner, says, ReplyState.READY, now)

        def keep(uow: UnitOfWork) -> Reply | None:
            if row is not None:
                uow.failed_updates.add(row)
            uow.incidents.add(Incident(now, "inbound", None, text))
            if reply is None or uow.outbox.reply(reply.turn_id) is not None:
                return None
            return uow.outbox.put_reply(reply)

        if (stored := await self._store.write(keep)) is not None:
            self._outbox.put(stored)

    async def _find_sender(self, update: Update) -> tuple[Sender | RejectedSender | None, SessionKey | None]:
        """Return the sender and the session key of a failed update; None for both if finding them fails."""
        try:
            _check_ids(update)
            key = key_of(update, self._settings.profile, self._account(update.platform))
            return await self._access.admit(update), key
        except StoreError:
            raise
        except Exception:  # noqa: BLE001 - the traceback was logged with the failure of the update
            return None, None

    async def _accept(self, update: Update, key: SessionKey, sender: Sender, *, is_retry: bool) -> None:
        owner = owner_of(key, sender.owner)
        found = parse(update.text)
        if (refusal := self._refusal(found, sender, is_retry=is_retry)) is not None:
            self.rejected += 1
            if refusal:
                await self._reply(_reply_id("door", update), key, sender.owner, refusal)
            return
        if isinstance(found, ParsedCommand) and await self.runs_unstored(found.command, key):
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
        try:
            row, is_new = await self._lifecycle.accept(inbound)
        except QuotaReached as error:
            self.rejected += 1
            await self._reply(_reply_id("door", update), key, owner, sentence(error))
            return
        self.accepted += is_new
        if not is_new and not is_retry:
            # An update that the platform repeats does not count against the sender's rate limit.
            name = found.command.name if isinstance(found, ParsedCommand) else ""
            self._rate_limiter.refund(bucket_of(sender.owner, name))
        if is_new or row.state is InboxState.WAITING:
            self._worker.submit(row, self.busy_mode(update.platform))

    def _refusal(self, found: ParsedCommand | UnknownCommand | None, sender: Sender, *, is_retry: bool) -> str | None:
        """Return the refusal for a sender who may not write this now; `None` if they may.

        The rate limit does not refuse a retry: the sender was told that the message is kept.
        """
        name = found.command.name if isinstance(found, ParsedCommand) else ""
        if not is_retry and (refusal := self.over_limit(sender.owner, name)) is not None:
            return refusal
        leaves = isinstance(found, ParsedCommand) and found.command.terminal_only
        return FOR_ADMINS if name in self._hidden_from(sender) and not leaves else None

    def over_limit(self, owner: str, command_name: str) -> str | None:
        """Count one message or command of a person; return the refusal, or `None` if it is within the limit."""
        now = self._clock.elapsed()
        if command_name in SAFETY_COMMANDS:
            return self._rate_limiter.command_refusal(owner, now)
        return self._rate_limiter.refusal(owner, now)

    async def runs_unstored(self, command: Command, key: SessionKey) -> bool:
        """Return true if a command is not stored: it never is, or there is nothing at the key that it could stop."""
        if command.unstored or command.name not in SAFETY_COMMANDS:
            return command.unstored
        return not await self._store.read_inline(lambda uow: _is_busy(uow, key))

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


def bucket_of(owner: str, command_name: str) -> str:
    """Return the bucket in which a message or command of a person counts."""
    return commands_bucket(owner) if command_name in SAFETY_COMMANDS else owner


def _is_busy(uow: UnitOfWork, key: SessionKey) -> bool:
    """Return true if a message or command waits at the key, or its session has a running turn."""
    if uow.inbox.has_open(key):
        return True
    ref = uow.sessions.ref(key)
    return ref is not None and uow.slots.live(ref.session_id) is not None


def _check_ids(update: Update) -> None:
    """Raise `BadInput` for ids with lone surrogates, which the store cannot hold."""
    ids = (update.account, update.update_id, update.chat, update.thread or "", update.user)
    if any(replace_surrogates(text) != text for text in ids):
        raise BadInput("an id contains an invalid character (lone surrogate)")


def _owner_of_failed(update: Update, sender: Sender | RejectedSender | None, key: SessionKey | None) -> str:
    if isinstance(sender, Sender) and key is not None:
        return owner_of(key, sender.owner)
    return format_account(update.platform, update.user)


def _immediate_command(update: Update) -> Command | None:
    """Return the command of an update that must not be handled late: it would act on another turn, or is secret.

    `/queue` may be late like any message.
    """
    try:
        found = parse(update.text)
    except TypeError:  # A broken adapter may give a text of any type.
        return None
    if not isinstance(found, ParsedCommand) or not found.command.skips_queue or found.command.name == "queue":
        return None
    return found.command


def _failed_update(update: Update, owner: str, problem: str, now: float) -> FailedUpdate | None:
    """Make the row of an update to retry; None if it can't be kept. A broken adapter may give values of any type."""
    try:
        content = to_json(update)
    except (TypeError, ValueError):
        return None
    if len(content) > CONTENT_CHARS_MAX:
        return None
    return FailedUpdate(
        platform=update.platform,
        account=str(update.account or ""),
        update_id=str(update.update_id or ""),
        user=str(update.user or ""),
        owner=owner,
        content=content,
        problem=problem,
        attempts=1,
        at=now,
        retry_at=now + RETRY.first_s,
    )


def _reply_id(purpose: str, update: Update) -> str:
    """Derive the id of a reply from its update, so that it is sent once. An update without an id never repeats."""
    return f"{purpose}-{update.platform}-{update.account}-{update.update_id or token_hex(8)}"
