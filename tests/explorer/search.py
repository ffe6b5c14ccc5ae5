"""Breadth-first search over all schedules of a scenario, with the shortest trace to a violation.

The states of a level are reached again by walking the tree of first visits with savepoints. Per state, this stores one
step and a hash instead of a copy of the database.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from tests.explorer.actions import Action, Outcome, crash_variants, overtaken_variants
from tests.explorer.checks import check_settled, check_step
from tests.explorer.fingerprint import fingerprint
from tests.explorer.scenarios import STEPS, Scenario
from tests.explorer.settling import answer_everything, send_everything
from tests.explorer.world import World

STATEMENTS_DEPTH = 1
"""Up to this depth, a process is also killed before each statement, not only before and after each commit."""

Progress = Callable[["Findings"], None]


@dataclass
class Findings:
    """The result of a search."""

    name: str
    states: int = 1
    transitions: int = 0
    settled: int = 0
    depth: int = 0
    """The depth that was explored completely."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Transitions by verb and crash point."""
    violation: str = ""
    trace: tuple[Action, ...] = ()
    in_settling: bool = False
    """The violation was found after the last step, while the remaining work was completed."""
    is_exhausted: bool = False
    """No further state exists within the bounds."""


class _Violated(Exception):
    """A step broke an invariant."""


@dataclass(slots=True)
class _Node:
    """A state at its first visit: the step that led to it."""

    action: Action | None = None
    children: list[_Node] = field(default_factory=list["_Node"])


class Search:
    """Explores one scenario."""

    def __init__(self, scenario: Scenario, progress: Progress = lambda findings: None) -> None:
        self._scenario = scenario
        self._progress = progress
        self._root = _Node()
        self._seen: set[bytes] = set()
        self._settling: set[bytes] = set()
        self._answered: set[bytes] = set()
        self._path: list[Action] = []
        self.findings = Findings(scenario.name)

    def run(self, depth: int) -> Findings:
        """Explore all schedules of up to `depth` steps, or until the first violation."""
        findings, started, cpu = self.findings, time.monotonic(), time.process_time()
        try:
            with closing(self._start()) as self._world:
                self._explore(depth)
        except _Violated as error:
            findings.violation, findings.trace = str(error), (*self._scenario.start, *self._path)
        findings.seconds, findings.cpu_s = time.monotonic() - started, time.process_time() - cpu
        return findings

    def _start(self) -> World:
        try:
            return self._scenario.new_world()
        except Exception as error:
            raise _Violated(f"on the way to the starting point: {_describe(error)}") from error

    def _explore(self, depth: int) -> None:
        findings = self.findings
        self._seen.add(fingerprint(self._world)[0])
        for level in range(depth):
            before = findings.states
            for node in self._walk(self._root, level):
                self._expand(node, level)
            findings.depth = level + 1
            if findings.states == before:
                findings.is_exhausted = True
                break

    def _walk(self, node: _Node, levels: int) -> Iterator[_Node]:
        """Yield the nodes at a depth, each while the world is in its state."""
        if not levels:
            yield node
            return
        for child in node.children:
            assert child.action is not None
            with self._world.undo_after():
                self._path.append(child.action)
                self._world.perform(child.action)
                yield from self._walk(child, levels - 1)
                self._path.pop()

    def _expand(self, node: _Node, level: int) -> None:
        """Try every step and every crash during it."""
        bounds, used = self._scenario.bounds, self._world.state.used
        for action in self._scenario.choices(self._world):
            outcome = self._try(node, action)
            if used["crashes"] < bounds.crashes:
                for variant in crash_variants(action, outcome, each_statement=level < STATEMENTS_DEPTH):
                    self._try(node, variant)
            if STEPS[action.verb].may_be_overtaken and not action.detail and used["stalls"] < bounds.stalls:
                for variant in overtaken_variants(action, outcome):
                    self._try(node, variant)
        self._progress(self.findings)

    def _try(self, node: _Node, action: Action) -> Outcome:
        """Take one step, check the state, and keep it if it is new."""
        world, findings = self._world, self.findings
        findings.transitions += 1
        findings.counts[action.verb, action.crash_label] += 1
        self._path.append(action)
        with world.undo_after():
            try:
                outcome = world.perform(action)
                check_step(world)
                mark, content = fingerprint(world)
                if mark not in self._seen:
                    self._seen.add(mark)
                    findings.states += 1
                    node.children.append(_Node(action))
                    self._settle(content)
                    findings.in_settling = False
            except Exception as error:
                raise _Violated(_describe(error)) from error
        self._path.pop()
        return outcome

    def _settle(self, content: bytes) -> None:
        """Check that all work is completed if the faults end in this state."""
        if content in self._settling:
            return
        self._settling.add(content)
        self.findings.in_settling = True
        answer_everything(self._world)
        check_step(self._world)
        # Many states become equal once all messages are answered.
        _, answered = fingerprint(self._world)
        if answered in self._answered:
            return
        self._answered.add(answered)
        self.findings.settled += 1
        send_everything(self._world)
        check_settled(self._world)


def _describe(error: Exception) -> str:
    where = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name != "require"][-1]
    return f"{type(error).__name__}: {error} ({where.name} in {where.filename.rsplit('/', 1)[-1]})"
