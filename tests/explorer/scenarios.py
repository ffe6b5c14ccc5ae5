"""Scenarios: a starting point, the steps that are explored from it, and the bounds.

All steps at once reach only a small depth. A scenario has the steps that bear on one subject, and all of their orders.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.explorer.actions import Action, Bounds
from tests.explorer.boundary_steps import BOUNDARY_STEPS
from tests.explorer.delivery_steps import DELIVERY_STEPS, delivery
from tests.explorer.settling import send_everything
from tests.explorer.turn_steps import TURN_STEPS
from tests.explorer.world import World

STEPS = {**TURN_STEPS, **BOUNDARY_STEPS, **DELIVERY_STEPS}

EMPTY: tuple[Action, ...] = ()
ONE_TURN = (Action("converse", key="K"),)
TWO_TURNS = (*ONE_TURN, Action("converse", key="K"))
TWO_SESSIONS = (*ONE_TURN, Action("new", key="K"), Action("converse", key="K"))
SHARED_SESSION = (*TWO_TURNS, Action("resume", key="L", detail="K.02"))
_COMPRESSION = (Action("summarise", key="K", detail="everything"), Action("compress", key="K"))
COMPRESSED_TWICE = (*ONE_TURN, *_COMPRESSION, Action("converse", key="K"), *_COMPRESSION, Action("new", key="K"))


@dataclass(frozen=True, slots=True)
class Scenario:
    """Steps to explore from a starting point."""

    name: str
    start: tuple[Action, ...]
    verbs: tuple[str, ...]
    bounds: Bounds
    depth: int
    """Default depth of `make model`."""
    small_depth: int
    """Depth in the ordinary test suite."""
    keys: tuple[str, ...] = ("K",)
    providers: tuple[str, ...] = ("alpha",)

    def new_world(self) -> World:
        """Create the world at the starting point."""
        world = World(STEPS, self.keys, self.providers)
        try:
            for provider in self.providers:
                world.run(delivery(world, "P", provider).register())
            for action in self.start:
                world.perform(action)
            send_everything(world)
            world.release_lanes()
        except BaseException:
            world.close()
            raise
        return world

    def choices(self, world: World) -> list[Action]:
        return [action for verb in self.verbs for action in STEPS[verb].choices(world, self.bounds)]


_FAILURES = ("kill", "stall", "recover")

SCENARIOS = (
    Scenario(
        "turns",
        ONE_TURN,
        ("accept", "begin", "commit", "abandon", "new", "resume", "rewind", *_FAILURES),
        Bounds(messages=3, sessions=3),
        depth=5,
        small_depth=3,
    ),
    Scenario(
        "boundaries",
        TWO_SESSIONS,
        (
            *("new", "reset", "resume", "branch", "summarise", "compress", "rewind", "suspend", "forget"),
            *("converse", "wait", "expire"),
        ),
        Bounds(messages=4, sessions=5),
        depth=3,
        small_depth=2,
    ),
    Scenario(
        "shared session",
        SHARED_SESSION,
        ("accept", "begin", "commit", "new", "branch", "summarise", "compress", "rewind", "forget", "wait", "expire"),
        Bounds(messages=4, sessions=3),
        depth=2,
        small_depth=1,
        keys=("K", "L"),
    ),
    Scenario(
        "lineage",
        COMPRESSED_TWICE,
        ("resume", "branch", "branch from", "rewind", "summarise", "compress", "forget", "converse"),
        Bounds(messages=3, sessions=6),
        depth=2,
        small_depth=1,
    ),
    Scenario(
        "running turn",
        (*TWO_TURNS, Action("accept", key="K"), Action("begin", key="K")),
        (
            *("commit", "new", "reset", "resume", "branch", "summarise", "compress", "rewind", "suspend", "forget"),
            *("note", "wait", "expire", *_FAILURES),
        ),
        Bounds(messages=3, sessions=3),
        depth=3,
        small_depth=1,
    ),
    Scenario(
        "delivery",
        EMPTY,
        ("converse", "new", "resume", "rewind", "note", "forget", "deliver", "retry"),
        Bounds(messages=2, sessions=3),
        depth=3,
        small_depth=2,
        providers=("alpha", "beta", "bare"),
    ),
    Scenario(
        "replies",
        EMPTY,
        ("accept", "begin", "commit", "new", "rewind", "send", "kill", "recover"),
        Bounds(messages=2, sessions=2),
        depth=6,
        small_depth=4,
    ),
    Scenario(
        "commands",
        ONE_TURN,
        ("accept", "begin", "commit", "command", "run command", "rewind", *_FAILURES),
        Bounds(messages=3, sessions=3),
        depth=5,
        small_depth=3,
    ),
    Scenario("everything", ONE_TURN, tuple(STEPS), Bounds(), depth=2, small_depth=1),
)
