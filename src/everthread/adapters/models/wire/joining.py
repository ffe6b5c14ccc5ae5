"""Pieces of an answer that have arrived together, passed on together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from everthread.ports.model import Delta


def joined_up(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """Neighbours of one kind as one. What came before an error is passed on before it."""
    texts: list[str] = []
    reasonings: list[str] = []
    try:
        for delta in deltas:
            if (reasonings and delta.text) or (texts and delta.reasoning):
                yield Delta("".join(texts), "".join(reasonings))
                texts, reasonings = [], []
            if delta.text:
                texts.append(delta.text)
            if delta.reasoning:
                reasonings.append(delta.reasoning)
    except Exception:
        if texts or reasonings:
            yield Delta("".join(texts), "".join(reasonings))
        raise
    if texts or reasonings:
        yield Delta("".join(texts), "".join(reasonings))
