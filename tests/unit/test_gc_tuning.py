"""What Python's search for dead objects goes through once a process serves. In a process of its own: it is for good."""

from __future__ import annotations

import subprocess
import sys

SETTLED = """
import gc, weakref
from everthread.gateway.server import Gateway
from everthread.gc_tuning import settle

before = len(gc.get_objects())
settle()
assert len(gc.get_objects()) < before / 20, (before, len(gc.get_objects()))
"""

STILL_FOUND = """
class Ring:
    pass

ring = Ring()
ring.itself = ring
gone = weakref.ref(ring)
del ring
numbers = [[number] for number in range(50_000)]
assert gone() is None
"""


def test_what_was_there_at_the_start_is_not_gone_through_again() -> None:
    subprocess.run([sys.executable, "-c", SETTLED], check=True)


def test_what_dies_later_in_a_ring_is_still_found_by_itself() -> None:
    subprocess.run([sys.executable, "-c", SETTLED + STILL_FOUND], check=True)


def test_a_terminal_is_not_kept_waiting_by_a_search_before_it_settles() -> None:
    settled = SETTLED.replace("settle", "settle_at_once").replace("before = ", "gc.disable()\nbefore = ")
    searches = "\nassert not searched, searched\n"
    begin = "import gc\nsearched = []\ngc.callbacks.append(lambda phase, info: searched.append(phase))\n"
    at = settled.index("before = ")
    subprocess.run([sys.executable, "-c", settled[:at] + begin + settled[at:] + searches], check=True)
