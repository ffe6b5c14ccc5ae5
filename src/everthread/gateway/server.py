"""The gateway: listen on every platform, recover unfinished work, and drain on shutdown."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from everthread.agent.events import Reviewed
from everthread.agent.skills.history import SkillChange
from everthread.commands.context import CommandContext
from everthread.commands.registry import hidden_commands
from everthread.concurrency import cancel_tasks
from everthread.domain.backoff import Backoff
from everthread.domain.errors import EverthreadError, PlatformUnavailable
from everthread.domain.model import HOOKS_PLATFORM, ChatType, InboxRow, Reply, ReplyState, SessionKey
from everthread.gateway.access import Access
from everthread.gateway.approvals import Approvals
from everthread.gateway.attachments import AttachmentFetcher, AttachmentQueue
from everthread.gateway.command_runner import GatewayRuntime
from everthread.gateway.inbound import InboundHandler
from everthread.gateway.outbox import Outbox
from everthread.gateway.pairing import PairingOffers
from everthread.gateway.rate_limit import RateLimiter
from everthread.gateway.routing import is_shared
from everthread.gateway.streaming import LiveReply
from everthread.gateway.worker import Worker
from everthread.lifecycle.pairing import Pairings
from everthread.log_context import Private
from everthread.ports.clock import Clock
from everthread.ports.platform import Platform
from everthread.ports.transcriber import Transcriber
from everthread.store.unit_of_work import UnitOfWork

log = logging.getLogger("everthread.gateway")

SWEEP_S = 5.0
RESTART = Backoff(first_s=1.0, max_s=15.0)
CLOSE_S = 0.3
"""The time a platform gets to stop, or to close; a slower one is abandoned."""
HTTP = "http"
LAG_INTERVAL_S = 0.1
LAG_LOGGED_S = 0.5


class PlatformState(Struct):
    """The connection state of a platform."""

    up: bool = False
    problem: str = ""


class LoopLagMonitor:
    """Measures how long the event loop was blocked: sleeps for an interval and records how late it wakes up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.longest_s = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_INTERVAL_S
            await self._clock.sleep(LAG_INTERVAL_S)
            late_s = loop.time() - due
            self.longest_s = max(self.longest_s, late_s)
            if late_s > LAG_LOGGED_S:
                log.warning("the event loop was blocked for %.1f s", late_s)


class Gateway:
    """Serves every platform of a runtime."""

    def __init__(
        self, runtime: GatewayRuntime, platforms: Sequence[Platform], transcriber: Transcriber | None = None
    ) -> None:
        """Without a `transcriber`, senders of voice messages are asked to write."""
        self._runtime = runtime
        self._transcriber = transcriber
        self.settings, self.clock = runtime.settings, runtime.clock
        self.lifecycle, self.store, self.agent = runtime.lifecycle, runtime.store, runtime.agent
        self.new_id, self.choices, self.known_models = runtime.new_id, runtime.choices, runtime.known_models
        self.rights = runtime.rights
        self.platforms: Mapping[str, Platform] = {platform.name: platform for platform in platforms}
        self.states = {name: PlatformState() for name in self.platforms}
        self.outbox = Outbox(self.store, self.clock, self.platforms, random.random)
        self.access = Access(self.store, self.settings.gateway, self.settings.platforms, self.settings.owner)
        self.approvals = Approvals(runtime, self.outbox, self.platforms, self.access, secrets.choice)
        attachments = AttachmentFetcher(self.platforms, self.settings.media_path, transcriber, self.clock)
        self.worker = Worker(
            runtime,
            self.outbox,
            AttachmentQueue(self.store, self.clock, attachments, self.outbox),
            self.approvals,
            live_reply=self._live_reply,
            build_context=self._inbox_context,
        )
        pairings = Pairings(self.store, self.clock)
        self.rate_limiter = RateLimiter(self.settings.gateway.messages_per_minute)
        self.pairing_offers = PairingOffers(pairings, self.platforms, secrets.choice)
        self.inbound = InboundHandler(
            runtime,
            self.access,
            pairings,
            self.pairing_offers,
            self.rate_limiter,
            self.worker,
            self.outbox,
            attachments,
            self.command_context,
        )
        self.scheduler = runtime.scheduler(self.outbox.put)
        self.loop_lag = LoopLagMonitor(self.clock)
        self.started_at = 0.0
        self._started_elapsed_s = 0.0
        self._started_loop_s = 0.0
        self._tasks: list[asyncio.Future[None]] = []
        self._notices: set[asyncio.Future[None]] = set()
        self.draining = False

    def command_context(self, key: SessionKey, owner: str, model: str = "") -> CommandContext:
        """Build the context of a command that `owner` gives at `key`."""
        hidden = hidden_commands(self.settings.gateway.admin_commands, admin=False)
        reaches = self.access.reaches
        context = CommandContext(self._runtime, key, owner, model, reaches=reaches, hidden_commands=hidden)
        return replace(context, decide=partial(self.approvals.answer, key, ""))

    def _inbox_context(self, row: InboxRow, model: str) -> CommandContext:
        key, user = row.inbound.key, row.inbound.user
        return replace(
            self.command_context(key, row.inbound.owner, model),
            order=row.id,
            user=user,
            decide=partial(self.approvals.answer, key, user),
            stop_next=partial(self.worker.stop_next, key, row.id),
        )

    def _live_reply(self, name: str) -> LiveReply | None:
        platform = self.platforms.get(name)
        if platform is None:
            return None
        account = self.settings.platforms.get(name)
        edits = account is None or account.stream
        check, since = self.outbox.delivery_check, self._started_loop_s
        return LiveReply(platform, self.lifecycle, self.clock, check, edits=edits, since=since)

    @property
    def uptime_s(self) -> float:
        return self.clock.elapsed() - self._started_elapsed_s

    # --- Start and stop ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover unfinished work, then listen. Does not wait for platforms: one that is down is retried."""
        self.started_at, self._started_elapsed_s = self.clock.now(), self.clock.elapsed()
        self._started_loop_s = asyncio.get_running_loop().time()
        await self.lifecycle.remove_files()
        await self.outbox.begin()
        await self.worker.recover(self._is_served)
        await self.inbound.begin_retries()
        self.agent.start_reviews(self._on_reviewed, self._store_review_notice)
        work = [self._listen(platform) for platform in self.platforms.values()]
        work += [self._sweep(), self.scheduler.run(), self.loop_lag.run()]
        self._tasks = [asyncio.ensure_future(each) for each in work]

    async def stop(self, drain_s: float | None = None) -> None:
        """Accept nothing more, let running work end within the bound, and release the rest."""
        self.draining = True
        # By the loop's clock: the wall clock may be adjusted meanwhile.
        deadline = asyncio.get_running_loop().time() + (self.settings.gateway.drain_s if drain_s is None else drain_s)
        await cancel_tasks(self._tasks, CLOSE_S)
        await self.pairing_offers.finish()
        await asyncio.gather(self.worker.finish(deadline), self.scheduler.finish(deadline))
        await self.approvals.finish()
        await self.outbox.finish(deadline)
        closing = {asyncio.ensure_future(platform.aclose()): name for name, platform in self.platforms.items()}
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_S)
        for task, name in closing.items():
            if not task.done():
                log.warning("%s did not close in time", name, extra={"platform": name})
                task.cancel()
            elif (error := task.exception()) is not None:
                log.warning("%s failed to close: %s", name, error, extra={"platform": name})
        if self._transcriber is not None:
            await self._transcriber.aclose()

    @property
    def delivery_problem(self) -> str:
        """The error that stopped the delivery lanes, until they are restarted; empty if they run."""
        return self._runtime.lanes_problem

    @property
    def lane_restarts(self) -> int:
        return self._runtime.lane_restarts

    def skill_changes(self) -> list[SkillChange]:
        """Return the logged changes of the skills, the newest first."""
        return self._runtime.skills.changes()

    def _is_served(self, platform: str) -> bool:
        return platform in self.platforms or platform in (HTTP, HOOKS_PLATFORM)

    async def _listen(self, platform: Platform) -> None:
        delays, state = RESTART.delays(), self.states[platform.name]
        while True:
            began_at, retry_after_s = asyncio.get_running_loop().time(), 0.0
            try:
                state.up = True
                await platform.run(self.inbound.handle)
            except PlatformUnavailable as error:
                state.problem, retry_after_s = str(error), error.retry_after
            except EverthreadError as error:
                # An update that could not be stored was not acknowledged, so the platform delivers it again.
                state.problem = str(error)
            except Exception as error:
                log.exception("%s failed", platform.name, extra={"platform": platform.name})
                state.problem = repr(error)
            else:
                state.problem = "it stopped"
            state.up = False
            if asyncio.get_running_loop().time() - began_at > RESTART.max_s:
                # The connection was up for a while: start the backoff again.
                delays = RESTART.delays()
            wait_s = max(retry_after_s, RESTART.first_s) if retry_after_s else next(delays)
            log.warning(
                "%s: %s; retrying in %.0f s",
                platform.name,
                Private(state.problem, "disconnected"),
                wait_s,
                extra={"platform": platform.name},
            )
            await self.clock.sleep(wait_s)

    async def _sweep(self) -> None:
        """Poll for work nobody announced: turns of a killed process, notices of a timer, updates to retry."""
        problem = ""
        while True:
            await self.clock.sleep(SWEEP_S)
            try:
                await self.worker.recover(self._is_served)
                await self.outbox.sweep()
                await self.inbound.retry_failed()
                problem = ""
            except EverthreadError as error:
                # Once for each problem: the store may be unavailable for long.
                if str(error) != problem:
                    problem = str(error)
                    log.warning("recovery failed; retrying: %s", error)
            except Exception:
                log.exception("recovery failed; retrying")

    # --- Review notices ----------------------------------------------------------------------------------------------

    def _store_review_notice(self, uow: UnitOfWork, event: Reviewed) -> None:
        ref, name = event.ref, f"reviewed-{event.ref.session_id}-{event.window.mark}"
        if self._has_review_notices(ref.key) and uow.outbox.reply(name) is None:
            now = self.clock.now()
            uow.outbox.put_reply(Reply(name, ref.key, ref.session_id, ref.owner, event.text, ReplyState.READY, now))

    def _on_reviewed(self, event: Reviewed) -> None:
        if self._has_review_notices(event.ref.key):
            sending = asyncio.ensure_future(self._send_review_notice())
            self._notices.add(sending)
            sending.add_done_callback(self._notices.discard)

    def _has_review_notices(self, key: SessionKey) -> bool:
        # Notes about one person are not for other readers of a group.
        alone = key.chat_type is ChatType.DM or is_shared(key)
        return self.settings.gateway.review_notices and key.platform in self.platforms and alone

    async def _send_review_notice(self) -> None:
        """Send the stored notice; if this fails, the next sweep does."""
        try:
            await self.outbox.sweep()
        except EverthreadError as error:
            log.warning("a review notice is sent later: %s", error)
