"""Wire the agents: model clients, tools, memory, compression, reviews, delegation and scheduled tasks."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from everthread.agent.compression.service import Compressor
from everthread.agent.compression.summarizer import Summarizer
from everthread.agent.delegation import Delegation, is_usable_unattended, tools_of_children
from everthread.agent.model_call import ModelCaller, ModelChoice
from everthread.agent.note_compaction import NoteSpace, Wrote
from everthread.agent.prompt import PromptBuilder
from everthread.agent.prompt_cache import COUNT_MAX, Preparer
from everthread.agent.review import Reviewer, review_tools
from everthread.agent.store_retry import StoreRetries
from everthread.agent.titles import Titler
from everthread.agent.tools.approval import ApprovalRules
from everthread.agent.tools.memory import memory_tools
from everthread.agent.tools.runner import Toolbox, ToolRunner, provider_tools
from everthread.agent.tools.schedule import ScheduleTool
from everthread.agent.tools.session_tools import SessionTools, Toolboxes
from everthread.agent.tools.skills import skill_tools
from everthread.agent.tools.tool_pins import PinnedTools
from everthread.agent.turn import Agent
from everthread.agent.turn_options import TurnLimits
from everthread.config.schema import McpServer, ProviderSettings, Settings, built_in_providers
from everthread.config.settings import default_model
from everthread.domain.errors import BadConfig
from everthread.domain.model import NoteTarget, SessionRef
from everthread.domain.review_window import Review
from everthread.ports.clock import Clock
from everthread.ports.model import ModelClient, Traits
from everthread.ports.tools import Tool, ToolUse
from everthread.store.recall_scope import RecallScopes

if TYPE_CHECKING:
    from everthread.adapters.mcp.servers import McpServers
    from everthread.agent.rights import RightsLookup
    from everthread.agent.skills.folders import SkillFolders
    from everthread.lifecycle import Lifecycle
    from everthread.lifecycle.schedules import ScheduleService
    from everthread.memory.manager import MemoryManager
    from everthread.plugins import HookRunner
    from everthread.ports.context import ContextEngine
    from everthread.store.unit_of_work import Store


LOCAL_IDLE_S_MAX = 300.0
NEWS_S_MAX = 1.0
"""Longest wait of a turn for MCP servers with changed tools. Slower servers are available to the next turn."""
SLOW_START_S_MAX = 120.0
CHILDREN_PREPARED_MAX = 8
"""Number of prepared prompts kept for delegated work and scheduled tasks. Few, because each is used by one turn."""


class Models:
    """The model clients of a configuration. Each is created on first use and connects with its first request."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._clients: dict[str, ModelClient] = {}

    def choices(self, model: str = "") -> tuple[ModelChoice, ...]:
        """Return the named model, or else the configured one, followed by its fallbacks."""
        names = dict.fromkeys((model or default_model(self._settings), *self._settings.fallback_models))
        return tuple(self._choice(name) for name in names)

    def auxiliary(self) -> ModelChoice | None:
        name = self._settings.auxiliary_model
        return self._choice(name) if name else None

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    def _choice(self, name: str) -> ModelChoice:
        provider, _, model = name.partition("/")
        known = self._settings.providers.get(provider)
        if known is None or not model:
            some = ", ".join(sorted(self._settings.providers))
            raise BadConfig(f"{name!r} is not a model; write PROVIDER/MODEL with one of these providers: {some}")
        if provider not in self._clients:
            self._clients[provider] = self._client(provider, known)
        return ModelChoice(name, model, self._clients[provider], self._settings.prices.get(name))

    def _client(self, name: str, provider: ProviderSettings) -> ModelClient:
        from everthread.adapters.models.openai_compat import OpenAICompat

        traits = Traits(provider.tools, provider.context_tokens)
        headers = self._settings.expand_references(provider.headers)
        key = (self._settings.secret(provider.api_key_env) if provider.api_key_env else None) or ""
        connect, key_name = OpenAICompat, provider.api_key_env or name
        match provider.kind:
            case "local":
                from everthread.adapters.models.local.client import LocalModel

                # A local model processes the prompt slowly and sends nothing meanwhile.
                return LocalModel(self._settings.local_model_path, partial(connect, idle_s=LOCAL_IDLE_S_MAX))
            case "anthropic":
                from everthread.adapters.models.anthropic import Anthropic

                connect, key_name = Anthropic, provider.api_key_env
            case "openai_compat":
                pass
        needs_key = _needs_key(provider)
        return connect(provider.base_url, key, traits=traits, headers=headers, key_name=key_name, needs_key=needs_key)


def _needs_key(provider: ProviderSettings) -> bool:
    """Return True for a built-in endpoint that requires a key. False if unknown, or if custom headers are set."""
    known = (one for one in built_in_providers().values() if one.api_key_env)
    return not provider.headers and provider.base_url in {one.base_url for one in known}


def enabled_servers(settings: Settings) -> dict[str, McpServer]:
    return {name: server for name, server in settings.mcp_servers.items() if not server.disabled}


def mcp_servers(settings: Settings, servers: Mapping[str, McpServer], clock: Clock) -> McpServers:
    from everthread.adapters.mcp.servers import McpServers

    filled = {
        name: replace(
            server, env=settings.expand_references(server.env), headers=settings.expand_references(server.headers)
        )
        for name, server in servers.items()
    }
    return McpServers(filled, clock, environ=os.environ)


class AgentRuntime(Protocol):
    """The parts of the runtime that the agent is built from."""

    settings: Settings
    store: Store
    lifecycle: Lifecycle
    memory: MemoryManager
    clock: Clock
    hooks: HookRunner
    holder: str
    tools: tuple[Tool, ...]
    rights: RightsLookup

    @property
    def skills(self) -> SkillFolders: ...
    @property
    def scheduling(self) -> ScheduleService: ...
    @property
    def platform_names(self) -> frozenset[str]: ...
    def context_engine(self) -> ContextEngine | None: ...
    async def sync_notes(self, owner: str) -> str: ...


class AgentParts:
    """The agents of one runtime and their collaborators."""

    def __init__(self, runtime: AgentRuntime) -> None:
        self._runtime = runtime
        self._settings = runtime.settings
        self._mcp: McpServers | None = None
        self._pins = PinnedTools(runtime.store, runtime.clock, runtime.settings.owner)
        self._own_tools: tuple[Tool, ...] = ()
        self._toolboxes = Toolboxes()
        self._rights = runtime.rights
        memory = runtime.settings.memory
        self._scopes = RecallScopes(memory.recall_in_groups)
        self._note_limits = {NoteTarget.MEMORY: memory.notes_chars, NoteTarget.USER: memory.user_chars}
        self.models = Models(runtime.settings)
        self._skills = runtime.skills
        self.agent = self._make_agent()
        self.scheduled = self._make_scheduled_agent()
        self._delegation = self._make_delegation()

    async def open(self) -> tuple[str, ...]:
        """Collect the tools and start the MCP servers. Returns one line per problem."""
        runtime, settings = self._runtime, self._settings
        for_memory = memory_tools(
            runtime.lifecycle, runtime.store, runtime.memory, self._note_limits, runtime.sync_notes, self._scopes
        )
        others = (
            *runtime.tools,
            *skill_tools(self._skills, check=self._check_skill),
            self._delegation.tool(),
            *self._schedule_tool(),
        )
        from_providers, left_out = await provider_tools(runtime.memory, {tool.name for tool in (*for_memory, *others)})
        self._own_tools = (*for_memory, *from_providers, *others)
        servers = enabled_servers(settings)
        if servers and self._mcp is None:
            self._mcp = mcp_servers(settings, servers, runtime.clock)
            await self._mcp.start()
            await self._pins.load()
        problems = self._mcp.problems() if self._mcp is not None else {}
        self._update_toolbox()
        skill_set = await asyncio.to_thread(self._skills.read_all)
        broken = (f"skill not used: {problem}" for problem in skill_set.problems)
        return (*left_out, *(f"MCP server {name}: {problem}" for name, problem in problems.items()), *broken)

    def _update_toolbox(self) -> None:
        self._toolboxes = Toolboxes((*self._own_tools, *self._pins.describe(self._mcp.tools() if self._mcp else ())))

    async def _turn_tools(self, ref: SessionRef) -> SessionTools:
        if self._mcp is not None and (self._mcp.changed or self._pins.changed):
            if self._mcp.changed:
                await self._mcp.refresh(NEWS_S_MAX, open_s=SLOW_START_S_MAX)
            await self._pins.load()
            self._update_toolbox()
        rights = await self._rights.of_session(ref)
        return SessionTools(self._toolboxes.of(rights), rights, self._rights.of_speakers)

    async def _child_tools(self, ref: SessionRef) -> SessionTools:
        tools = await self._turn_tools(ref)
        return replace(tools, toolbox=tools_of_children(tools.toolbox, self._settings.tools.allow))

    async def _schedule_tools(self, ref: SessionRef) -> SessionTools:
        tools, allowed = await self._turn_tools(ref), self._settings.tools.allow
        return replace(tools, toolbox=tools.toolbox.only(lambda tool: is_usable_unattended(tool, allowed)))

    async def stop_cancelled(self) -> None:
        """Stop the turns of every agent that a boundary in another process has cancelled."""
        for agent in (self.agent, self.scheduled, self._delegation.agent):
            await agent.stop_cancelled()

    async def aclose(self) -> None:
        await self._titler.aclose()
        await self._reviewer.aclose()
        await self._compressor.aclose()
        await self._delegation.aclose()
        await self.scheduled.aclose()
        await self.agent.aclose()
        if self._mcp is not None:
            await self._mcp.aclose()
        await self.models.aclose()

    def _make_agent(self) -> Agent:
        runtime, limits = self._runtime, self._settings.limits
        model_caller = self._make_model_caller()
        self._titler = Titler(runtime.store, runtime.lifecycle, model_caller, self.models.auxiliary)
        usual = Summarizer(model_caller, self.models.auxiliary, lambda name: self.models.choices(name)[0])
        self._compressor = Compressor(
            runtime.store,
            runtime.lifecycle,
            runtime.memory,
            runtime.context_engine() or usual,
            runtime.clock,
            self._settings.compression,
            holder=runtime.holder,
        )
        preparer = self._make_preparer()
        self._reviewer = self._make_reviewer(preparer)
        return Agent(
            runtime.lifecycle,
            runtime.memory,
            preparer,
            model_caller,
            self._runner(),
            self._turn_tools,
            runtime.clock,
            titler=self._titler,
            compressor=self._compressor,
            reviewer=self._reviewer,
            limits=TurnLimits(
                limits.iterations,
                limits.turn_s,
                limits.output_tokens,
                self._settings.memory.recall_s,
                self._settings.memory.recall_tokens,
            ),
        )

    def _make_reviewer(self, preparer: Preparer) -> Reviewer:
        """Build the reviewer. It shares the conversations' prepared prompts, and has its own tools and limits."""
        runtime, limits, own = self._runtime, self._settings.limits, self._settings.review
        return Reviewer(
            runtime.store,
            runtime.lifecycle,
            preparer,
            self._make_model_caller(spend_per_turn=own.spend),
            self._runner(),
            self._turn_tools,
            self._review_tools,
            self.models.choices,
            runtime.clock,
            own,
            note_limits=self._note_limits,
            output_tokens=limits.output_tokens,
            auxiliary=self.models.auxiliary,
            scopes=self._scopes,
        )

    async def _check_skill(self, use: ToolUse) -> None:
        await self._runtime.lifecycle.check_turn(use.turn_id, use.ref.session_id)

    def _review_tools(self, review: Review, wrote: Wrote, room: NoteSpace) -> Toolbox:
        runtime = self._runtime
        return Toolbox(
            review_tools(
                review,
                wrote,
                room,
                lifecycle=runtime.lifecycle,
                store=runtime.store,
                limits=self._note_limits,
                skills=self._skills,
                written=runtime.sync_notes,
                scopes=self._scopes,
            )
        )

    def _make_delegation(self) -> Delegation:
        """Build delegation: an agent with its own tools, limits and prepared prompts, and without recall."""
        runtime, limits, own = self._runtime, self._settings.limits, self._settings.delegation
        worker = Agent(
            runtime.lifecycle,
            runtime.memory,
            self._make_preparer(count_max=CHILDREN_PREPARED_MAX),
            self._make_model_caller(spend_per_session=own.spend),
            self._runner(),
            self._child_tools,
            runtime.clock,
            limits=TurnLimits(own.iterations, own.turn_s, limits.output_tokens, recall_s=0.0, section="delegation"),
        )
        return Delegation(
            runtime.store,
            runtime.lifecycle,
            worker,
            self.models.choices,
            lambda turn_id: self.agent.is_stopped(turn_id) or self.scheduled.is_stopped(turn_id),
            runtime.clock,
            parallel_max=own.parallel,
            retries=StoreRetries(runtime.store, runtime.clock, "delegation"),
        )

    def _schedule_tool(self) -> tuple[Tool, ...]:
        runtime, settings = self._runtime, self._settings
        if not settings.schedule.per_owner:
            return ()
        tool = ScheduleTool(
            runtime.scheduling, runtime.clock, settings, runtime.platform_names, runtime.store, self._scopes
        )
        return (tool.tool(),)

    def _make_scheduled_agent(self) -> Agent:
        """Build the agent for scheduled tasks. It can't ask for approval, writes no memory and has no recall."""
        runtime, limits = self._runtime, self._settings.limits
        return Agent(
            runtime.lifecycle,
            runtime.memory,
            self._make_preparer(count_max=CHILDREN_PREPARED_MAX),
            self._make_model_caller(),
            self._runner(),
            self._schedule_tools,
            runtime.clock,
            # A task that continues its session grows like a conversation.
            compressor=self._compressor,
            limits=TurnLimits(limits.iterations, limits.turn_s, limits.output_tokens, recall_s=0.0),
        )

    def _make_preparer(self, count_max: int = COUNT_MAX) -> Preparer:
        runtime = self._runtime
        prompts = PromptBuilder(
            self._settings.home, runtime.memory, runtime.clock, self._note_limits, self._skills.index
        )
        output_tokens = self._settings.limits.output_tokens
        return Preparer(
            runtime.store,
            runtime.lifecycle,
            prompts,
            runtime.clock,
            output_tokens_max=output_tokens,
            count_max=count_max,
            scopes=self._scopes,
        )

    def _make_model_caller(
        self, *, spend_per_session: float | None = None, spend_per_turn: float | None = None
    ) -> ModelCaller:
        runtime = self._runtime
        return ModelCaller(
            runtime.lifecycle,
            runtime.clock,
            random.random,
            runtime.hooks,
            self._settings.spend_per_day_of,
            spend_per_session=spend_per_session,
            spend_per_turn=spend_per_turn,
        )

    def _runner(self) -> ToolRunner:
        tools = self._settings.tools
        rules = ApprovalRules(self._pins, tools.approval_lines, tools.approval_chars)
        return ToolRunner(self._runtime.lifecycle, self._runtime.hooks, frozenset(tools.allow), rules)
