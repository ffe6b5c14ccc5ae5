"""`CoreFixture` with an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from everthread.agent.compression.service import Compressor
from everthread.agent.compression.summarizer import Summarizer
from everthread.agent.events import Approve, TurnEnded, TurnEvent, nobody_approves
from everthread.agent.model_call import ModelCaller, ModelChoice
from everthread.agent.note_compaction import NoteSpace, Wrote
from everthread.agent.prompt import PromptBuilder
from everthread.agent.prompt_cache import Preparer
from everthread.agent.review import Reviewer, review_tools
from everthread.agent.skills.folders import SkillFolders
from everthread.agent.titles import Titler
from everthread.agent.tools.runner import Toolbox, ToolRunner
from everthread.agent.tools.session_tools import SessionTools
from everthread.agent.turn import Agent
from everthread.agent.turn_options import TurnLimits, TurnOptions
from everthread.config.schema import CompressionSettings, ReviewSettings
from everthread.domain import review_window as domain_review
from everthread.domain.model import Inbound, InboxRow, SessionKey, SessionRef, Turn
from everthread.domain.rights import OWNER_RIGHTS, AccessRole, Grants, Rights, RightsPolicy, rights_of
from everthread.memory.note_files import CHARS_MAX
from everthread.ports.context import ContextEngine
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, CoreFixture

ANYTHING: Mapping[str, Any] = {"type": "object", "properties": {}}


def tool(name: str, run: Any, **more: Any) -> Tool:
    return Tool(ToolSchema(name, f"Does {name}.", ANYTHING), run, **more)


class AgentFixture(CoreFixture):
    """One process whose agent calls `model`."""

    def __init__(
        self,
        folder: Path,
        model: FakeModel | None = None,
        *providers: object,
        tools: tuple[Tool, ...] = (),
        turn_limits: TurnLimits | None = None,
        spend_per_day: float | None = None,
        allowed: frozenset[str] = frozenset(),
        names: Callable[[], ModelChoice | None] | None = None,
        compression: CompressionSettings | None = None,
        summariser: FakeModel | None = None,
        engine: ContextEngine | None = None,
        stop_s_max: float = 5.0,
        skills: Callable[[Rights], str] = lambda rights: "",
        review: ReviewSettings | None = None,
        **more: Any,
    ) -> None:
        super().__init__(folder, *providers, review_every=review.every_turns if review else 0, **more)
        self.folder = folder
        self.model = model or FakeModel()
        self.choices: list[ModelChoice] = [self.model.choice()]
        self.toolbox = Toolbox(tools)
        self.note_limits = dict(CHARS_MAX)
        self.extra: tuple[Tool, ...] = ()
        """Tools that a review could call if they were not refused."""
        self.heard: list[TurnEvent] = []
        self.approve: Approve = nobody_approves
        self._turn_limits = turn_limits
        self._spend_per_day = spend_per_day
        self._allowed = allowed
        self._skills = skills
        self._names = names
        """Model that generates titles; None disables titles."""
        self._compression = compression
        """Compression settings; None disables compression."""
        self.summariser = summariser
        self._engine = engine
        self._stop_s_max = stop_s_max
        self._review = review
        """Review settings; None disables reviews."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        prompts = PromptBuilder(self.folder, self.memory, self.clock, skills=self._skills)
        self.preparer = Preparer(self.store, self.lifecycle, prompts, self.clock, output_tokens_max=1000)
        model_caller = ModelCaller(self.lifecycle, _Hasty(self), lambda: 0.5, self.hooks, lambda _: self._spend_per_day)
        self.titler = Titler(self.store, self.lifecycle, model_caller, self._names or (lambda: None))
        self.compressor = Compressor(
            self.store,
            self.lifecycle,
            self.memory,
            self._engine or Summarizer(model_caller, self._auxiliary, self._named),
            self.clock,
            self._compression or CompressionSettings(enabled=False),
            holder=self.holder,
            stop_s_max=self._stop_s_max,
        )
        reviewing = ModelCaller(
            self.lifecycle,
            _Hasty(self),
            lambda: 0.5,
            self.hooks,
            lambda _: self._spend_per_day,
            spend_per_turn=self._review.spend if self._review else None,
        )
        self.reviewer = Reviewer(
            self.store,
            self.lifecycle,
            self.preparer,
            reviewing,
            ToolRunner(self.lifecycle, self.hooks, self._allowed),
            self._tools,
            self._tools_of_a_review,
            self._named_first,
            self.clock,
            self._review or ReviewSettings(every_turns=0),
            note_limits=CHARS_MAX,
            output_tokens=1000,
            auxiliary=self._auxiliary,
        )
        self.agent = Agent(
            self.lifecycle,
            self.memory,
            self.preparer,
            model_caller,
            ToolRunner(self.lifecycle, self.hooks, self._allowed),
            self._tools,
            self.clock,
            titler=self.titler if self._names else None,
            compressor=self.compressor if self._compression else None,
            reviewer=self.reviewer,
            limits=self._turn_limits,
        )
        return self

    def _auxiliary(self) -> ModelChoice | None:
        return self.summariser.choice("fake/summariser") if self.summariser else None

    def _named(self, name: str) -> ModelChoice:
        return next(choice for choice in self.choices if choice.name == name)

    def _named_first(self, name: str) -> list[ModelChoice]:
        return [self._named(name)] if name else self.choices

    def _tools_of_a_review(self, review: domain_review.Review, wrote: Wrote, room: NoteSpace) -> Toolbox:
        made = review_tools(
            review,
            wrote,
            room,
            lifecycle=self.lifecycle,
            store=self.store,
            limits=self.note_limits,
            skills=SkillFolders(self.folder / "skills", now=self.clock.now),
        )
        return Toolbox((*made, *self.extra))

    async def __aexit__(self, *raised: Any) -> None:
        await self.titler.aclose()
        await self.reviewer.aclose()
        await self.compressor.aclose()
        await super().__aexit__(*raised)

    @property
    def tools(self) -> SessionTools:
        """The tools in a session of the owner."""
        return SessionTools(self.toolbox, OWNER_RIGHTS)

    async def _tools(self, ref: SessionRef) -> SessionTools:
        grants = Grants(self.toolbox.names)
        policy = RightsPolicy(ME, {AccessRole.GUEST: grants, AccessRole.GROUP: grants})
        return SessionTools(self.toolbox, rights_of(policy, ref.owner, platform=ref.key.platform))

    async def say(self, text: str, key: SessionKey = CLI, *, owner: str = ME) -> InboxRow:
        row, _ = await self.lifecycle.accept(Inbound(key, owner, text))
        return row

    async def ask(self, text: str, key: SessionKey = CLI, *, owner: str = ME) -> TurnEnded:
        """Send a message and run its turn."""
        await self.say(text, key, owner=owner)
        ended = await self.agent.answer(key, self.options())
        assert ended is not None
        return ended

    def options(self) -> TurnOptions:
        return TurnOptions(self.choices, self.heard.append, self.approve)

    async def turns(self, session_id: str) -> tuple[Turn, ...]:
        session = await self.session(session_id)
        return (await self.store.read(lambda uow: uow.turns.view(session))).turns


class _Hasty:
    """The core's clock, with sleeps that return immediately."""

    def __init__(self, core: CoreFixture) -> None:
        self._house = core
        self.slept_s: list[float] = []

    def now(self) -> float:
        return self._house.clock.now()

    def elapsed(self) -> float:
        return self._house.clock.elapsed()

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        await asyncio.sleep(0)


async def says_nothing(arguments: Mapping[str, Any], use: ToolUse) -> str:
    return "nothing"
