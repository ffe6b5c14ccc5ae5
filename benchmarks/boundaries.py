"""Boundaries: what each costs, and that neither a long session nor many keys make one dearer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice, repeat
from pathlib import Path

from benchmarks.measuring import Calls, Figure, batch_cpu_ms, cpu_ms
from benchmarks.stage import OWNER, Stage, keys, staged
from benchmarks.turns import texts_of_one_size
from everthread.domain.boundary import Boundary, Branch, Compress, Expire, New, Reset, Resume, Rewind, Suspend
from everthread.domain.model import SessionKey, SessionRef
from everthread.domain.reset_policy import ResetPolicy
from everthread.lifecycle import ForgetSession

BATCH = 25
BATCHES = 13
LONG_SESSION_MESSAGES = 100_000
LONG_TURN_MESSAGES = 20
BRANCHES = 40
LIVE_KEYS = (100, 1_000, 100_000)
LOOKUP_ROUNDS = 30
LOOKUPS = 50

_Made = Callable[[SessionRef], Boundary]


def _plain_boundaries(now: float) -> dict[str, _Made]:
    """Boundaries that need nothing but a session with a turn that was not closed yet."""
    return {
        "new": lambda ref: New(),
        "reset": lambda ref: Reset(),
        "branch": lambda ref: Branch(),
        "compress": lambda ref: Compress(ref.session_id, ref.generation, "They talked about the weather.", 1),
        "rewind": lambda ref: Rewind(1),
        "expire": lambda ref: Expire(ResetPolicy(idle_s=1.0), now + 86_400.0),
        "suspend": lambda ref: Suspend(close_memory=True),
    }


async def crossed(folder: Path) -> dict[str, Figure]:
    """Each boundary from a session of one turn, waiting for each."""
    samples: dict[str, list[float]] = {}
    async with staged(folder) as stage:
        four = list(islice(texts_of_one_size(), 4))
        plain = _plain_boundaries(stage.clock.now())
        batches = {name: _crossings(stage, four, made) for name, made in plain.items()}
        batches["resume"] = _resumes(stage, four)
        # In turns, because they are compared with each other and with one target.
        for _ in range(BATCHES):
            for name, calls in batches.items():
                samples.setdefault(name, []).append(await batch_cpu_ms(await anext(calls)))
        forgettings = await cpu_ms(_forgettings(stage, four))
    return {
        **{f"cross_cpu_ms.{name}": Figure.of(taken[1:]) for name, taken in samples.items()},
        "forget_session_cpu_ms": forgettings,
    }


async def branched(folder: Path) -> dict[str, Figure]:
    """A branch of a session of 100,000 messages."""
    (key,) = keys(1)
    async with staged(folder) as stage:
        texts = repeat("A message of a very long session.", LONG_SESSION_MESSAGES)
        await stage.fill(lambda number: key, texts, per_turn=LONG_TURN_MESSAGES)
        parent = await _at(stage, key)
        before = _rows(stage)
        figure = await cpu_ms(_branches(stage, key, parent.session_id))
        after = _rows(stage)
        assert before == after == (LONG_SESSION_MESSAGES // LONG_TURN_MESSAGES, LONG_SESSION_MESSAGES), (before, after)
    return {"branch_100k_ms": figure}


async def looked_up(folder: Path) -> dict[str, Figure]:
    """Where a key is, with few keys and with many."""
    samples: dict[int, list[float]] = {count: [] for count in LIVE_KEYS}
    rng = random.Random(1)
    places = keys(max(LIVE_KEYS))
    async with AsyncExitStack() as open_stages:
        stages = {count: await open_stages.enter_async_context(staged(folder)) for count in LIVE_KEYS}
        for count, stage in stages.items():
            await stage.bind(places[:count])
        # In turns, because they are compared with each other: whatever else the machine does concerns all of them.
        for _ in range(LOOKUP_ROUNDS):
            for count, stage in stages.items():
                some = [places[rng.randrange(count)] for _ in range(LOOKUPS)]
                calls = [partial(stage.lifecycle.current, key) for key in some]
                samples[count].append(await batch_cpu_ms(calls))
    return {f"binding_lookup_ms.{count}": Figure.of(taken[1:]) for count, taken in samples.items()}


async def _fresh(stage: Stage, four: list[str]) -> dict[SessionKey, SessionRef]:
    """Each key on a new session with one turn."""
    places = keys(BATCH)
    await asyncio.gather(*(stage.lifecycle.cross(key, New(), owner=OWNER) for key in places))
    await stage.talked(places, four)
    refs = await asyncio.gather(*(_at(stage, key) for key in places))
    return dict(zip(places, refs, strict=True))


async def _crossings(stage: Stage, four: list[str], made: _Made) -> AsyncIterator[Calls]:
    cross = partial(stage.lifecycle.cross, owner=OWNER)
    for _ in range(BATCHES):
        yield [partial(cross, key, made(ref)) for key, ref in (await _fresh(stage, four)).items()]


async def _resumes(stage: Stage, four: list[str]) -> AsyncIterator[Calls]:
    cross = partial(stage.lifecycle.cross, owner=OWNER)
    for _ in range(BATCHES):
        targets = await _fresh(stage, four)
        here = await _fresh(stage, four)
        yield [partial(cross, key, Resume(targets[key].session_id)) for key in here]


async def _forgettings(stage: Stage, four: list[str]) -> AsyncIterator[Calls]:
    forget = partial(stage.lifecycle.forget, owner=OWNER)
    for _ in range(5):
        yield [partial(forget, ForgetSession(ref.session_id)) for ref in list((await _fresh(stage, four)).values())[:3]]


async def _branches(stage: Stage, key: SessionKey, parent_id: str) -> AsyncIterator[Calls]:
    cross = partial(stage.lifecycle.cross, key, owner=OWNER)
    for _ in range(BRANCHES):
        yield [partial(cross, Branch())]
        await cross(Resume(parent_id))


async def _at(stage: Stage, key: SessionKey) -> SessionRef:
    ref = await stage.lifecycle.current(key)
    assert ref is not None
    return ref


def _rows(stage: Stage) -> tuple[int, int]:
    """How many turns and messages are stored."""
    return stage.number("SELECT COUNT(*) FROM turns"), stage.number("SELECT COUNT(*) FROM messages")
