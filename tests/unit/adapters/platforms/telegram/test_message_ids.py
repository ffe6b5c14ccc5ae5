"""Which numbers a message on Telegram may have, and when enough of them were asked for."""

from __future__ import annotations

from itertools import islice

import pytest

from everthread.adapters.platforms.telegram.message_ids import (
    ASKED_MAX,
    EMPTY_MAX,
    OWN_SEEN_MAX,
    SEEN_MAX,
    Numbers,
    Search,
)
from everthread.domain.errors import SendUncertain

ANN, BEN, GROUP, SUPERGROUP, OTHER = 7, 8, -500, -1_001_000_000_007, -1_001_000_000_008


def test_private_chats_and_groups_are_counted_together_and_supergroups_apart() -> None:
    numbers = Numbers()
    numbers.saw(ANN, 5)
    numbers.saw(GROUP, 9)
    numbers.saw(SUPERGROUP, 300)
    assert numbers.mark(ANN) == numbers.mark(BEN) == numbers.mark(GROUP)
    assert numbers.newest(BEN) == 9
    assert numbers.newest(SUPERGROUP) == 300
    assert numbers.mark(OTHER) == "", "nothing is known there"


def test_what_was_seen_anywhere_in_the_same_count_is_not_asked_for() -> None:
    numbers = Numbers()
    numbers.saw(ANN, 5)
    mark = numbers.mark(ANN)
    for number in (6, 8, 11):
        numbers.saw(BEN, number)
    numbers.saw(SUPERGROUP, 7)
    assert list(islice(numbers.unknown(ANN, mark, None), 4)) == [7, 9, 10, 12]
    assert list(numbers.unknown(ANN, mark, 10)) == [7, 9]


def test_the_newest_is_the_highest_whatever_is_seen_last() -> None:
    numbers = Numbers()
    numbers.saw(ANN, 9)
    mark = numbers.mark(ANN)
    numbers.saw(ANN, 5)
    assert numbers.mark(ANN) == mark


def test_a_mark_of_another_count_says_nothing() -> None:
    numbers = Numbers()
    numbers.saw(GROUP, 5)
    for mark in (numbers.mark(GROUP), "", "nonsense"):
        with pytest.raises(SendUncertain):
            next(numbers.unknown(SUPERGROUP, mark, None))


def test_only_the_last_numbers_are_kept() -> None:
    numbers = Numbers()
    for number in range(SEEN_MAX + 3):
        numbers.saw(ANN, number)
    assert not numbers.is_seen(ANN, 2)
    assert numbers.is_seen(ANN, 3)


def test_of_each_supergroup_fewer_are_kept_whatever_is_seen_last() -> None:
    numbers = Numbers()
    for number in reversed(range(OWN_SEEN_MAX + 3)):
        numbers.saw(SUPERGROUP, number)
    assert [numbers.is_seen(SUPERGROUP, number) for number in (0, 1, 2, 3)] == [False, False, False, True]
    assert numbers.is_seen(SUPERGROUP, OWN_SEEN_MAX + 2)


def test_where_numbers_are_not_kept_any_more_nobody_can_say() -> None:
    numbers = Numbers()
    for number in range(7, OWN_SEEN_MAX + 10):
        numbers.saw(SUPERGROUP, number)
    kept = f"{SUPERGROUP}/9"
    assert next(numbers.unknown(SUPERGROUP, kept, None)) == OWN_SEEN_MAX + 10
    with pytest.raises(SendUncertain, match="too long ago"):
        # What was ours among them would be taken for something that nobody has heard of.
        next(numbers.unknown(SUPERGROUP, f"{SUPERGROUP}/8", None))


def asked(newest: int, theirs: range, after: int = 100) -> int:
    """How many numbers are asked for until it is over, if those are others' and the rest nobody's."""
    search = Search(newest)
    for count, number in enumerate(range(after + 1, 10**6)):
        if search.is_over(number):
            return count
        search.heard(number, is_anybodys=number in theirs)
    raise AssertionError("it is never over")


def test_it_is_over_behind_the_newest_where_nothing_is_for_a_while() -> None:
    assert asked(100, range(0)) == EMPTY_MAX
    assert asked(120, range(0)) == 20 + EMPTY_MAX, "up to the newest, others' chats have numbers too"
    assert asked(100, range(110, 115)) == 14 + EMPTY_MAX


def test_too_many_are_not_asked_for() -> None:
    with pytest.raises(SendUncertain, match=str(ASKED_MAX)):
        asked(100 + 10 * ASKED_MAX, range(0))
    with pytest.raises(SendUncertain):
        asked(100, range(10**6))
