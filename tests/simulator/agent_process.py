"""Simulated process with agents: real turns, compressions, reviews and delegated work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from everthread.agent.compression.service import Compressor
from everthread.agent.compression.summarizer import Summarizer
from everthread.agent.delegation import Delegation, tools_of_children
from everthread.agent.events import TurnEvent
from everthread.agent.model_call import ModelCaller, ModelChoice
from everthread.agent.note_compaction import NoteSpace, Wrote
from everthread.agent.prompt import PromptBuilder
from everthread.agent.prompt_cache import Preparer
from everthread.agent.review import Reviewer, review_tools
from everthread.agent.skills.folders import SkillFolders
from everthread.agent.store_retry import StoreRetries
from everthread.agent.titles import Titler
from everthread.agent.tools.memory import memory_tool
from everthread.agent.tools.runner import Toolbox, ToolRunner
from everthread.agent.tools.session_tools import SessionTools
from everthread.agent.turn import Agent
from everthread.agent.turn_options import TurnLimits, TurnOptions
from everthread.config.schema import CompressionSettings, ReviewSettings
from everthread.domain.errors import Busy, EverthreadError
from everthread.domain.model import ChatType, NoteTarget, SessionKey, SessionRef
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.domain.review_window import Review
from everthread.domain.rights import OWNER_RIGHTS
from everthread.lifecycle import Lifecycle
from everthread.ports.context import Middle, Rollover
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse
from tests.simulator.agent_model import SimModel, SimModelState
from tests.simulator.observed_lifecycle import ObservedLifecycle
from tests.simulator.process import RECOVER_S, Server, SimEnvironment

POLICIES = ResetPolicies(ResetPolicy(), by_chat_type={ChatType.GROUP: ResetPolicy(idle_s=90.0)})
REVIEW_EVERY = 4
COMPRESSION = CompressionSettings(share=0.25, tail_tokens=900)
OUTPUT_TOKENS = 1_000
NOTE_CHARS_MAX = {NoteTarget.MEMORY: 45, NoteTarget.USER: 4_000}
"""Room for about three notes, so that reviews have to condense them."""
TURN_S_MAX = 150.0
WORK_S_MAX = 100.0
STOP_S_MAX = 40.0
MODEL = "sim/one"
TOOLS = ["look", "memory", "delegate"]
"""Tools of every conversation, in this order."""
NOWHERE = Path("/nonexistent")
"""Home without files: standing rules are not simulated."""


class AgentEnvironment(SimEnvironment, Protocol):
    """Environment of a process with agents."""

    mind: SimModelState

    def passes(self, process: AgentServer, where: str) -> None: ...
    def tool_called(self, process: AgentServer, turn_id: str) -> None: ...
    def heard_event(self, event: TurnEvent) -> None: ...
    def summarising(self, process: AgentServer, middle: Middle) -> int: ...
    def summarised(self, process: AgentServer, middle: Middle, summary: str, begun: int) -> None: ...
    def rolled_over(self, rollover: Rollover) -> None: ...


class ObservedSummarizer(Summarizer, frozen=True, kw_only=True):
    """The real summarizer; reports the source of each summary."""

    server: AgentServer
    fixture: AgentEnvironment

    async def summarise(self, middle: Middle) -> str:
        begun = self.fixture.summarising(self.server, middle)
        summary = ""
        try:
            self.fixture.passes(self.server, "before summary")
            summary = await super().summarise(middle)
            self.fixture.passes(self.server, "after summary")
            return summary
        finally:
            self.fixture.summarised(self.server, middle, summary, begun)

    async def on_rollover(self, rollover: Rollover) -> None:
        self.fixture.rolled_over(rollover)
        await super().on_rollover(rollover)


class AgentServer(Server):
    """Real components with a simulated model."""

    def __init__(self, fixture: AgentEnvironment, name: str, seed: int) -> None:
        self._house = fixture
        super().__init__(fixture, name, seed)
        self._clock = fixture.clock
        self._choice = ModelChoice(MODEL, "one", SimModel(fixture.mind, self))
        self._toolbox = Toolbox()
        preparer = self._preparer()
        model_caller = ModelCaller(self.lifecycle, fixture.clock, self.random.random, self.hooks)
        self.titler = Titler(self.store, self.lifecycle, model_caller, lambda: None)
        engine = ObservedSummarizer(model_caller, lambda: None, self._named, server=self, fixture=fixture)
        self.compressor = Compressor(
            self.store,
            self.lifecycle,
            self.memory,
            engine,
            fixture.clock,
            COMPRESSION,
            holder=name,
            stop_s_max=STOP_S_MAX,
        )
        self.reviewer = Reviewer(
            self.store,
            self.lifecycle,
            preparer,
            model_caller,
            ToolRunner(self.lifecycle, self.hooks),
            self._tools,
            self._tools_of_a_review,
            lambda name: [self._choice],
            fixture.clock,
            ReviewSettings(every_turns=REVIEW_EVERY),
            note_limits=NOTE_CHARS_MAX,
            output_tokens=OUTPUT_TOKENS,
            auxiliary=lambda: None,
        )
        self.agent = Agent(
            self.lifecycle,
            self.memory,
            preparer,
            model_caller,
            ToolRunner(self.lifecycle, self.hooks),
            self._tools,
            fixture.clock,
            titler=self.titler,
            compressor=self.compressor,
            reviewer=self.reviewer,
            limits=TurnLimits(turn_s=TURN_S_MAX, output_tokens=OUTPUT_TOKENS, recall_s=0.0),
        )
        delegation = self._delegation(model_caller)
        self._toolbox = Toolbox((self._look(), self._memory_tool(), delegation.tool()))
        for agent in (self.agent, delegation.agent):
            self.lanes.watch(agent.stop_cancelled)

    @property
    def busy(self) -> bool:
        return not self.dead and (self.titler.busy or self.compressor.busy or self.reviewer.busy)

    @property
    def choice(self) -> ModelChoice:
        return self._choice

    async def run(self) -> None:
        self.agent.start_reviews()
        await super().run()

    # --- Wiring ------------------------------------------------------------------------------------------------------

    def _make_lifecycle(self) -> Lifecycle:
        fixture = self._house
        return ObservedLifecycle(
            self.store,
            fixture.clock,
            fixture.new_id,
            holder=self.name,
            policies=POLICIES,
            hooks=self.hook_names,
            review_every=REVIEW_EVERY,
            passes=lambda where: fixture.passes(self, where),
        )

    def _preparer(self) -> Preparer:
        prompts = PromptBuilder(NOWHERE, self.memory, self._house.clock)
        return Preparer(self.store, self.lifecycle, prompts, self._house.clock, output_tokens_max=OUTPUT_TOKENS)

    def _delegation(self, model_caller: ModelCaller) -> Delegation:
        children = Agent(
            self.lifecycle,
            self.memory,
            self._preparer(),
            model_caller,
            ToolRunner(self.lifecycle, self.hooks),
            self._tools_of_children,
            self._clock,
            limits=TurnLimits(turn_s=WORK_S_MAX, output_tokens=OUTPUT_TOKENS, recall_s=0.0, section="delegation"),
        )
        return Delegation(
            self.store,
            self.lifecycle,
            children,
            lambda name: [self._choice],
            self.agent.is_stopped,
            self._clock,
            parallel_max=2,
            retries=StoreRetries(self.store, self._clock, "delegation"),
        )

    def _look(self) -> Tool:
        async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
            self._house.tool_called(self, use.turn_id)
            await self._clock.sleep(self.random.random() * 2.0)
            return "seen"

        return Tool(ToolSchema("look", "Looks.", {"type": "object", "properties": {}}), look)

    def _memory_tool(self) -> Tool:
        return memory_tool(self.lifecycle.write_note, self.store, NOTE_CHARS_MAX)

    async def _tools(self, ref: SessionRef) -> SessionTools:
        return SessionTools(self._toolbox, OWNER_RIGHTS)

    async def _tools_of_children(self, ref: SessionRef) -> SessionTools:
        return SessionTools(tools_of_children(self._toolbox, ()), OWNER_RIGHTS)

    def _tools_of_a_review(self, review: Review, wrote: Wrote, room: NoteSpace) -> Toolbox:
        # Skills are files, which the simulation does not have.
        tools = review_tools(
            review,
            wrote,
            room,
            lifecycle=self.lifecycle,
            store=self.store,
            limits=NOTE_CHARS_MAX,
            skills=SkillFolders(Path("nowhere"), None),
        )
        return Toolbox(tools[:1])

    def _named(self, name: str) -> ModelChoice:
        return self._choice

    # --- Actions -----------------------------------------------------------------------------------------------------

    def _manner(self) -> TurnOptions:
        return TurnOptions([self._choice], self._house.heard_event)

    async def _answer_next(self, key: SessionKey) -> None:
        self._answering.add(key)
        try:
            await self._clock.sleep(self.random.uniform(0.0, 0.6))
            await self.agent.answer(key, self._manner())
        except (Busy, EverthreadError) as error:
            self._house.log_step(f"{self.name}: {error}")
        finally:
            self._answering.discard(key)

    async def _recover(self) -> None:
        while True:
            with suppress(EverthreadError):
                turns = await self.lifecycle.recover()
                await asyncio.gather(*(self._go_on(turn_id) for turn_id in turns))
            await self._clock.sleep(RECOVER_S)

    async def _go_on(self, turn_id: str) -> None:
        with suppress(EverthreadError):
            await self.agent.resume(turn_id, self._manner())
