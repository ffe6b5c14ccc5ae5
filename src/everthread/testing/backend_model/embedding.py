"""Embeddings without a model: hashed bags of words. Texts that share words are close to each other."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import struct
from functools import lru_cache

DIMENSIONS = 384
_WORD = re.compile(r"\w+")
_STEM_CHARS = 5
_STEM_WEIGHT = 0.5


def embed(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Embed a text as a vector of length one."""
    vector = [0.0] * dimensions
    for word in _WORD.findall(text.lower()):
        # Short words occur in most texts, so they weigh less.
        whole = min(len(word), _STEM_CHARS) / _STEM_CHARS
        for piece, weight in ((word, whole), (f"{word[:_STEM_CHARS]}*", whole * _STEM_WEIGHT)):
            number = _hashed(piece)
            vector[number // 2 % dimensions] += weight if number % 2 else -weight
    length = math.sqrt(sum(value * value for value in vector))
    if not length:
        # Text without words: a valid unit vector that is far from all others.
        return [1.0] + [0.0] * (dimensions - 1)
    return [value / length for value in vector]


def encode_base64(vector: list[float]) -> str:
    """Encode a vector as base64 of little-endian 32-bit floats, the compact form that clients may request."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


@lru_cache(maxsize=65_536)
def _hashed(piece: str) -> int:
    return int.from_bytes(hashlib.blake2b(piece.encode(), digest_size=8).digest(), "big")
