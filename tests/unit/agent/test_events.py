"""The lines that events show to a user."""

from __future__ import annotations

import pytest

from everthread.agent.events import REVIEW_NAMES_MAX, Compressed, Reviewed
from everthread.domain.model import ChatType, SessionKey, SessionRef
from everthread.domain.review_window import ReviewWindow

REF = SessionRef(session_id="s1", generation=0, key=SessionKey("main", "cli", ChatType.DM, "here"), epoch=1, owner="me")


@pytest.mark.parametrize(
    ("turns", "why", "shown"),
    [
        (1, "", "Compressed: 1 turn into a summary (about 9,000 tokens before, 800 now)"),
        (
            2,
            "it is down",
            "2 turns into a mechanical extract (about 9,000 tokens before, 800 now; no summary could be ",
        ),
    ],
)
def test_a_compression_event_names_turns_tokens_and_the_reason_of_an_extract(turns: int, why: str, shown: str) -> None:
    text = Compressed(REF, turns, 9_000, 800, why).text
    assert shown in text
    assert why in text


def test_a_review_names_some_notes_and_counts_the_others() -> None:
    names = tuple(f"note {number}" for number in range(REVIEW_NAMES_MAX + 2))
    text = Reviewed(REF, ReviewWindow(1, 10), names, ("too long",)).text
    assert f"{names[REVIEW_NAMES_MAX - 1]}; and 2 more" in text
    assert names[REVIEW_NAMES_MAX] not in text
    assert "a review could not add: too long. Remove notes" in text
