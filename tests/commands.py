"""`AgentFixture` that runs slash commands."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from everthread.agent.skills.folders import SkillFolders
from everthread.commands.context import CommandContext, CommandResult
from everthread.commands.registry import ParsedCommand, parse, run_command
from everthread.domain.model import NoteAction, NoteTarget, NoteVersion, SessionKey
from everthread.lifecycle import NoteChange
from everthread.memory.note_files import NoteFiles
from tests.agent_runtime import AgentFixture
from tests.runtime import CLI, ME


class CommandFixture(AgentFixture):
    """Agent fixture with a command context."""

    def desk(self, key: SessionKey = CLI, *, owner: str = ME) -> CommandContext:
        async def write(action: NoteAction, target: NoteTarget, content: str, note_id: str, owner: str) -> NoteVersion:
            return await self.lifecycle.write_note(NoteChange(action, target, content, note_id), owner=owner)

        async def nothing_is_forgotten(owner: str, text: str) -> bool:
            return False

        note_files = NoteFiles(self.store, write, lambda owner: self.folder / "notes" / owner, nothing_is_forgotten)
        skills = self.skills if owner == ME else None
        return CommandContext(
            self.lifecycle, self.store, self.agent, self.memory, note_files, key, owner, skills=skills
        )

    @property
    def skills(self) -> SkillFolders:
        return SkillFolders(self.folder / "skills", now=self.clock.now)

    async def order(self, text: str, key: SessionKey = CLI, *, owner: str = ME, **more: Any) -> CommandResult:
        """Run a command in a context with these arguments and `more`."""
        found = parse(text)
        assert isinstance(found, ParsedCommand), text
        said = await run_command(replace(self.desk(key, owner=owner), **more), found)
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
