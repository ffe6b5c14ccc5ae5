"""Tuning of Python's cyclic garbage collector.

A full collection visits every object. Nearly all of them are modules, functions and classes that live as long as the
process, and reference cycles are rare.
"""

from __future__ import annotations

import gc

YOUNG_MAX = 10_000
"""Forty concurrent turns use some thousand objects: a lower threshold would visit each of them in vain."""
STARTING_MAX = 100_000
"""More objects than a process makes until its first answer."""


def postpone_collection() -> None:
    """Postpone collections during start-up. Call it first in every process: almost all objects made by imports stay."""
    gc.set_threshold(STARTING_MAX, *gc.get_threshold()[1:])


def collect_and_freeze() -> None:
    """Collect once and freeze all objects, in a process that starts to serve. A full collection would block every
    request.
    """
    gc.collect()
    freeze()


def freeze() -> None:
    """Freeze all objects without the collection, where a user would notice the pause. The few dead ones stay."""
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, *gc.get_threshold()[1:])


def skip_final_collection() -> None:
    """Skip the final collection of a process: the system reclaims its memory."""
    gc.freeze()
