"""Inject each fault many times into real processes; count messages lost, duplicated or misrouted.

python -m benchmarks.faults [--json] [--only NAME ...] [--times N] [--list]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from msgspec import to_builtins
from tests.faults import downloads, kills, many_chats, memory, network, replies
from tests.faults.result import Outcome

Fault = Callable[..., Awaitable[Outcome]]
"""Called with a folder and a number of repetitions; some also take a platform."""

FAULTS: dict[str, tuple[Fault, int]] = {
    "killed at the reply": (memory.killed_at_the_reply, 20),
    "provider fails for a while": (memory.failing_for_a_while, 20),
    "provider hangs, /new, exit": (memory.hanging_then_new_then_exit, 20),
    "/new while a provider hangs": (memory.new_while_hanging, 50),
    "evicted, then /new": (memory.evicted_then_new, 50),
    "killed, then expired": (memory.killed_then_expired, 20),
    "delivered twice": (replies.delivered_twice, 40),
    "50 chats in mid-turn": (many_chats.in_mid_turn, 50),
    "ended with slow writes": (memory.ended_with_slow_writes, 20),
    "right after a reply": (replies.right_after_a_reply, 20),
    "200 people in mid-turn": (partial(many_chats.in_mid_turn, steps=12, seed=2), 200),
    "provider hangs beside": (replies.hanging_beside, 20),
    "provider hangs beside, asked before each turn": (partial(replies.hanging_beside, recall=True, tasks=True), 20),
    "killed under load": (kills.killed_under_load, 100),
    "killed under load, sends that show twice": (partial(kills.killed_under_load, repeats=True), 100),
    "killed while answers are shown": (partial(kills.killed_under_load, edits=True, life_s_max=5.0, seed=3), 20),
    "waiting at the start": (network.waiting_at_the_start, 100),
    "told to wait": (network.told_to_wait, 40),
    "cut off": (network.cut_off, 20),
    "answer lost": (network.answer_lost, 40),
}
"""On the loopback platform, which can show a message once although it was sent twice."""

ON_TELEGRAM: dict[str, tuple[Fault, int]] = {
    "killed at the reply": (memory.killed_at_the_reply, 20),
    "delivered twice": (replies.delivered_twice, 40),
    "200 people in mid-turn": (partial(many_chats.in_mid_turn, steps=12, seed=2), 200),
    "right after a reply": (replies.right_after_a_reply, 20),
    "killed under load": (kills.killed_under_load, 100),
    "killed while answers are shown": (partial(kills.killed_under_load, edits=True, life_s_max=5.0, seed=3), 20),
    "waiting at the start": (network.waiting_at_the_start, 100),
    "told to wait": (network.told_to_wait, 40),
    "cut off": (network.cut_off, 20),
    "answer lost": (network.answer_lost, 40),
    "killed while fetching": (downloads.killed_while_fetching, 20),
}
for label, platform in (("Telegram", "telegram"), ("Telegram by webhook", "webhook")):
    FAULTS |= {f"{label}: {name}": (partial(fault, platform=platform), n) for name, (fault, n) in ON_TELEGRAM.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.faults", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument(
        "--only", nargs="+", choices=FAULTS, metavar="NAME", help="run only these faults; --list prints the names"
    )
    parser.add_argument("--times", type=int, help="repetitions of each fault instead of its default")
    parser.add_argument("--list", action="store_true", help="print the names and default repetitions")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{times:4}  {name}" for name, (_, times) in FAULTS.items()))
        return 0
    outcomes: dict[str, dict[str, object]] = {}
    for name in options.only or FAULTS:
        fault, times = FAULTS[name]
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = asyncio.run(_run(fault, Path(folder) / "scene", options.times or times))
            except AssertionError as error:
                outcome = Outcome(times, problems=[str(error)[:2000]])
        outcomes[name] = to_builtins(outcome)
        if not options.json:
            print(f"{'FAILED' if outcome.problems else 'ok':6}  {name}, {outcome.repetitions} times", flush=True)
            for what, count in outcome.counts.items():
                print(f"        {count:10g}  {what}")
            for problem in outcome.problems[:10]:
                print(f"        {problem}")
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(outcomes))
    return int(any(outcome["problems"] for outcome in outcomes.values()))


async def _run(fault: Fault, folder: Path, times: int) -> Outcome:
    return await fault(folder, times)


if __name__ == "__main__":
    sys.exit(main())
