"""Run memory providers through seeded days of faults; count turns lost, duplicated or misrouted.

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

from everthread.memory.delivery_results import Limits

MakeBackEnd = Callable[[], AbstractContextManager[ProviderBackend]]
"""Makes an empty back end for one day."""


@contextmanager
def _hindsight() -> Iterator[MakeBackEnd]:
    """Use the real server with its model enabled; each day has its own banks."""
    from tests.servers.hindsight_server import hindsight
    from tests.servers.hindsight_session import KEEPS, back_end_of
    from tests.servers.proxy import FaultProxyServer

    with hindsight(extracting=True) as server, FaultProxyServer(server.address, KEEPS) as proxy:

        @contextmanager
        def make() -> Iterator[ProviderBackend]:
            prefix = f"t{uuid.uuid4().hex[:12]}"
            yield back_end_of(server, proxy, {"address": server.address, "bank": prefix, "profile": "main"}, prefix)

        yield make


@contextmanager
def _honcho() -> Iterator[MakeBackEnd]:
    yield fake_back_ends.honcho


@contextmanager
def _openviking() -> Iterator[MakeBackEnd]:
    """Use the real server; each day has its own account."""
    from tests.servers.openviking_server import KEEPS, KEY, back_end_of, openviking
    from tests.servers.proxy import FaultProxyServer

    with openviking() as server, FaultProxyServer(server.address, KEEPS) as proxy:

        @contextmanager
        def make() -> Iterator[ProviderBackend]:
            account = f"t{uuid.uuid4().hex[:12]}"
            yield back_end_of(server, proxy, {"url": server.address, "api_key": KEY, "account": account}, account)

        yield make


@contextmanager
def _mem0() -> Iterator[MakeBackEnd]:
    """Use the real library with a model timeout of one second and a folder for each day; facts are random."""
    from tests.servers.mem0_library import mem0

    from everthread.adapters.memory.mem0 import local_client as library

    library.REQUEST_S_MAX = 1.0

    @contextmanager
    def make() -> Iterator[ProviderBackend]:
        with tempfile.TemporaryDirectory() as folder, mem0(Path(folder)) as server:
            yield server.back_end()

    yield make


@contextmanager
def _mem0_platform() -> Iterator[MakeBackEnd]:
    yield lambda: fake_back_ends.mem0(infer=False)


@contextmanager
def _supermemory() -> Iterator[MakeBackEnd]:
    yield fake_back_ends.supermemory


@contextmanager
def _hermes() -> Iterator[MakeBackEnd]:
    """Use the plugin `holographic` of the real Hermes Agent and a home for each day; see tests/faulty_python.py."""
    from tests.servers.hermes_memories import Facts

    @contextmanager
    def make() -> Iterator[ProviderBackend]:
        with tempfile.TemporaryDirectory() as folder:
            yield Facts(Path(folder) / "bridge").back_end()

    yield make


async def _hermes_day(folder: Path, back_end: ProviderBackend, seed: int) -> Day:
    from tests.hermes_provider_faults import LIMITS, SAYS, spoiled
    from tests.servers.hermes_memories import compare

    day = await lived(folder, back_end, seed, LIMITS, spoiled, SAYS)
    compare(day, back_end)
    return day


Live = Callable[[Path, ProviderBackend, int], Awaitable[Day]]
"""Runs one day with a seed."""


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
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", nargs="+", choices=list(BACK_ENDS), default=list(BACK_ENDS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=20, help="number of days")
    parser.add_argument("--first", type=int, default=0, help="seed of the first day")
    options = parser.parse_args()
    # Every failed delivery would log a warning.
    logging.disable(logging.WARNING)
    found = {name: _days(name, range(options.first, options.first + options.seeds)) for name in options.only}
    summary = {name: _summarize(days) for name, days in found.items()}
    print(json.dumps(summary, indent=2) if options.json else _table(summary))
    problems = [f"{name}, seed {day.seed}: {each}" for name, of in found.items() for day in of for each in day.problems]
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


def _days(name: str, seeds: range) -> list[Day]:
    make, live = BACK_ENDS[name]
    days: list[Day] = []
    with make() as make:
        for seed in seeds:
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder, make() as back_end:
                days.append(asyncio.run(_await(live(Path(folder), back_end, seed))))
            print(f"{name}, seed {seed}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return days


async def _await(day: Awaitable[Day]) -> Day:
    return await day


def _summarize(days: list[Day]) -> dict[str, object]:
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


def _table(summary: dict[str, dict[str, object]]) -> str:
    lines: list[str] = []
    for name, counts in summary.items():
        lines.append(name)
        lines += [
            f"    {what:<12}{count if not isinstance(count, dict) else json.dumps(count)}"
            for what, count in counts.items()
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
