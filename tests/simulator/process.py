"""Simulated process: real lifecycle, memory and lanes, and a loop that answers messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from everthread.adapters.lanes.local import LocalLanes
from everthread.adapters.sqlite.connection import Connection
from everthread.domain.errors import Busy, EverthreadError, Fenced, Outdated, StoreError, TurnCancelled
from everthread.domain.model import (
    ChatType,
    Lease,
    Message,
    NoteAction,
    NoteTarget,
    NoteVersion,
    Role,
    SessionKey,
    SessionRef,
)
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.lifecycle import Lifecycle, NoteChange, TurnClaim
from everthread.lifecycle.forget import is_forgotten
from everthread.lifecycle.notes import write_note
from everthread.memory import MemoryManager, NoteFiles
from everthread.memory.delivery_results import Limits
from everthread.store.derived_text import WRITTEN
from everthread.store.unit_of_work import UnitOfWork
from tests.simulator import operations as asked
from tests.simulator.backends import Backend, SimProvider
from tests.simulator.environment import LEASE_S, OPERATION, Faults, SimClock, SimProcess, SimStore
from tests.simulator.home import Home
from tests.simulator.plugin import QUEUED_HOOKS, ObservedHooks, SimPlugin, loaded
from tests.simulator.reference_model import ReferenceModel

T = TypeVar("T")

POLL_S = 4.0
RECOVER_S = 5.0
LIMITS = Limits(attempt_s_max=5.0, backoff_s=0.2, backoff_s_max=5.0, breaker_failures=4, breaker_s=4.0)
POLICIES = ResetPolicies(ResetPolicy(), by_chat_type={ChatType.GROUP: ResetPolicy(idle_s=20.0)})
HOOKS = frozenset({"on_session_finalize", "on_session_reset"})
KEYS = {
    SessionKey("main", "cli", ChatType.DM, "1"): "ann",
    SessionKey("main", "telegram", ChatType.DM, "2"): "ann",
    SessionKey("main", "telegram", ChatType.GROUP, "3", user="4"): "bob",
}


class SimEnvironment(Protocol):
    """Environment of a process."""

    clock: SimClock
    database: Connection
    faults: Faults
    reference: ReferenceModel
    backends: dict[str, Backend]
    hooks_called: dict[SessionKey, list[tuple[str, str]]]
    home: Home | None

    def new_id(self) -> str: ...
    def observe(self, operation: object | None, result: object) -> None: ...
    def attempt_began(self, provider: str, process: str) -> None: ...
    def hook_called(self, key: SessionKey, hook: str, about: str) -> None: ...
    def log_step(self, *what: object) -> None: ...


class Server(SimProcess):
    """A simulated Everthread process."""

    def __init__(self, fixture: SimEnvironment, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self._town = fixture
        self._answering: set[SessionKey] = set()
        self.store = SimStore(fixture.database, self, fixture.faults, fixture.observe)
        self.lanes = LocalLanes(self.store, fixture.clock, name, lease_s=LEASE_S, poll_s=POLL_S)
        self.hook_names = QUEUED_HOOKS if fixture.faults.extended else HOOKS
        plugin = SimPlugin(self, fixture.faults, fixture.hook_called) if fixture.faults.extended else None
        self.hooks = ObservedHooks(self.store, fixture.clock, loaded(plugin), wake=self.lanes.wake)
        self.lifecycle = self._make_lifecycle()
        providers = [
            SimProvider(backend, self, fixture.faults, fixture.attempt_began) for backend in fixture.backends.values()
        ]
        self.memory = MemoryManager(
            providers, self.store, fixture.clock, self.lanes, random=self.random.random, limits=LIMITS
        )

    def _make_lifecycle(self) -> Lifecycle:
        fixture = self._town
        files: dict[str, Any] = {}
        if fixture.home is not None:
            self.note_files = self._make_note_files(fixture.home)
            files = {"home_files": fixture.home.files, "sync_notes": self.sync_notes}
        return Lifecycle(
            self.store,
            fixture.clock,
            fixture.new_id,
            holder=self.name,
            policies=POLICIES,
            hooks=self.hook_names,
            **files,
        )

    def _make_note_files(self, home: Home) -> NoteFiles:
        fixture = self._town

        def write(
            uow: UnitOfWork, action: NoteAction, target: NoteTarget, content: str, note_id: str, owner: str
        ) -> NoteVersion:
            change = NoteChange(action, target, content, note_id, imported=True)
            now = fixture.clock.now()
            return write_note(uow, change, WRITTEN, owner=owner, ref=None, new_id=fixture.new_id(), now=now)

        return NoteFiles(self.store, write, home.folder_of, is_forgotten)

    async def sync_notes(self, owner: str) -> str:
        """Synchronise the note files as the runtime does: a problem is no error."""
        try:
            await self.does(asked.SyncNotes(owner), self.note_files.sync(owner))
        except (OSError, EverthreadError) as error:
            return str(error)
        return ""

    async def run(self) -> None:
        await self.retry_until_done(self.memory.start)
        if self._town.faults.extended:
            self.lanes.serve(self.hooks.lane, self.hooks.drain)
            self.lanes.serve("timers", lambda lease: self.does(asked.ExpireDue(), self.lifecycle.expire_due(lease)))
        else:
            self.lanes.serve("hooks", self._run_hooks)
            self.lanes.serve("timers", self.lifecycle.expire_due)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.lanes.run())
            tasks.create_task(self._recover())
            while True:
                await asyncio.sleep(self.random.uniform(0.2, 1.0))
                for key in KEYS:
                    if self._town.reference.waiting[key] and key not in self._answering:
                        tasks.create_task(self._answer_next(key))

    async def does(self, operation: object, work: Awaitable[T]) -> T:
        """Report the operation, so that the reference model can check its commit."""
        token = OPERATION.set(operation)
        try:
            return await work
        finally:
            OPERATION.reset(token)

    async def retry_until_done(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retry while the disk is busy or full."""
        while True:
            try:
                return await work()
            except StoreError:
                await self._town.clock.sleep(0.5)

    async def _answer_next(self, key: SessionKey) -> None:
        """Answer the next message of a key. A slow key delays no other."""
        self._answering.add(key)
        try:
            await asyncio.sleep(self.random.uniform(0.0, 0.6))
            claim = await self.does(asked.Begin(key), self.lifecycle.begin_turn(key))
            if claim is not None:
                await self._answer(claim)
        except (Busy, StoreError) as error:
            self._town.log_step(f"{self.name}: {error}")
        finally:
            self._answering.discard(key)

    async def _recover(self) -> None:
        while True:
            try:
                for turn_id in await self.does(asked.Recover(), self.lifecycle.recover()):
                    claim = await self.does(asked.TakeOver(), self.lifecycle.resume_turn(turn_id))
                    if claim is not None:
                        await self._answer(claim)
            except StoreError as error:
                self._town.log_step(f"{self.name}: {error}")
            await self._town.clock.sleep(RECOVER_S)

    async def _answer(self, claim: TurnClaim) -> None:
        """Run one turn: a tool call, sometimes a note, a pause, the commit."""
        dice = self.random
        try:
            if dice.random() < 0.2 and not claim.tools:
                await self._look(claim)
            if dice.random() < 0.15:
                await self.retry_until_done(
                    lambda: self.note(claim.ref, f"note in {claim.message.inbound.text.split()[0]}")
                )
            await self._town.clock.sleep(dice.choice((0.0, 0.3, 1.0, 6.0)) * dice.random())
            if self._town.faults.extended and self.store_random.random() < 0.3:
                await self.retry_until_done(lambda: self._note_in_turn(claim))
            if dice.random() < 0.06:
                await self.retry_until_done(lambda: self.does(asked.Abandon(claim), self.lifecycle.abandon_turn(claim)))
                return
            text = claim.message.inbound.text
            messages = (Message(Role.USER, text), Message(Role.ASSISTANT, f"answer to {text}"))
            interrupted = dice.random() < 0.1
            operation = asked.Commit(claim, interrupted)
            await self.retry_until_done(
                lambda: self.does(
                    operation, self.lifecycle.commit_turn(claim, messages, "answer", interrupted=interrupted)
                )
            )
        except Fenced:
            self._town.log_step(f"{self.name}: fenced out of {claim.turn_id}")
        except EverthreadError as error:
            self._town.log_step(f"{self.name}: {error}")

    async def _look(self, claim: TurnClaim) -> None:
        """Call a tool, unless a boundary has cancelled the turn."""
        try:
            await self.retry_until_done(lambda: self.lifecycle.start_tool(claim, "c1", "look", "{}"))
        except TurnCancelled:
            return
        await self._town.clock.sleep(self.random.random())
        await self.retry_until_done(lambda: self.lifecycle.finish_tool(claim, "c1", "seen"))

    async def _note_in_turn(self, claim: TurnClaim) -> None:
        """Write a note as a tool does. It is refused if something was forgotten while the turn ran."""
        content = f"noted in {claim.message.inbound.text.split()[0]}"
        change = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, content, turn_id=claim.turn_id)
        try:
            await self.write_note(change, claim.ref.owner, claim.ref)
        except Outdated:
            self._town.faults.hit["note of a turn refused"] += 1

    async def note(self, ref: SessionRef, text: str) -> None:
        change = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, text)
        await self.write_note(change, ref.owner, ref)

    async def write_note(self, change: NoteChange, owner: str, ref: SessionRef | None) -> None:
        await self.does(asked.Note(ref, owner, change), self.lifecycle.write_note(change, owner=owner, ref=ref))

    async def _run_hooks(self, lease: Lease) -> float | None:
        """Run hooks as a plugin would see them, in histories of version 1."""
        for hook in await self.store.read(lambda uow: uow.leases.hooks(20)):
            await self.store.write(lambda uow: uow.leases.check(lease))
            self._town.hooks_called[hook.key].append((hook.call.hook, hook.call.session_id))

            def done(uow: Any, hook_id: int = hook.id) -> None:
                uow.leases.check(lease)
                uow.leases.drop_hook(hook_id)

            await self.store.write(done)
        return None
