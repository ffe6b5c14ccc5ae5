"""Simulate a week of scheduled tasks with a daylight saving change, in two processes that are killed and restarted.

Time is virtual; rules, transactions, turns and SQL are real. See `tests.simulator.environment`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from tests.simulator.database import fresh_database
from tests.simulator.environment import Faults, SimClock, SimProcess, SimStore
from tests.simulator.event_loop import SimLoop
from tests.simulator.store_consistency import inconsistencies

from everthread import plugins
from everthread.adapters.lanes.local import LocalLanes
from everthread.agent.model_call import ModelCaller, ModelChoice
from everthread.agent.prompt import PromptBuilder
from everthread.agent.prompt_cache import Preparer
from everthread.agent.rights import RightsLookup
from everthread.agent.tools.runner import Toolbox, ToolRunner
from everthread.agent.tools.session_tools import SessionTools
from everthread.agent.turn import Agent
from everthread.agent.turn_options import TurnLimits
from everthread.config.schema import Settings
from everthread.domain.model import Message, Role, SessionRef
from everthread.domain.recurrence import MissedPolicy, occurrences
from everthread.domain.rights import OWNER_RIGHTS, RightsPolicy
from everthread.domain.schedule import OccurrenceState, Schedule, Target, TargetKind
from everthread.gateway.scheduler import Scheduler
from everthread.lifecycle import Lifecycle
from everthread.lifecycle.schedules import NewSchedule, ScheduleService
from everthread.memory import MemoryManager
from everthread.ports.model import Answer, Delta, Finish, Prompt, Request, Traits, Usage

WEEK_S = 7 * 86_400.0
AFTER_S = 6 * 3600.0
DOWN_S_MAX = 3 * 3600.0
"""At ten minutes each, fewer than the limit of catch-up runs."""

# The day of the daylight saving change, in the middle of the week.
WEEKS = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"),
    "Africa/Cairo": ("2026-04-24", "2026-10-30"),
}
PLANS = (
    "30 2 * * *",
    "*/20 0-3 * * *",
    "0 0-8,20-23 * * *",
    "15 * * * sun",
    "0 0 * * mon-fri",
    "every 2h",
    "every 7h30m",
    "@weekly",
)


class Oracle:
    """A model with delays."""

    def __init__(self, process: SimProcess, clock: SimClock, asked: Counter[str]) -> None:
        self._process, self._clock, self._asked = process, clock, asked

    def traits(self, model: str) -> Traits:
        return Traits()

    def head(self, prompt: Prompt) -> bytes:
        return prompt.system.encode()

    def encode(self, messages: Sequence[Message]) -> bytes:
        return json.dumps([message.content for message in messages]).encode()

    async def aclose(self) -> None: ...

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        await self._clock.sleep(self._process.random.random() * 8.0)
        text = f"done: {request.tail[0].content}"
        self._asked[text] += 1
        yield Delta(text)
        await self._process.pause()
        yield Answer(Message(Role.ASSISTANT, text), Usage(1, 1), Finish.STOP)


class SchedulingProcess(SimProcess):
    """A process that runs scheduled tasks."""

    def __init__(self, fixture: Simulation, name: str, seed: int) -> None:
        super().__init__(name, seed)
        clock = fixture.clock
        self.store = SimStore(fixture.database, self, fixture.faults, lambda operation, result: None)
        self.lifecycle = Lifecycle(self.store, clock, fixture.new_id, holder=name)
        lanes = LocalLanes(self.store, clock, name)
        memory = MemoryManager((), self.store, clock, lanes, random=self.random.random)
        hooks = plugins.HookRunner(self.store, clock, plugins.load_plugins(()))
        prompts = PromptBuilder(Path("/nonexistent"), memory, clock)
        preparer = Preparer(self.store, self.lifecycle, prompts, clock, output_tokens_max=1000)

        async def tools(ref: SessionRef) -> SessionTools:
            return SessionTools(Toolbox(), OWNER_RIGHTS)

        agent = Agent(
            self.lifecycle,
            memory,
            preparer,
            ModelCaller(self.lifecycle, clock, self.random.random, hooks),
            ToolRunner(self.lifecycle, hooks),
            tools,
            clock,
            limits=TurnLimits(recall_s=0.0),
        )
        choice = ModelChoice("sim/one", "one", Oracle(self, clock, fixture.asked))
        self.scheduling = ScheduleService(self.store, clock, fixture.new_id)
        self.scheduler = Scheduler(
            self.store,
            clock,
            self.lifecycle,
            self.scheduling,
            agent,
            RightsLookup(self.store, RightsPolicy("me")),
            lambda _: [choice],
            Settings(Path("/nonexistent")),
            lambda reply: None,
            lambda uow, owner: False,
            poll_s=300.0,
        )

    async def run(self) -> None:
        await self.scheduler.run()


class Simulation:
    def __init__(self, seed: int, start: float, loop: SimLoop) -> None:
        self.random = random.Random(seed)
        self.clock = SimClock(loop)
        self.clock.offset = start
        self.database = fresh_database()
        self.faults = Faults()
        self.asked: Counter[str] = Counter()
        self.offices: dict[str, SchedulingProcess] = {}
        self.kills = 0
        self._numbers = itertools.count(1)

    def new_id(self) -> str:
        return f"{next(self._numbers):026d}"

    def start(self, place: str) -> None:
        console = SchedulingProcess(self, f"{place}-{self.new_id()}", self.random.randrange(2**32))
        self.offices[place] = console
        console.spawn(console.run())

    async def week(self) -> None:
        end = self.clock.now() + WEEK_S
        self.start("a")
        self.start("b")
        back: dict[str, float] = {}
        while self.clock.now() < end:
            for place in [place for place, at in back.items() if at <= self.clock.now()]:
                del back[place]
                self.start(place)
            await asyncio.sleep(self.random.uniform(60, 3600))
            place = self.random.choice("ab")
            self._hurt(self.offices[place])
            # A process that is to be killed during its work needs some work first.
            await asyncio.sleep(self.random.uniform(0, 900))
            for each, console in self.offices.items():
                if console.dead and each not in back:
                    back[each] = self.clock.now() + self.random.uniform(0, DOWN_S_MAX - 2 * 3600)
                    self.kills += 1
        for console in self.offices.values():
            console.kill()
        self.faults.busy = 0
        self.start("a")
        self.start("b")
        await asyncio.sleep(AFTER_S)

    def _hurt(self, console: SchedulingProcess) -> None:
        match self.random.choice(("kill", "statement", "statement", "freeze", "busy", "nothing")):
            case "kill":
                console.kill()
            case "statement":
                console.kill_after_statements = self.random.randrange(60)
            case "freeze":
                console.frozen_until = asyncio.get_running_loop().time() + self.random.uniform(20, 120)
            case "busy":
                self.faults.busy += self.random.randrange(1, 4)
            case _:
                pass


def lived(seed: int, zone: str, day: str) -> tuple[Simulation, list[Schedule], float]:
    """Run the week. Return the simulation, the schedules, and the end of the week."""
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).timestamp() - 3 * 86_400 + 1
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    fixture = Simulation(seed, start, loop)
    kept: list[Schedule] = []

    async def live() -> None:
        clerk = SchedulingProcess(fixture, "clerk", seed)
        others = itertools.product((MissedPolicy.ONCE, MissedPolicy.SKIP), PLANS[:2])
        for missed, plan in (*((MissedPolicy.ALL, plan) for plan in PLANS), *others):
            target = Target(TargetKind.CHAT, f"agent:main:post:dm:{missed.value}")
            wish = NewSchedule("ann", plan, zone, f"{missed.value} {plan}", target=target, missed=missed)
            kept.append(await clerk.scheduling.add(wish))
        await fixture.week()

    try:
        loop.run_until_complete(live())
        return fixture, kept, fixture.clock.now() - 1800
    finally:
        for console in fixture.offices.values():
            console.kill()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()


def expected(schedule: Schedule, end: float) -> list[float]:
    found = itertools.takewhile(lambda at: at <= end, occurrences(schedule.plan, schedule.anchor))
    return list(found)


def after_the_end(fixture: Simulation, end: float) -> list[tuple[object, ...]]:
    """Runs of the last half hour, which may be unfinished."""
    asked = "SELECT schedule_id FROM occurrences o WHERE due_at > ? AND EXISTS (SELECT 1 FROM turns t JOIN inbox i "
    return list(fixture.database.execute(f"{asked} ON t.turn_id = i.turn_id WHERE i.id = o.inbox_id)", (end,)))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("zone", "day", "seed"), [(zone, days[seed % 2], seed) for zone, days in WEEKS.items() for seed in range(2)]
)
def test_each_due_time_of_a_week_with_a_clock_change_runs_once(zone: str, day: str, seed: int) -> None:
    fixture, kept, end = lived(seed, zone, day)
    found = "SELECT schedule_id, due_at, state, session_id FROM occurrences WHERE due_at <= ?"
    rows = list(fixture.database.execute(found, (end,)))
    turns = Counter(row[0] for row in fixture.database.execute("SELECT session_id FROM turns WHERE status = 'done'"))
    replies = Counter(
        row[0] for row in fixture.database.execute("SELECT session_id FROM replies WHERE state = 'ready'")
    )
    assert fixture.kills > 20, "too few kills for a meaningful test"
    for schedule in kept:
        mine = [row for row in rows if row[0] == schedule.id]
        done = sorted(row[1] for row in mine if row[2] == OccurrenceState.DONE)
        times = expected(schedule, end)
        assert {row[2] for row in mine} <= {OccurrenceState.DONE, OccurrenceState.SKIPPED}
        assert set(done) <= set(times)
        if schedule.missed is MissedPolicy.ALL:
            # Only retained runs can be compared. The older ones were checked before.
            assert done == times[-len(done) :]
            assert len(done) >= min(len(times), 95)
        for _, due_at, state, session_id in mine:
            if state == OccurrenceState.DONE:
                assert (turns[session_id], replies[session_id]) == (1, 1), (schedule.prompt, due_at)
    said = [row[0] for row in fixture.database.execute("SELECT content FROM messages WHERE role = 'user'")]
    assert len(said) == len(set(said)), "each prompt names the task and its due time"
    in_all = sum(len(expected(schedule, end)) for schedule in kept if schedule.missed is MissedPolicy.ALL)
    later = sum(row[0] in {s.id for s in kept if s.missed is MissedPolicy.ALL} for row in after_the_end(fixture, end))
    assert sum("\nall " in text for text in said) == in_all + later, (
        "the total includes runs that are no longer retained"
    )
    assert inconsistencies(fixture.database) == []
