"""`AgentFixture` that runs slash commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from everthread.agent.model_call import ModelChoice
from everthread.agent.rights import RightsLookup
from everthread.agent.skills.folders import SkillFolders
from everthread.commands.context import CommandContext, CommandResult
from everthread.commands.registry import ParsedCommand, parse, run_command
from everthread.config.schema import LimitSettings, Settings
from everthread.domain.errors import BadConfig
from everthread.domain.model import SessionKey
from everthread.domain.rights import RightsPolicy
from everthread.memory.note_files import NoteFiles
from everthread.store.unit_of_work import Store
from tests.agent_runtime import AgentFixture
from tests.runtime import CLI, ME


def no_choices(model: str) -> Sequence[ModelChoice]:
    raise BadConfig("no model is configured here")


class RuntimeParts:
    """The parts of a runtime that commands use, taken from a fixture."""

    def __init__(
        self,
        fixture: CommandFixture,
        settings: Settings,
        note_files: NoteFiles,
        choices: Callable[[str], Sequence[ModelChoice]],
        known_models: tuple[str, ...],
    ) -> None:
        self.store: Store = fixture.store
        self.lifecycle, self.agent = fixture.lifecycle, fixture.agent
        self.memory, self.skills = fixture.memory, fixture.skills
        self.settings, self.note_files = settings, note_files
        self.rights = RightsLookup(fixture.store, RightsPolicy(ME))
        self._choices, self._known_models = choices, known_models

    def choices(self, model: str = "") -> Sequence[ModelChoice]:
        return self._choices(model)

    def known_models(self) -> tuple[str, ...]:
        return self._known_models


class CommandFixture(AgentFixture):
    """Agent fixture with a command context."""

    def desk(
        self,
        key: SessionKey = CLI,
        *,
        owner: str = ME,
        choices: Callable[[str], Sequence[ModelChoice]] = no_choices,
        known_models: tuple[str, ...] = (),
        spend_per_day: float | None = None,
    ) -> CommandContext:
        note_files = self.note_files(lambda owner: self.folder / "notes" / owner)
        settings = Settings(self.folder, limits=LimitSettings(spend_per_day=spend_per_day))
        runtime = RuntimeParts(self, settings, note_files, choices, known_models)
        return CommandContext(runtime, key, owner)

    @property
    def skills(self) -> SkillFolders:
        return SkillFolders(self.folder / "skills", now=self.clock.now)

    async def order(self, text: str, key: SessionKey = CLI, *, owner: str = ME, **more: Any) -> CommandResult:
        """Run a command in a context with these arguments and `more`."""
        found = parse(text)
        assert isinstance(found, ParsedCommand), text
        services = {name: more.pop(name) for name in ("choices", "known_models", "spend_per_day") if name in more}
        said = await run_command(replace(self.desk(key, owner=owner, **services), **more), found)
        assert "Traceback" not in said.text
        return said

    async def refuses(self, text: str, *words: str, key: SessionKey = CLI, owner: str = ME) -> None:
        said = await self.order(text, key, owner=owner)
        assert not said.ok, said.text
        assert "\n" not in said.text
        for word in words:
            assert word in said.text

    async def titled(self, title: str, key: SessionKey = CLI, *, owner: str = ME) -> str:
        """Create a session of that title with one turn."""
        await self.order(f"/new {title}", key, owner=owner)
        return (await self.ask(f"about {title}", key, owner=owner)).committed.ref.session_id
