"""Skill tools: list, read and write skills."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import FILE, FILE_CHARS_MAX, SkillText, escape_tags, wrap_file
from everthread.agent.skills.history import Origin, SkillChange
from everthread.agent.tools.arguments import TEXT, parse_arguments, text, tool_schema
from everthread.domain.errors import BadSkill, NotFound, ToolFailed
from everthread.domain.rights import BUILT_IN, Rights
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse

PATH_CHARS_MAX = 500
NAME_SHOWN_CHARS = 80

T = TypeVar("T")
Name = Annotated[str, msgspec.Meta(max_length=200)]
Text = Annotated[str, msgspec.Meta(max_length=FILE_CHARS_MAX)]

_LIST = tool_schema(
    "skill_list",
    "List the current skills and their purposes.",
    {},
)

_VIEW = tool_schema(
    "skill_view",
    "Read the instructions of a skill, or another of its files with `path`.",
    {"name": TEXT, "path": text("As listed by skill_view, such as references/forms.md.")},
    required=["name"],
)

_WRITE = tool_schema(
    "skill_write",
    "Write a skill for the user, or replace the skill of that name: instructions for a kind of work, so that it need "
    "not be worked out again. The description states its purpose and when to use it. Read a skill before you replace "
    "it. The previous version is kept.",
    {
        "name": text("Lowercase letters, digits and hyphens."),
        "description": text("One or two sentences."),
        "body": text("The instructions, as Markdown."),
    },
    required=["name", "description", "body"],
)


class _ViewArguments(msgspec.Struct):
    name: Name
    path: Annotated[str, msgspec.Meta(max_length=PATH_CHARS_MAX)] = FILE


class _WriteArguments(msgspec.Struct):
    name: Name
    description: Text
    body: Text


async def _always(use: ToolUse) -> None:
    pass


def skill_tools(
    folders: SkillFolders,
    wrote: Callable[[SkillChange], None] = lambda change: None,
    check: Callable[[ToolUse], Awaitable[None]] = _always,
) -> tuple[Tool, ...]:
    """Build all skill tools. They act on the skills that the rights of a call grant.

    `wrote` is called with each change. `check` raises `Outdated` if something was forgotten since the text of the skill
    was derived.
    """
    return skill_list(folders), skill_view(folders), skill_write(folders, wrote, check)


def skill_list(folders: SkillFolders) -> Tool:
    async def run(arguments: Mapping[str, Any], use: ToolUse) -> str:
        skill_set = await asyncio.to_thread(folders.read_all)
        lines = [
            f"- {skill.name}{' (project)' if skill.project else ''}: {escape_tags(skill.description)}"
            for skill in skill_set.skills
            if use.rights.may_use_skill(skill.name)
        ]
        # A problem quotes paths and contents of files.
        problems = skill_set.problems if use.rights.is_owner else ()
        broken = [f"not usable: {escape_tags(problem)}" for problem in problems]
        return "\n".join((*lines, *broken)) or "no skills yet"

    return Tool(_LIST, run, parallel=True, source=BUILT_IN)


def skill_view(folders: SkillFolders) -> Tool:
    async def run(arguments: Mapping[str, Any], use: ToolUse) -> str:
        args = parse_arguments(_VIEW, arguments, _ViewArguments)
        return await _in_a_thread(_VIEW, lambda: _view(folders, args, use.rights))

    return Tool(_VIEW, run, parallel=True, source=BUILT_IN)


def _view(folders: SkillFolders, args: _ViewArguments, rights: Rights) -> str:
    unknown = NotFound(f"there is no skill {args.name[:NAME_SHOWN_CHARS]!r}; skill_list lists them")
    if not rights.may_use_skill(args.name):
        raise unknown
    try:
        found = folders.get(args.name)
    except NotFound:
        if rights.is_owner:
            raise
        # The original message names the other skills.
        raise unknown from None
    text = wrap_file(found.skill, folders.text(found, args.path), args.path)
    others = folders.files(found) if args.path == FILE else ()
    return f"{text}\nIts other files: {', '.join(map(escape_tags, others))}" if others else text


def skill_write(
    folders: SkillFolders,
    wrote: Callable[[SkillChange], None],
    check: Callable[[ToolUse], Awaitable[None]] = _always,
) -> Tool:
    async def run(arguments: Mapping[str, Any], use: ToolUse) -> str:
        args = parse_arguments(_WRITE, arguments, _WriteArguments)
        if not use.rights.may_use_skill(args.name):
            raise ToolFailed(
                f"skill_write: {args.name[:NAME_SHOWN_CHARS]!r} may not be written here; the owner grants skills by "
                "name ([access] in config.toml)"
            )
        written = SkillText(args.name, args.description, args.body)
        origin = Origin(use.ref.session_id, use.turn_id)
        loop = asyncio.get_running_loop()

        async def check_use() -> None:
            await check(use)

        def check_under_lock() -> None:
            asyncio.run_coroutine_threadsafe(check_use(), loop).result()

        change = await _in_a_thread(_WRITE, lambda: folders.write(written, origin=origin, check=check_under_lock))
        wrote(change)
        done = "replaced; the previous version is kept" if change.kept is not None else "written"
        return f"{done}. Conversations that begin from now on know of it; here, skill_view reads it."

    return Tool(_WRITE, run, dangerous=True, remembers=True, source=BUILT_IN)


async def _in_a_thread(schema: ToolSchema, work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except (BadSkill, NotFound) as error:
        raise ToolFailed(f"{schema.name}: {error}") from error
