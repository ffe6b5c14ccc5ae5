"""The corpus `chat-zipf-1`: generated chat messages, the same for every run.

Words come from a vocabulary of 30,000 with a Zipf distribution (the n-th most common word in proportion to
1 / (n + 2.7)); common words are shorter. Lengths are log-normal with a mean of about 410 characters (430 bytes), as in
chats: many short messages, few very long ones. One message in twenty is Chinese. One in five holds the word `MARKER`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

NAME = "chat-zipf-1"
MARKER = "lighthouse"
MARKER_EVERY = 5
CJK_EVERY = 20

_SEED = 20_240_601
_VOCABULARY = 30_000
_STREAM = 1_000_000
_HAN = 3_000
_HAN_STREAM = 200_000
_LENGTH_MU = 5.56
_LENGTH_SIGMA = 1.0
_CHARS_MIN = 8
_CHARS_MAX = 8_000


def messages(count: int, *, seed: int = _SEED) -> Iterator[str]:
    """Yield the first `count` texts. Each is a slice of one long stream of words, which is cheap to make."""
    rng = random.Random(seed)
    words = rng.choices(_vocabulary(rng), cum_weights=_zipf(_VOCABULARY), k=_STREAM)
    chars_per_word = sum(map(len, words)) / _STREAM + 1
    han = "".join(rng.choices([chr(0x4E00 + n) for n in range(_HAN)], cum_weights=_zipf(_HAN), k=_HAN_STREAM))
    for index in range(count):
        chars = min(max(rng.lognormvariate(_LENGTH_MU, _LENGTH_SIGMA), _CHARS_MIN), _CHARS_MAX)
        marker = [MARKER] if index % MARKER_EVERY == 0 else []
        if index % CJK_EVERY == 1:
            # A Chinese text needs a third of the characters.
            start, length = rng.randrange(_HAN_STREAM - _CHARS_MAX), int(chars / 3) + 1
            yield "，".join(han[at : at + 12] for at in range(start, start + length, 12)) + "。"
        else:
            start, length = rng.randrange(_STREAM - _CHARS_MAX), int(chars / chars_per_word) + 1
            yield " ".join(marker + words[start : start + length]).capitalize() + "."


def questions(count: int, *, seed: int = _SEED) -> Iterator[str]:
    """Yield questions of four words with the frequencies of the corpus, without its 200 most common words."""
    words = _vocabulary(random.Random(seed))[200:]
    weights = [1 / (rank + 2.7) for rank in range(201, _VOCABULARY + 1)]
    rng = random.Random(seed + 1)
    for _ in range(count):
        yield " ".join(rng.choices(words, weights, k=4))


def _vocabulary(rng: random.Random) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < _VOCABULARY:
        syllables = 1 + min(len(found) // 60, 1) + min(len(found) // 3_000, 1) + rng.randrange(2)
        found["".join(rng.choice("bcdfghklmnprstvw") + rng.choice("aeiou") for _ in range(syllables))] = None
    return list(found)


def _zipf(size: int) -> list[float]:
    return list(accumulate(1 / (rank + 2.7) for rank in range(1, size + 1)))
