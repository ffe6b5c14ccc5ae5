"""Days full of faults for memory providers, each with a seed of its own: what was lost, doubled, or in the wrong place.

python -m benchmarks.provider_faults [--json] [--only NAME ...] [--seeds N] [--first SEED]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests import fake_backends as fake_back_ends
from tests.provider_backend import ProviderBackend
from tests.provider_faults import LIMITS, PATIENT, Day, lived

from everthread.memory.delivery import Limits

MakeBackEnd = Callable[[], AbstractContextManager[ProviderBackend]]
"""An empty back end for one day."""


@contextmanager
def _hindsight() -> Iterator[MakeBackEnd]:
    """The real server, with its model on; each day has banks of its own."""
    from tests.servers.hindsight_server import hindsight
    from tests.servers.hindsight_session import KEEPS, back_end_of
    from tests.servers.proxy import Door

    with hindsight(extracting=True) as house, Door(house.address, KEEPS) as door:

        @contextmanager
        def made() -> Iterator[ProviderBackend]:
            prefix = f"t{uuid.uuid4().hex[:12]}"
            yield back_end_of(house, door, {"address": house.address, "bank": prefix, "profile": "main"}, prefix)

        yield made


@contextmanager
def _honcho() -> Iterator[MakeBackEnd]:
    yield fake_back_ends.honcho


@contextmanager
def _openviking() -> Iterator[MakeBackEnd]:
    """The real server; each day has an account of its own."""
    from tests.servers.openviking_server import KEEPS, KEY, back_end_of, openviking
    from tests.servers.proxy import Door

    with openviking() as house, Door(house.address, KEEPS) as door:

        @contextmanager
        def made() -> Iterator[ProviderBackend]:
            account = f"t{uuid.uuid4().hex[:12]}"
            yield back_end_of(house, door, {"url": house.address, "api_key": KEY, "account": account}, account)

        yield made


@contextmanager
def _mem0() -> Iterator[MakeBackEnd]:
    """The real library, which waits a second for its model, and a folder for each day. Facts are drawn."""
    from tests.servers.mem0_library import mem0

    from everthread.adapters.memory.mem0 import local_client as library

    library.REQUEST_S_MAX = 1.0

    @contextmanager
    def made() -> Iterator[ProviderBackend]:
        with tempfile.TemporaryDirectory() as folder, mem0(Path(folder)) as house:
            yield house.back_end()

    yield made


@contextmanager
def _mem0_platform() -> Iterator[MakeBackEnd]:
    yield lambda: fake_back_ends.mem0(infer=False)


@contextmanager
def _supermemory() -> Iterator[MakeBackEnd]:
    yield fake_back_ends.supermemory


@contextmanager
def _hermes() -> Iterator[MakeBackEnd]:
    """The real Hermes Agent's plugin `holographic`, and a home for each day; see tests/faulty_python.py."""
    from tests.servers.hermes_memories import Facts

    @contextmanager
    def made() -> Iterator[ProviderBackend]:
        with tempfile.TemporaryDirectory() as folder:
            yield Facts(Path(folder) / "bridge").back_end()

    yield made


async def _hermes_day(folder: Path, back_end: ProviderBackend, seed: int) -> Day:
    from tests.hermes_provider_faults import LIMITS, SAYS, spoiled
    from tests.servers.hermes_memories import compare

    day = await lived(folder, back_end, seed, LIMITS, spoiled, SAYS)
    compare(day, back_end)
    return day


Live = Callable[[Path, ProviderBackend, int], Awaitable[Day]]
"""One day with a seed."""


def _within(limits: Limits) -> Live:
    return lambda folder, back_end, seed: lived(folder, back_end, seed, limits)


BACK_ENDS: dict[str, tuple[Callable[[], AbstractContextManager[MakeBackEnd]], Live]] = {
    "hermes": (_hermes, _hermes_day),
    "hindsight": (_hindsight, _within(PATIENT)),
    "honcho": (_honcho, _within(LIMITS)),
    "openviking": (_openviking, _within(PATIENT)),
    "mem0": (_mem0, _within(PATIENT)),
    "mem0-platform": (_mem0_platform, _within(LIMITS)),
    "supermemory": (_supermemory, _within(LIMITS)),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.provider_faults", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--only", nargs="+", choices=list(BACK_ENDS), default=list(BACK_ENDS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=20, help="how many days")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first")
    given = parser.parse_args()
    # Each failed delivery would be told of.
    logging.disable(logging.WARNING)
    found = {name: _days(name, range(given.first, given.first + given.seeds)) for name in given.only}
    counted = {name: _counted(days) for name, days in found.items()}
    print(json.dumps(counted, indent=2) if given.json else _table(counted))
    problems = [f"{name}, seed {day.seed}: {each}" for name, of in found.items() for day in of for each in day.problems]
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


def _days(name: str, seeds: range) -> list[Day]:
    make, live = BACK_ENDS[name]
    days: list[Day] = []
    with make() as made:
        for seed in seeds:
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as folder, made() as back_end:
                days.append(asyncio.run(_awaited(live(Path(folder), back_end, seed))))
            print(f"{name}, seed {seed}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return days


async def _awaited(day: Awaitable[Day]) -> Day:
    return await day


def _counted(days: list[Day]) -> dict[str, object]:
    return {
        "days": len(days),
        "boundaries": sum(day.boundaries for day in days),
        "sessions": sum(day.sessions for day in days),
        "turns": sum(day.turns for day in days),
        "closes": sum(day.closes for day in days),
        "deliveries": sum(day.attempts for day in days),
        "requests": sum(day.requests for day in days),
        "told_again": sum(day.again for day in days),
        "spoiled": dict(sum((day.spoiled for day in days), Counter[str]())),
        "problems": sum(len(day.problems) for day in days),
    }


def _table(counted: dict[str, dict[str, object]]) -> str:
    lines: list[str] = []
    for name, counts in counted.items():
        lines.append(name)
        lines += [
            f"    {what:<12}{count if not isinstance(count, dict) else json.dumps(count)}"
            for what, count in counts.items()
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
