"""Garbage collection of a serving process, in a process of its own: the tuning cannot be undone."""

from __future__ import annotations

import subprocess
import sys

FROZEN = """
import gc, weakref
from everthread.gateway.server import Gateway
from everthread.gc_tuning import collect_and_freeze

before = len(gc.get_objects())
collect_and_freeze()
assert len(gc.get_objects()) < before / 20, (before, len(gc.get_objects()))
"""

CYCLE_IS_COLLECTED = """
class Node:
    pass

node = Node()
node.itself = node
collected = weakref.ref(node)
del node
numbers = [[number] for number in range(50_000)]
assert collected() is None
"""


def test_objects_from_the_start_are_not_scanned_again() -> None:
    subprocess.run([sys.executable, "-c", FROZEN], check=True)


def test_a_later_reference_cycle_is_collected() -> None:
    subprocess.run([sys.executable, "-c", FROZEN + CYCLE_IS_COLLECTED], check=True)


def test_a_terminal_freezes_without_a_collection() -> None:
    frozen = FROZEN.replace("collect_and_freeze", "freeze").replace("before = ", "gc.disable()\nbefore = ")
    record = "phases = []\ngc.callbacks.append(lambda phase, info: phases.append(phase))\n"
    start = frozen.index("before = ")
    script = frozen[:start] + record + frozen[start:] + "\nassert not phases, phases\n"
    subprocess.run([sys.executable, "-c", script], check=True)
