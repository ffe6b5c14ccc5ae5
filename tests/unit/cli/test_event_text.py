"""Notices about the events of a turn, in the plain view and on a terminal."""

from __future__ import annotations

import re

import pytest

from everthread.agent.events import (
    Compressed,
    Compressing,
    CompressionFailed,
    Recalled,
    Retrying,
    Reviewed,
    Steered,
    TurnEvent,
)
from everthread.cli.chat.plain_view import PlainView
from everthread.cli.event_text import event_notices
from everthread.cli.terminal.styles import TextStyle
from everthread.cli.terminal.turn_view import TurnView
from everthread.domain.model import SessionKey, SessionRef
from everthread.domain.review_window import ReviewWindow
from everthread.ports.memory import RecallItem

REF = SessionRef("s", 0, SessionKey.parse("agent:main:cli:dm:1"), 1, "me")
EVENTS: list[tuple[TurnEvent, str]] = [
    (Compressing(), "almost too long for the model"),
    (
        Compressed(REF, 84, 64_300, 11_900),
        "Compressed: 84 turns into a summary (about 64,300 tokens before, 11,900 now)",
    ),
    (Compressed(REF, 1, 10, 5), "Compressed: 1 turn into a summary"),
    (
        Compressed(REF, 84, 64_300, 11_900, "it is down"),
        "into a mechanical extract (about 64,300 tokens before, 11,900 now; no summary could be made: it is down)",
    ),
    (
        Reviewed(REF, ReviewWindow(1, 10), ('"sails"', "the skill knots")),
        'Review noted: "sails"; the skill knots. /memory log shows it, /memory undo reverts it.',
    ),
    (Reviewed(REF, ReviewWindow(1, 10), ("a", "b", "c", "d", "e")), "Review noted: a; b; c; and 2 more."),
    (Retrying("it is busy", "fake/one", 2.0), "it is busy; asking fake/one in 2 s"),
    (Steered("in Lisbon", 1), "Passed to the running answer: in Lisbon"),
    (CompressionFailed("This conversation was not compressed: it is down."), "not compressed: it is down"),
]


@pytest.mark.parametrize(("event", "text"), EVENTS)
def test_both_views_show_the_notice(event: TurnEvent, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    PlainView(interactive=False, verbose=False).show_event(event)
    shown = capsys.readouterr()
    assert text in shown.err
    assert shown.out == "", "a notice is not part of an answer"
    answer, drawn = TurnView(
        TextStyle(colour=False), lambda: pytest.fail("nothing is drawn"), lambda: 0.0, verbose=False
    ).handle(event, 200)
    assert answer == ""
    assert text in " ".join(re.sub(r"\x1b\[[0-9;]*m", "", drawn).split())


def test_recalled_items_are_listed_with_verbose_only() -> None:
    event = Recalled((RecallItem("likes tea", provider="shoebox", session_id="01OLD"),), missing=("attic",))
    assert event_notices(event, verbose=False) == ()
    assert event_notices(event, verbose=True) == [
        "recalled (shoebox 01OLD): likes tea",
        "recalled nothing in time: attic",
    ]
