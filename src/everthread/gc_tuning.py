"""Python's search for objects that only refer to each other: it takes time, so it is to have little to look at.

Such objects are few here, and most others are gone before long; but a full search goes through all that there is. Of
that, nearly everything is there from the start: modules, functions, classes.
"""

from __future__ import annotations

import gc

YOUNG_MAX = 10_000
"""Forty turns side by side have some thousand objects in use: looked at more often, each is looked at in vain."""
STARTING_MAX = 100_000
"""More than a program makes until it has answered for the first time."""


def start() -> None:
    """For every process of ours, before it imports what it needs: all that is made then is there to stay."""
    gc.set_threshold(STARTING_MAX, *gc.get_threshold()[1:])


def settle() -> None:
    """For a process that serves from now on: what is there stays, and is never gone through again. Held by a full
    search for as long as that takes, nobody would be served."""
    gc.collect()
    settle_at_once()


def settle_at_once() -> None:
    """The same where somebody waits, and would feel that search: the little that is dead by now stays, too."""
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, *gc.get_threshold()[1:])


def end() -> None:
    """For a process that is done: Python would go through all that is left, only to free what the system takes back."""
    gc.freeze()
