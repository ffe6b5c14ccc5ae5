"""Fault runs for any provider: seeded faults between provider and back end while sessions change.

Subclass `ProviderFaults` and define a fixture `back_end`, or call `lived` for the counts of one run. The faults come
from a TCP proxy, unless the fixture `spoil` is overridden.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from everthread.domain.boundary import Branch, New, Resume
from everthread.domain.events import Delivery
from everthread.domain.model import SessionRef
from everthread.memory.delivery_results import Limits
from everthread.ports.memory import MemoryProvider
from everthread.testing.fault_proxy import FaultProxy
from tests.provider_backend import ProviderBackend
from tests.runtime import CLI, TELEGRAM, CoreFixture, opened

SEEDS = 3
RATE = 0.4
STEPS = 14
FAULTS_MIN = 12
FAULTS_S_MAX = 40.0
HEALED_S_MAX = 120.0
LIMITS = Limits(attempt_s_max=0.5, backoff_s=0.02, backoff_s_max=0.1, breaker_s=0.1)
PATIENT = Limits(attempt_s_max=8.0, backoff_s=0.05, backoff_s_max=0.3, breaker_s=0.2)
"""Limits for a real, slower server."""
KEYS = {"ann": CLI, "bob": TELEGRAM}


class Spoiling(Protocol):
    """Fault injector between a provider and its back end."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that route the provider's requests through the injector."""
        ...

    @property
    def spoiled(self) -> Counter[str]: ...

    @property
    def requests(self) -> int: ...

    def heal(self) -> None:
        """Stop injecting faults."""
        ...


Spoil = Callable[[ProviderBackend, int], AbstractAsyncContextManager[Spoiling]]
"""Create the fault injector of one run, by seed."""


@dataclass
class Day:
    """Result of a run. `problems` is empty if every turn is stored once, in its session, with the close after it."""

    seed: int
    said: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Words by person."""
    turns: int = 0
    sessions: int = 0
    boundaries: int = 0
    closes: int = 0
    attempts: int = 0
    """Deliveries of turns and closes, including failed ones."""
    requests: int = 0
    again: int = 0
    """Duplicate turns in a back end that cannot deduplicate."""
    spoiled: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list[str])


class _Proxied:
    def __init__(self, proxy: FaultProxy, settings: Mapping[str, Any]) -> None:
        self._proxy = proxy
        self.settings = {name: _through(proxy, value) for name, value in settings.items()}

    @property
    def spoiled(self) -> Counter[str]:
        return Counter({fault.value: count for fault, count in self._proxy.injected.items()})

    @property
    def requests(self) -> int:
        return self._proxy.passed + self._proxy.injected.total()

    def heal(self) -> None:
        self._proxy.heal()


@asynccontextmanager
async def proxied(back_end: ProviderBackend, seed: int) -> AsyncIterator[Spoiling]:
    async with FaultProxy(_port(back_end), seed=seed, rate=RATE) as proxy:
        yield _Proxied(proxy, back_end.settings)


async def lived(
    folder: Path,
    back_end: ProviderBackend,
    seed: int,
    limits: Limits = LIMITS,
    spoil: Spoil = proxied,
    says: str = "remember",
) -> Day:
    """Run turns and boundaries of two people under faults, then stop the faults and wait for all deliveries."""
    day, dice = Day(seed), random.Random(seed)
    provider = _watched(back_end.made())
    async with spoil(back_end, seed) as way:
        async with CoreFixture(folder, provider, limits=limits, settings={provider.name: way.settings}) as core:
            said = await _talk(core, day, dice, says)
            deadline = time.monotonic() + FAULTS_S_MAX
            while way.spoiled.total() < FAULTS_MIN and time.monotonic() < deadline:  # noqa: ASYNC110 - it only counts
                await asyncio.sleep(0.05)
            way.heal()
            await _arrived(core, day)
            # A close cleans up duplicates of late requests.
            for owner, key in KEYS.items():
                await core.cross(key, New(), owner=owner)
            await _arrived(core, day)
        day.requests, day.spoiled = way.requests, way.spoiled
    day.sessions, day.turns = len(said), sum(map(len, said.values()))
    day.attempts = provider.attempts
    day.closes = sum(what == "close" for _, what in provider.taken)
    _compare(day, said, back_end, provider.taken)
    return day


async def _talk(core: CoreFixture, day: Day, dice: random.Random, says: str) -> dict[str, list[str]]:
    """Run turns and boundaries. Return the words said in each session."""
    said: dict[str, list[str]] = {}
    words = (f"word{number:03d}" for number in itertools.count(1))
    for step in range(STEPS):
        for owner, key in KEYS.items():
            word = next(words)
            session = (await core.turn(key, f"{says} {word}", owner=owner)).ref.session_id
            said.setdefault(session, []).append(word)
            day.said.setdefault(owner, []).append(word)
        owner = dice.choice(list(KEYS))
        await _cross(core, owner, step, dice)
        day.boundaries += 1
        await asyncio.sleep(dice.random() * 0.2)
    return said


async def _cross(core: CoreFixture, owner: str, step: int, dice: random.Random) -> None:
    """Cross a boundary. Each run covers every kind; a resume picks any session of the person."""
    key = KEYS[owner]
    sessions = await core.store.read(lambda uow: uow.sessions.of_owner(owner))
    resumable = sorted(session.id for session in sessions if session.kind.value == "chat")
    boundary = (New(), Branch(), Resume(dice.choice(resumable)))[step % 3]
    opened(await core.cross(key, boundary, owner=owner))
    if step % 5 == 0:
        await core.note(f"note {step} of {owner}", await core.at(key), owner=owner)


async def _arrived(core: CoreFixture, day: Day) -> None:
    deadline = time.monotonic() + HEALED_S_MAX
    [status] = await core.memory.journal.status()
    while status.lanes.waiting_entries:
        if time.monotonic() > deadline:
            day.problems.append(f"still waiting: {status}")
            return
        await asyncio.sleep(0.05)
        [status] = await core.memory.journal.status()
    if status.parked:
        day.problems.append(f"parked: {status.parked}")


def _compare(day: Day, said: dict[str, list[str]], back_end: ProviderBackend, taken: Sequence[tuple[str, str]]) -> None:
    stored: dict[str, list[str]] = {}
    for effect in back_end.held():
        if effect.kind == "turn":
            stored.setdefault(effect.session_id, []).extend(re.findall(r"word\d+", effect.text)[:1])
    for session in {*said, *stored}:
        if back_end.knows_no_keys:
            stored[session], told = list(dict.fromkeys(stored.get(session, []))), len(stored.get(session, []))
            day.again += told - len(stored[session])
        if stored.get(session, []) != said.get(session, []):
            day.problems.append(f"{session}: said {said.get(session)}, there is {stored.get(session)}")
    for session, words in said.items():
        told = [what for where, what in taken if where == session]
        if not told or told[-1] != "close":
            day.problems.append(f"{session}: the close is not the last that it was told: {told}")
        if missing := set(words) - set(told):
            day.problems.append(f"{session}: closed without {missing}")
        if back_end.keeps_closes and len(back_end.closes(session)) != 1:
            day.problems.append(f"{session}: {len(back_end.closes(session))} closes")


class _Watched(MemoryProvider):
    taken: list[tuple[str, str]]
    """Session and word, or `close`, in the order of acknowledgement."""
    attempts: int


def _watched(provider: MemoryProvider) -> _Watched:
    kind = type(provider)

    class Watched(kind):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass] - of whatever comes
        taken: list[tuple[str, str]]
        attempts: int

        async def sync_turn(
            self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any
        ) -> None:
            self.attempts += 1
            await _awaited(super().sync_turn(user, assistant, ref=ref, delivery=delivery, **more))
            self.taken.append((ref.session_id, user.split()[-1]))

        async def on_session_end(self, messages: Any, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
            self.attempts += 1
            await _awaited(super().on_session_end(messages, ref=ref, delivery=delivery, **more))
            self.taken.append((ref.session_id, "close"))

    provider.__class__ = Watched
    provider.__dict__.update(taken=[], attempts=0)
    return provider  # pyright: ignore[reportReturnType] - as it is now


def _port(back_end: ProviderBackend) -> int:
    [port] = [int(found[1]) for value in back_end.settings.values() if (found := re.search(_ADDRESS, str(value)))]
    return port


def _through(proxy: FaultProxy, value: Any) -> Any:
    found = re.search(_ADDRESS, str(value))
    return f"{proxy.url}{found[2] or ''}" if found else value


_ADDRESS = r"^http://127\.0\.0\.1:(\d+)(/.*)?$"


async def _awaited(returned: Any) -> None:
    if returned is not None:
        await returned


class ProviderFaults:
    says = "remember"
    """Prefix of each word."""

    @pytest.fixture
    def back_end(self) -> ProviderBackend:
        raise NotImplementedError("give the days a fixture `back_end`")

    @pytest.fixture
    def limits(self) -> Limits:
        return LIMITS

    @pytest.fixture
    def spoil(self) -> Spoil:
        return proxied

    @pytest.mark.timeout(240)
    @pytest.mark.parametrize("seed", range(SEEDS))
    async def test_after_faults_of_every_kind_each_turn_is_stored_once_before_its_close(
        self, tmp_path: Path, back_end: ProviderBackend, limits: Limits, spoil: Spoil, seed: int
    ) -> None:
        day = await lived(tmp_path, back_end, seed, limits, spoil, self.says)
        self.look_closer(day, back_end)
        assert day.problems == []
        assert day.spoiled.total() >= FAULTS_MIN, day.spoiled

    def look_closer(self, day: Day, back_end: ProviderBackend) -> None:
        """Hook for further checks: append failures to `day.problems`."""
