"""Run every group against one gateway, print the counts, and exit with 1 if an attack succeeded."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.attacks import archives, bodies, injection, mcp, ownership, proxies, terminal, webhooks
from tests.attacks.attempts import Attempts
from tests.attacks.target import Target, target

RUN_S_MAX = 1200.0
SHOWN_MAX = 10

GROUPS: dict[str, Callable[[Target, Path], Awaitable[Attempts]]] = {
    "ownership": lambda target, _: ownership.attack(target),
    "proxies": proxies.attack,
    "webhooks": lambda target, _: webhooks.attack(target),
    "injection": lambda target, _: injection.attack(target),
    "mcp": lambda target, _: mcp.attack(target),
    "terminal": lambda target, _: terminal.attack(target),
    "archives": lambda target, folder: archives.attack(target, folder / "archives"),
    "bodies": lambda target, _: bodies.attack(target),
}


async def run(names: list[str]) -> list[Attempts]:
    """Run the groups in their order; the last one strains the gateway most."""
    results: list[Attempts] = []
    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        folder = Path(name)
        async with asyncio.timeout(RUN_S_MAX), target(folder) as attacked:
            for group in names:
                started = time.monotonic()
                found = await GROUPS[group](attacked, folder)
                if attacked.process.poll() is not None:
                    found.record("the gateway still runs", f"it ended with {attacked.process.returncode}")
                took = time.monotonic() - started
                print(
                    f"{found.group:<40} {found.count:>5} attempts, {len(found.successes):>3} succeeded, {took:.0f} s",
                    flush=True,
                )
                for success in found.successes[:SHOWN_MAX]:
                    print(f"    {success}")
                if len(found.successes) > SHOWN_MAX:
                    print(f"    and {len(found.successes) - SHOWN_MAX} more")
                results.append(found)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"groups to run (default: all): {', '.join(GROUPS)}")
    chosen = parser.parse_args().groups or list(GROUPS)
    if unknown := sorted(set(chosen) - set(GROUPS)):
        parser.error(f"unknown group {unknown[0]!r}; choose from {', '.join(GROUPS)}")
    results = asyncio.run(run(chosen))
    succeeded = sum(len(found.successes) for found in results)
    undelivered = sum(found.undelivered for found in results)
    print(f"{sum(found.count for found in results)} attempts, {succeeded} succeeded; "
          f"{undelivered} instructions did not reach the model and are not counted")  # fmt: skip
    return 1 if succeeded else 0
