"""The tools of a review: they write in its name, for as long as it holds its window, and tell it what they wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from everthread.agent.memory_tools import Written, memory_tool
from everthread.agent.skill_changes import SkillChange
from everthread.agent.skill_folders import SkillFolders
from everthread.agent.skill_tools import skill_tools
from everthread.domain.model import NoteAction, NoteTarget, NoteVersion, SessionRef
from everthread.domain.review import Review
from everthread.domain.wording import excerpt
from everthread.lifecycle import Lifecycle, NoteChange
from everthread.ports import Store, Tool

Wrote = Callable[[str], None]
"""Takes a few words for a person on what was written."""


def review_tools(
    review: Review,
    wrote: Wrote,
    *,
    lifecycle: Lifecycle,
    store: Store,
    limits: Mapping[NoteTarget, int],
    skills: SkillFolders,
    owner: str,
    written: Written | None = None,
) -> tuple[Tool, ...]:
    """`owner` is the person whose home it is; `written` as for `memory_tool`."""

    async def write_note(change: NoteChange, *, owner: str, ref: SessionRef | None) -> NoteVersion:
        version = await lifecycle.write_note(change, owner=owner, ref=ref, review=review)
        wrote("a note removed" if version.action is NoteAction.REMOVE else excerpt(version.content))
        return version

    def skill_written(change: SkillChange) -> None:
        wrote(f"the skill {change.skill}")

    memory = memory_tool(write_note, store, limits, written, condenses=True)
    return memory, *skill_tools(skills, owner, skill_written)
