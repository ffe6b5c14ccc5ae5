"""Measure each boundary, with short and long sessions and with few and many keys."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice, repeat
from pathlib import Path

from benchmarks.measurement import Calls, Figure, batch_cpu_ms, cpu_ms
from benchmarks.store_fixture import OWNER, StoreFixture, keys, store_fixture
from benchmarks.store_turns import equal_texts
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

_BoundaryFactory = Callable[[SessionRef], Boundary]


def _plain_boundaries(now: float) -> dict[str, _BoundaryFactory]:
    """Return the boundaries that need only an open session with one turn."""
    return {
        "new": lambda ref: New(),
        "reset": lambda ref: Reset(),
        "branch": lambda ref: Branch(),
        "compress": lambda ref: Compress(ref.session_id, ref.generation, "They talked about the weather.", 1),
        "rewind": lambda ref: Rewind(1),
        "expire": lambda ref: Expire(ResetPolicy(idle_s=1.0), now + 86_400.0),
        "suspend": lambda ref: Suspend(close_memory=True),
    }


async def cross_boundaries(folder: Path) -> dict[str, Figure]:
    """Measure each boundary from a session of one turn, one at a time."""
    samples: dict[str, list[float]] = {}
    async with store_fixture(folder) as fixture:
        four = list(islice(equal_texts(), 4))
        plain = _plain_boundaries(fixture.clock.now())
        batches = {name: _cross_calls(fixture, four, make_boundary) for name, make_boundary in plain.items()}
        batches["resume"] = _resume_calls(fixture, four)
        # Interleaved: they are compared with each other and with one target.
        for _ in range(BATCHES):
            for name, calls in batches.items():
                samples.setdefault(name, []).append(await batch_cpu_ms(await anext(calls)))
        forget_cost = await cpu_ms(_forget_calls(fixture, four))
    return {
        **{f"cross_cpu_ms.{name}": Figure.of(values[1:]) for name, values in samples.items()},
        "forget_session_cpu_ms": forget_cost,
    }


async def branch_long_session(folder: Path) -> dict[str, Figure]:
    """Measure a branch of a session of 100,000 messages."""
    (key,) = keys(1)
    async with store_fixture(folder) as fixture:
        texts = repeat("A message of a very long session.", LONG_SESSION_MESSAGES)
        await fixture.fill(lambda number: key, texts, per_turn=LONG_TURN_MESSAGES)
        parent = await _current(fixture, key)
        before = _count_rows(fixture)
        figure = await cpu_ms(_branch_calls(fixture, key, parent.session_id))
        after = _count_rows(fixture)
        assert before == after == (LONG_SESSION_MESSAGES // LONG_TURN_MESSAGES, LONG_SESSION_MESSAGES), (before, after)
    return {"branch_100k_ms": figure}


async def look_up_bindings(folder: Path) -> dict[str, Figure]:
    """Measure the lookup of a binding with few keys and with many."""
    samples: dict[int, list[float]] = {count: [] for count in LIVE_KEYS}
    rng = random.Random(1)
    session_keys = keys(max(LIVE_KEYS))
    async with AsyncExitStack() as stack:
        fixtures = {count: await stack.enter_async_context(store_fixture(folder)) for count in LIVE_KEYS}
        for count, fixture in fixtures.items():
            await fixture.bind(session_keys[:count])
        # Interleaved: other load on the machine affects all of them alike.
        for _ in range(LOOKUP_ROUNDS):
            for count, fixture in fixtures.items():
                some = [session_keys[rng.randrange(count)] for _ in range(LOOKUPS)]
                calls = [partial(fixture.lifecycle.current, key) for key in some]
                samples[count].append(await batch_cpu_ms(calls))
    return {f"binding_lookup_ms.{count}": Figure.of(values[1:]) for count, values in samples.items()}


async def _start_sessions(fixture: StoreFixture, four: list[str]) -> dict[SessionKey, SessionRef]:
    """Start a new session with one turn for each key."""
    session_keys = keys(BATCH)
    await asyncio.gather(*(fixture.lifecycle.cross(key, New(), owner=OWNER) for key in session_keys))
    await fixture.run_turns(session_keys, four)
    refs = await asyncio.gather(*(_current(fixture, key) for key in session_keys))
    return dict(zip(session_keys, refs, strict=True))


async def _cross_calls(fixture: StoreFixture, four: list[str], make_boundary: _BoundaryFactory) -> AsyncIterator[Calls]:
    cross = partial(fixture.lifecycle.cross, owner=OWNER)
    for _ in range(BATCHES):
        yield [partial(cross, key, make_boundary(ref)) for key, ref in (await _start_sessions(fixture, four)).items()]


async def _resume_calls(fixture: StoreFixture, four: list[str]) -> AsyncIterator[Calls]:
    cross = partial(fixture.lifecycle.cross, owner=OWNER)
    for _ in range(BATCHES):
        targets = await _start_sessions(fixture, four)
        here = await _start_sessions(fixture, four)
        yield [partial(cross, key, Resume(targets[key].session_id)) for key in here]


async def _forget_calls(fixture: StoreFixture, four: list[str]) -> AsyncIterator[Calls]:
    forget = partial(fixture.lifecycle.forget, owner=OWNER)
    for _ in range(5):
        yield [
            partial(forget, ForgetSession(ref.session_id))
            for ref in list((await _start_sessions(fixture, four)).values())[:3]
        ]


async def _branch_calls(fixture: StoreFixture, key: SessionKey, parent_id: str) -> AsyncIterator[Calls]:
    cross = partial(fixture.lifecycle.cross, key, owner=OWNER)
    for _ in range(BRANCHES):
        yield [partial(cross, Branch())]
        await cross(Resume(parent_id))


async def _current(fixture: StoreFixture, key: SessionKey) -> SessionRef:
    ref = await fixture.lifecycle.current(key)
    assert ref is not None
    return ref


def _count_rows(fixture: StoreFixture) -> tuple[int, int]:
    """Count the stored turns and messages."""
    return fixture.number("SELECT COUNT(*) FROM turns"), fixture.number("SELECT COUNT(*) FROM messages")
