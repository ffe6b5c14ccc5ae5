"""Pieces of an answer that have arrived together."""

from __future__ import annotations

from collections.abc import Iterator

from everthread.adapters.models.sse import joined_up
from everthread.ports.model import Delta


def test_neighbours_of_one_kind_are_one_piece() -> None:
    assert list(joined_up([Delta("a"), Delta("b"), Delta("c")])) == [Delta("abc")]


def test_what_was_thought_stays_before_what_was_then_said() -> None:
    pieces = [Delta(reasoning="hm"), Delta(reasoning="m"), Delta("so"), Delta("!"), Delta(reasoning="or")]
    assert list(joined_up(pieces)) == [Delta(reasoning="hmm"), Delta("so!"), Delta(reasoning="or")]


def test_nothing_is_no_piece() -> None:
    assert list(joined_up([])) == []


def test_what_came_before_an_error_is_passed_on_before_it() -> None:
    def breaking() -> Iterator[Delta]:
        yield Delta("as far ")
        yield Delta("as this")
        raise ConnectionError

    heard: list[Delta] = []
    try:
        heard.extend(joined_up(breaking()))
    except ConnectionError:
        heard.append(Delta("!"))
    assert heard == [Delta("as far as this"), Delta("!")]
