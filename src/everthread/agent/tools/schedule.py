"""The `schedule` tool: add, list and remove scheduled tasks of the user.

Tested in tests/unit/lifecycle/test_schedules.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from everthread.agent.tools.arguments import TEXT, parse_arguments, text, tool_schema
from everthread.config.schema import Settings
from everthread.domain.errors import AlreadyExists, BadInput, NotFound, ToolFailed
from everthread.domain.model import SessionKey
from everthread.domain.recall_scope import RecallScope, chat_of
from everthread.domain.recurrence import format_in_zone, parse_recurrence, shortest_interval_s
from everthread.domain.rights import BUILT_IN
from everthread.domain.schedule import PROMPT_CHARS_MAX, Occurrence, Schedule, Target, TargetKind, parse_address
from everthread.lifecycle.schedules import NewSchedule, ScheduleService
from everthread.ports.clock import Clock
from everthread.ports.tools import Tool, ToolUse
from everthread.store.recall_scope import RecallScopes
from everthread.store.unit_of_work import Store

_SCHEDULE = tool_schema(
    "schedule",
    "Schedule a prompt for yourself, once or repeatedly. It runs in its own conversation, and the answer is sent to "
    "this chat. `when` is `in 20m`, `at 08:00`, `at 2026-11-23 08:00`, `every 2h`, or a cron expression such as "
    "`0 8 * * 1-5`. Put all that is needed then into `prompt`. `list` lists the tasks, `remove` takes a `name`.",
    {
        "action": {**TEXT, "enum": ["add", "list", "remove"]},
        "when": TEXT,
        "prompt": TEXT,
        "name": TEXT,
        "zone": text("An IANA name such as Europe/Berlin."),
        "to": text("Another chat, PLATFORM:CHAT; for the owner of this machine only."),
    },
    required=["action"],
)

Words = Annotated[str, msgspec.Meta(max_length=200)]


class _Arguments(msgspec.Struct):
    action: Literal["add", "list", "remove"]
    when: Words = ""
    prompt: Annotated[str, msgspec.Meta(max_length=PROMPT_CHARS_MAX)] = ""
    name: Words = ""
    zone: Words = ""
    to: Words = ""


class ScheduleTool(Struct, frozen=True):
    scheduling: ScheduleService
    clock: Clock
    settings: Settings
    platforms: Collection[str]
    """Platforms that can deliver answers."""
    store: Store
    scopes: RecallScopes

    def tool(self) -> Tool:
        # `remembers`: scheduled tasks must not schedule others.
        return Tool(_SCHEDULE, self._run, remembers=True, source=BUILT_IN)

    async def _run(self, arguments: Mapping[str, Any], use: ToolUse) -> str:
        args = parse_arguments(_SCHEDULE, arguments, _Arguments)
        try:
            match args.action:
                case "add":
                    return await self._add(args, use)
                case "list":
                    return await self._list(use)
                case "remove":
                    found = await self.scheduling.find(use.ref.owner, args.name)
                    if not _is_visible(found, await self._scope(use)):
                        raise NotFound(args.name)
                    await self.scheduling.remove(found)
                    return f"Removed {found.name}."
        except (BadInput, AlreadyExists) as error:
            raise ToolFailed(f"schedule: {error}") from error
        except NotFound as error:
            raise ToolFailed(f"schedule: there is no task {args.name!r}; `list` lists all tasks") from error

    async def _add(self, args: _Arguments, use: ToolUse) -> str:
        own, owner = self.settings.schedule, use.ref.owner
        zone = args.zone or self.settings.zone
        now = self.clock.now()
        if shortest_interval_s(parse_recurrence(args.when, zone, now), now) < own.every_minutes * 60:
            raise BadInput(f"that is too often: no more than once in {own.every_minutes:g} minutes")
        new = NewSchedule(owner, args.when, zone, args.prompt, args.name, self._target(args, use))
        schedule = await self.scheduling.add(new, at_most=self._at_most(owner))
        where = (
            "is sent to this chat"
            if schedule.target.kind is TargetKind.CHAT and not args.to
            else f"goes to {schedule.target}"
        )
        if schedule.target.kind is TargetKind.NONE:
            where = "is stored in its own conversation, because nothing can be sent to this one later"
        return f"Scheduled as {schedule.name}; {_next(schedule)}. The answer {where}."

    def _at_most(self, owner: str) -> int:
        per_owner = self.settings.schedule.per_owner
        return per_owner if owner == self.settings.owner else min(per_owner, self.settings.gateway.quotas.schedules)

    def _target(self, args: _Arguments, use: ToolUse) -> Target:
        if args.to:
            if not use.rights.is_owner:
                raise BadInput("answers go to this chat; omit `to`")
            return Target(TargetKind.CHAT, str(parse_address(args.to, self.settings.profile, self.platforms)))
        here = use.ref.key
        # All members of a chat read its key without a user.
        return Target(TargetKind.CHAT, str(replace(here, user=None))) if here.platform in self.platforms else Target()

    async def _list(self, use: ToolUse) -> str:
        scope = await self._scope(use)
        found = await self.scheduling.all(use.ref.owner)
        shown = [_line(schedule, last) for schedule, last in found if _is_visible(schedule, scope)]
        return "\n".join(shown) or "Nothing is scheduled."

    async def _scope(self, use: ToolUse) -> RecallScope:
        return await self.store.read(lambda uow: self.scopes.of(uow, use.ref))


def _is_visible(schedule: Schedule, scope: RecallScope) -> bool:
    """Return true if a session with this scope may see the task: in a group, if its answers go there."""
    if scope.chat is None:
        return True
    target = schedule.target
    return target.kind is TargetKind.CHAT and chat_of(SessionKey.parse(target.to)) == scope.chat


def _next(schedule: Schedule) -> str:
    return f"next: {format_in_zone(schedule.next_at, schedule.zone)}" if schedule.next_at else schedule.state.value


def _line(schedule: Schedule, last: Occurrence | None) -> str:
    went = f"; last time {last.state.value}" if last is not None else ""
    return f"- {schedule.name} ({schedule.recurrence}, {_next(schedule)}{went}): {schedule.prompt[:200]}"
