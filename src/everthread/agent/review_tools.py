"""The tools of a review: they write in its name, for as long as it holds its window, and tell it what they wrote."""

from __future__ import annotations

from collections.abc import Mapping

from everthread.agent.condensing import Room, Wrote
from everthread.agent.memory_tools import Written, memory_tool
from everthread.agent.skill_changes import SkillChange
from everthread.agent.skill_folders import SkillFolders
from everthread.agent.skill_tools import skill_tools
from everthread.domain.errors import NotesFull
from everthread.domain.model import NoteAction, NoteTarget, NoteVersion, SessionRef
from everthread.domain.review import Review
from everthread.domain.wording import excerpt
from everthread.lifecycle import Lifecycle, NoteChange
from everthread.ports import Store, Tool


def review_tools(
    review: Review,
    wrote: Wrote,
    room: Room,
    *,
    lifecycle: Lifecycle,
    store: Store,
    limits: Mapping[NoteTarget, int],
    skills: SkillFolders,
    owner: str,
    written: Written | None = None,
) -> tuple[Tool, ...]:
    """`owner` is the person whose home it is; `written` as for `memory_tool`."""

    async def make_room(change: NoteChange, owner: str, ref: SessionRef | None) -> bool:
        if change.action is not NoteAction.ADD or change.limit_chars is None or ref is None:
            return False
        made = await room.make(change.target, len(change.content), change.limit_chars, ref)
        if made and written is not None:
            await written(owner)
        return made

    async def write_where_there_is_room(change: NoteChange, owner: str, ref: SessionRef | None) -> NoteVersion:
        try:
            return await lifecycle.write_note(change, owner=owner, ref=ref, review=review)
        except NotesFull:
            if await make_room(change, owner, ref):
                return await lifecycle.write_note(change, owner=owner, ref=ref, review=review)
            room.missed(change)
            raise

    async def write_note(change: NoteChange, *, owner: str, ref: SessionRef | None) -> NoteVersion:
        version = await write_where_there_is_room(change, owner, ref)
        room.noted(change)
        wrote("a note removed" if version.action is NoteAction.REMOVE else excerpt(version.content))
        return version

    def skill_written(change: SkillChange) -> None:
        wrote(f"the skill {change.skill}")

    memory = memory_tool(write_note, store, limits, written, condenses=True)
    return memory, *skill_tools(skills, owner, skill_written)
