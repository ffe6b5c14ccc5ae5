"""How much a message has to do with a question, from where the question's words were found.

After BM25 for words that occur once: a word counts by its rarity, and a long message for less than a short one. What
else the turn says of the question counts half, so that turns which hold more of its words come first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

# The newest messages of a word that are looked at. A word that has as many is common, and weighs least.
WORD_HITS_MAX = 100

_OCTETS = 400.0
_K1 = 1.2
_B = 0.3


def shares(found: Sequence[Sequence[int]], messages_per_turn: int) -> list[tuple[float, int]]:
    """Of the question's weight, the share that each message has, best first and newest first among equals.

    `found` has the ids of the messages that hold each of the words.
    """
    weights = [1 + math.log(WORD_HITS_MAX / min(len(ids), WORD_HITS_MAX)) if ids else 0.0 for ids in found]
    total = sum(weights)
    by_message: defaultdict[int, float] = defaultdict(float)
    by_turn: defaultdict[int, float] = defaultdict(float)
    for ids, weight in zip(found, weights, strict=True):
        for message_id in ids:
            by_message[message_id] += weight
        for turn in {message_id // messages_per_turn for message_id in ids}:
            by_turn[turn] += weight
    return sorted(
        ((own + by_turn[message_id // messages_per_turn]) / (2 * total), message_id)
        for message_id, own in by_message.items()
    )[::-1]


def brevity(octets: int) -> float:
    """The part of its share that a message of this size keeps, at most one."""
    return (1 + _K1 * (1 - _B)) / (1 + _K1 * (1 - _B + _B * octets / _OCTETS))
