"""Candidate ids of a sent Telegram message, and the end of the search for it."""

from __future__ import annotations

from itertools import islice

import pytest

from everthread.adapters.platforms.telegram.message_ids import (
    EMPTY_MAX,
    KNOWN_MAX,
    OWN_KNOWN_MAX,
    PROBES_MAX,
    IdSearch,
    KnownMessageIds,
)
from everthread.domain.errors import SendUncertain

ANN, BEN, GROUP, SUPERGROUP, OTHER = 7, 8, -500, -1_001_000_000_007, -1_001_000_000_008


def test_private_chats_and_groups_share_a_sequence_and_supergroups_have_their_own() -> None:
    message_ids = KnownMessageIds()
    message_ids.add(ANN, 5)
    message_ids.add(GROUP, 9)
    message_ids.add(SUPERGROUP, 300)
    assert message_ids.position(ANN) == message_ids.position(BEN) == message_ids.position(GROUP)
    assert message_ids.newest(BEN) == 9
    assert message_ids.newest(SUPERGROUP) == 300
    assert message_ids.position(OTHER) == "", "no id of this chat is known"


def test_known_ids_of_the_same_sequence_are_not_probed() -> None:
    message_ids = KnownMessageIds()
    message_ids.add(ANN, 5)
    position = message_ids.position(ANN)
    for number in (6, 8, 11):
        message_ids.add(BEN, number)
    message_ids.add(SUPERGROUP, 7)
    assert list(islice(message_ids.unknown(ANN, position, None), 4)) == [7, 9, 10, 12]
    assert list(message_ids.unknown(ANN, position, 10)) == [7, 9]


def test_the_newest_id_is_the_highest_in_any_order() -> None:
    message_ids = KnownMessageIds()
    message_ids.add(ANN, 9)
    position = message_ids.position(ANN)
    message_ids.add(ANN, 5)
    assert message_ids.position(ANN) == position


def test_a_position_of_another_sequence_is_uncertain() -> None:
    message_ids = KnownMessageIds()
    message_ids.add(GROUP, 5)
    for position in (message_ids.position(GROUP), "", "nonsense"):
        with pytest.raises(SendUncertain):
            next(message_ids.unknown(SUPERGROUP, position, None))


def test_only_the_last_ids_are_kept() -> None:
    message_ids = KnownMessageIds()
    for number in range(KNOWN_MAX + 3):
        message_ids.add(ANN, number)
    assert not message_ids.is_known(ANN, 2)
    assert message_ids.is_known(ANN, 3)


def test_fewer_ids_are_kept_for_each_supergroup() -> None:
    message_ids = KnownMessageIds()
    for number in reversed(range(OWN_KNOWN_MAX + 3)):
        message_ids.add(SUPERGROUP, number)
    assert [message_ids.is_known(SUPERGROUP, number) for number in (0, 1, 2, 3)] == [False, False, False, True]
    assert message_ids.is_known(SUPERGROUP, OWN_KNOWN_MAX + 2)


def test_a_position_older_than_the_kept_ids_is_uncertain() -> None:
    message_ids = KnownMessageIds()
    for number in range(7, OWN_KNOWN_MAX + 10):
        message_ids.add(SUPERGROUP, number)
    kept = f"{SUPERGROUP}/9"
    assert next(message_ids.unknown(SUPERGROUP, kept, None)) == OWN_KNOWN_MAX + 10
    with pytest.raises(SendUncertain, match="too many messages"):
        # Ids of our own messages before this position are no longer known.
        next(message_ids.unknown(SUPERGROUP, f"{SUPERGROUP}/8", None))


def asked(newest: int, theirs: range, after: int = 100) -> int:
    """Count the probed ids until the search ends; ids in `theirs` exist, all others do not."""
    search = IdSearch(newest)
    for count, number in enumerate(range(after + 1, 10**6)):
        if search.is_over(number):
            return count
        search.record(number, exists=number in theirs)
    raise AssertionError("it is never over")


def test_the_search_ends_after_a_gap_behind_the_newest_id() -> None:
    assert asked(100, range(0)) == EMPTY_MAX
    assert asked(120, range(0)) == 20 + EMPTY_MAX, "ids up to the newest may belong to other chats"
    assert asked(100, range(110, 115)) == 14 + EMPTY_MAX


def test_the_number_of_probes_is_limited() -> None:
    with pytest.raises(SendUncertain, match=str(PROBES_MAX)):
        asked(100 + 10 * PROBES_MAX, range(0))
    with pytest.raises(SendUncertain):
        asked(100, range(10**6))
