"""The gateway as a whole: every platform is listened to, what was left behind is taken up, and it ends in good time."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from everthread.agent.events import Reviewed
from everthread.agent.model_call import ModelChoice
from everthread.agent.skills.folders import SkillFolders
from everthread.agent.turn import Agent
from everthread.commands.registry import CommandContext, withheld
from everthread.config.settings import Settings
from everthread.domain.backoff import Backoff
from everthread.domain.errors import EverthreadError, PlatformError, PlatformUnavailable
from everthread.domain.model import ChatType, InboxRow, Reply, ReplyState, SessionKey
from everthread.gateway.access import Access
from everthread.gateway.approvals import Approvals
from everthread.gateway.attachments import Luggage, Unpacking
from everthread.gateway.inbound import InboundHandler
from everthread.gateway.loop_lag import Stalls
from everthread.gateway.outbox import Outbox
from everthread.gateway.pairing import Door
from everthread.gateway.rate_limit import Rates
from everthread.gateway.routing import is_shared
from everthread.gateway.scheduler import Scheduler
from everthread.gateway.streaming import LiveReply
from everthread.gateway.worker import Worker
from everthread.lifecycle import Lifecycle
from everthread.lifecycle.pairing import Pairings
from everthread.memory import MemoryManager
from everthread.memory.note_files import Notebook
from everthread.ports.clock import Clock
from everthread.ports.platform import Platform
from everthread.ports.transcriber import Transcriber
from everthread.store.unit_of_work import Store, UnitOfWork

log = logging.getLogger("everthread.gateway")

SWEEP_S = 5.0
RESTART = Backoff(first_s=1.0, max_s=15.0)
LEAVE_S = 0.3
"""What a platform gets to stop, or to close: one that takes longer is left behind."""
HTTP = "http"


class GatewayRuntime(Protocol):
    """The part of a wired-up core, with an agent, that a gateway uses."""

    settings: Settings
    lifecycle: Lifecycle
    store: Store
    clock: Clock
    agent: Agent
    memory: MemoryManager
    notebook: Notebook
    new_id: Callable[[], str]

    def choices(self, model: str = "") -> Sequence[ModelChoice]: ...
    def known_models(self) -> tuple[str, ...]: ...
    def scheduler(self, put: Callable[[Reply], None]) -> Scheduler: ...
    @property
    def skills(self) -> SkillFolders: ...


class PlatformState(Struct):
    """How a platform is doing."""

    up: bool = False
    problem: str = ""


class Gateway:
    """Serves every platform that it was given."""

    def __init__(
        self, runtime: GatewayRuntime, platforms: Sequence[Platform], transcriber: Transcriber | None = None
    ) -> None:
        """Without a `transcriber`, whoever speaks is asked to write."""
        self._runtime = runtime
        self._transcriber = transcriber
        self.settings, self.clock = runtime.settings, runtime.clock
        self.lifecycle, self.store, self.agent = runtime.lifecycle, runtime.store, runtime.agent
        self.new_id = runtime.new_id
        self.platforms: Mapping[str, Platform] = {platform.name: platform for platform in platforms}
        self.states = {name: PlatformState() for name in self.platforms}
        self.delivery = Outbox(self.store, self.clock, self.platforms, random.random)
        self.access = Access(self.store, self.settings.gateway, self.settings.platforms, self.settings.owner)
        self.approvals = Approvals(
            self.store,
            self.clock,
            self.delivery,
            self.platforms,
            self.access.may_approve,
            secrets.choice,
            wait_s=self.settings.gateway.approval_s,
        )
        luggage = Luggage(self.platforms, self.settings.media_path, transcriber, self.clock)
        unpacking = Unpacking(self.store, self.clock, luggage, self.delivery)
        self.working = Worker(self, self.delivery, lambda platform: platform in self.platforms, unpacking)
        pairings = Pairings(self.store, self.clock)
        self.rates = Rates(self.settings.gateway.messages_per_minute)
        self.door = Door(pairings, self.platforms, secrets.choice)
        self.reception = InboundHandler(
            self.lifecycle,
            self.store,
            self.clock,
            self.access,
            pairings,
            self.door,
            self.rates,
            self.working,
            self.delivery,
            luggage,
            lambda key, owner, update: replace(
                self.desk_at(key, owner, ""), account=update.account, update_id=update.update_id, user=update.user
            ),
            profile=self.settings.profile,
            gateway=self.settings.gateway,
            accounts=self.settings.platforms,
        )
        self.schedules = runtime.scheduler(self.delivery.put)
        self.stalls = Stalls(self.clock)
        self.started_at = 0.0
        self._began = 0.0
        self._listening: list[asyncio.Future[None]] = []
        self._telling: set[asyncio.Future[None]] = set()
        self.draining = False

    # --- What the work is done with (see `working.Bench`) ------------------------------------------------------------

    def choices(self, model: str = "") -> Sequence[ModelChoice]:
        return self._runtime.choices(model)

    def known_models(self) -> tuple[str, ...]:
        return self._runtime.known_models()

    def is_guest(self, owner: str) -> bool:
        return owner != self.settings.owner

    def desk(self, row: InboxRow, model: str) -> CommandContext:
        key, user = row.inbound.key, row.inbound.user
        return replace(
            self.desk_at(key, row.inbound.owner, model),
            order=row.id,
            user=user,
            decide=partial(self.approvals.answer, key, user),
            stop_next=partial(self.working.stop_next, key, row.id),
        )

    def desk_at(self, key: SessionKey, owner: str, model: str) -> CommandContext:
        withheld_here = withheld(self.settings.gateway.admin_commands, admin=False)
        reaches = self.access.reaches
        return CommandContext.build(self._runtime, key, owner, reaches, model=model, withheld=withheld_here)

    def showing(self, platform: str) -> LiveReply | None:
        there = self.platforms.get(platform)
        if there is None:
            return None
        account = self.settings.platforms.get(platform)
        edits = account is None or account.stream
        return LiveReply(there, self.lifecycle, self.clock, self.delivery.finding, edits=edits, since=self._began)

    # --- Coming and going --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take up what was left behind, then listen. Comes back at once: a platform that is down is tried again."""
        self.started_at = self.clock.now()
        self._began = asyncio.get_running_loop().time()
        await self.lifecycle.remove_files()
        await self.delivery.begin()
        await self.working.recover(self._is_served)
        self.agent.attend_to_reviews(self._hear_of_review, self._note_review)
        self._listening = [asyncio.ensure_future(self._listen(platform)) for platform in self.platforms.values()]
        self._listening += [asyncio.ensure_future(self._sweep()), asyncio.ensure_future(self.schedules.run())]
        self._listening += [asyncio.ensure_future(self.stalls.watch())]

    async def stop(self, drain_s: float | None = None) -> None:
        """Take nothing more in, let what runs end within the bound, give the rest back."""
        self.draining = True
        # By the loop's clock: the one on the wall may be put forward or back meanwhile.
        deadline = asyncio.get_running_loop().time() + (self.settings.gateway.drain_s if drain_s is None else drain_s)
        for task in self._listening:
            task.cancel()
        if self._listening:
            await asyncio.wait(self._listening, timeout=LEAVE_S)
        await self.door.finish()
        await asyncio.gather(self.working.finish(deadline), self.schedules.finish(deadline))
        await self.approvals.finish()
        await self.delivery.finish(deadline)
        closing = {asyncio.ensure_future(platform.aclose()): name for name, platform in self.platforms.items()}
        if closing:
            await asyncio.wait(closing, timeout=LEAVE_S)
        for task, name in closing.items():
            if not task.done():
                log.warning("%s did not close in time", name, extra={"platform": name})
                task.cancel()
            elif (error := task.exception()) is not None:
                log.warning("%s did not close well: %s", name, error, extra={"platform": name})
        if self._transcriber is not None:
            await self._transcriber.aclose()

    def _note_review(self, uow: UnitOfWork, event: Reviewed) -> None:
        ref, name = event.ref, f"reviewed-{event.ref.session_id}-{event.window.mark}"
        if self._is_told_of_reviews(ref.key) and uow.outbox.reply(name) is None:
            now = self.clock.now()
            uow.outbox.put_reply(Reply(name, ref.key, ref.session_id, ref.owner, event.text, ReplyState.READY, now))

    def _hear_of_review(self, event: Reviewed) -> None:
        if self._is_told_of_reviews(event.ref.key):
            telling = asyncio.ensure_future(self._tell_of_review())
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    def _is_told_of_reviews(self, key: SessionKey) -> bool:
        # What is noted of a person is not for others who read along.
        alone = key.chat_type is ChatType.DM or is_shared(key)
        return self.settings.gateway.review_notices and key.platform in self.platforms and alone

    async def _tell_of_review(self) -> None:
        """It is written: what is left undone here, the next sweep does."""
        try:
            await self.delivery.sweep()
        except EverthreadError as error:
            log.warning("what a review noted is told later: %s", error)

    def _is_served(self, platform: str) -> bool:
        return platform in self.platforms or platform in (HTTP, "hooks")

    async def _listen(self, platform: Platform) -> None:
        delays, state = RESTART.delays(), self.states[platform.name]
        while True:
            began_at, told_s = asyncio.get_running_loop().time(), 0.0
            try:
                state.up = True
                await platform.run(self.reception.take)
            except PlatformUnavailable as error:
                state.problem, told_s = str(error), error.retry_after
            except PlatformError as error:
                state.problem = str(error)
            except EverthreadError as error:
                # It could not be stored: it was not acknowledged, so it comes again.
                state.problem = str(error)
            except Exception as error:
                log.exception("%s failed", platform.name, extra={"platform": platform.name})
                state.problem = repr(error)
            else:
                state.problem = "it stopped"
            state.up = False
            if asyncio.get_running_loop().time() - began_at > RESTART.max_s:
                # What was wrong before that is over.
                delays = RESTART.delays()
            # Who says how long to wait is asked again right after that; who says nothing, ever less often.
            wait_s = max(told_s, RESTART.first_s) if told_s else next(delays)
            log.warning(
                "%s: %s; tried again in %.0f s",
                platform.name,
                state.problem,
                wait_s,
                extra={"platform": platform.name},
            )
            await self.clock.sleep(wait_s)

    async def _sweep(self) -> None:
        """Now and then, look for what nobody was told of: a killed process's turns, a notice written by a timer."""
        while True:
            await self.clock.sleep(SWEEP_S)
            try:
                await self.working.recover(self._is_served)
                await self.delivery.sweep()
            except EverthreadError as error:
                log.warning("what was left behind is looked for again later: %s", error)
            except Exception:
                log.exception("what was left behind is looked for again later")
