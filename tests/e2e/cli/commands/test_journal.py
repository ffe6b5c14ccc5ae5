"""`everthread journal`."""

from __future__ import annotations

import pytest
from tests.e2e.used_home import (
    UsedHome,
    assert_one_line,
    everthread,
    printed,
)

pytestmark = pytest.mark.usefixtures("compiled_once")


def test_status_shows_parked_entries_and_their_errors(lived: UsedHome) -> None:
    [picky] = printed("journal", "status", home=lived.home)
    assert (picky["provider"], picky["waiting_entries"], picky["parked"]) == ("picky", 0, 1)
    assert [entry["session"] for entry in picky["parked_entries"]] == [lived.lisbon]
    table = everthread("journal", "status", home=lived.home).stdout
    assert "not that" in table
    assert "\x1b" not in table, "control sequences of a provider must be removed"


def test_retry_delivers_parked_entries_again(lived: UsedHome) -> None:
    assert printed("journal", "retry", "picky", home=lived.home) == {
        "provider": "picky",
        "session": None,
        "entries": 1,
    }
    [picky] = printed("journal", "status", home=lived.home)
    assert (picky["waiting_entries"], picky["parked"]) == (1, 0)
    assert "Nothing is parked" in everthread("journal", "retry", "picky", home=lived.home).stdout


def test_retry_can_be_limited_to_a_session(lived: UsedHome) -> None:
    assert printed("journal", "retry", "picky", lived.chat, home=lived.home)["entries"] == 0
    done = printed("journal", "retry", "picky", lived.lisbon, home=lived.home)
    assert (done["session"], done["entries"]) == (lived.lisbon, 1)


def test_replay_delivers_a_session_or_everything_again(lived: UsedHome) -> None:
    one = printed("journal", "replay", "picky", "日本旅行", home=lived.home)
    assert (one["session"], one["sessions"]) == (lived.chat, 1)
    assert printed("journal", "status", home=lived.home)[0]["waiting_sessions"] == 1
    assert printed("journal", "replay", "picky", home=lived.home)["sessions"] > 1


def test_an_unknown_provider_is_refused_and_the_known_ones_listed(lived: UsedHome) -> None:
    assert_one_line(everthread("journal", "retry", "nobody", home=lived.home), 1, "nobody", "picky")
    assert_one_line(everthread("journal", "replay", "picky", "no such", home=lived.home), 1, "no such")
