"""Sessions of Hermes as sessions of this program."""

from __future__ import annotations

from tests.hermes_rows import START, Rows, session, translated, words

from everthread.domain.model import TurnStatus
from everthread.hermes_import.turns import RUNNING_S, turns_of


def test_a_turn_is_the_user_message_and_everything_up_to_the_answer() -> None:
    rows = Rows().say("user", "a").say("assistant", "", tool_calls="[]x").say("tool", "r").say("assistant", "b")
    rows.say("user", "c").say("user", "d").say("assistant", "e").say("assistant", "by the way")
    found = list(turns_of(rows.rows))
    assert [[row.content for row in turn.rows] for turn in found] == [
        ["a", "", "r", "b"],
        ["c"],
        ["d", "e"],
        ["by the way"],
    ]
    assert [turn.status for turn in found] == [
        TurnStatus.DONE,
        TurnStatus.INTERRUPTED,
        TurnStatus.DONE,
        TurnStatus.DONE,
    ]


def test_messages_not_addressed_to_the_agent_are_set_aside() -> None:
    [turn] = turns_of(Rows().say("user", "psst", observed=True).rows)
    assert turn.status is TurnStatus.SET_ASIDE


def test_an_unanswered_message_waits_for_the_next_import() -> None:
    rows = Rows().talk("a").say("user", "b").rows
    arriving, translator = translated((session("s"), rows), now=START + 10)
    assert (words(arriving["s"]), translator.unfinished) == (["a"], 1)
    late, _ = translated((session("s"), rows), now=START + RUNNING_S + 10)
    assert words(late["s"]) == ["a", "b"]
    ended, _ = translated((session("s", ended_at=START + 9), rows), now=START + 10)
    assert words(ended["s"]) == ["a", "b"]


def test_a_turn_that_has_grown_is_not_matched_with_its_earlier_state() -> None:
    rows = Rows().say("user", "a").rows
    before, _ = translated((session("s"), rows))
    after, _ = translated((session("s"), [*rows, Rows().talk("x").rows[1]]))
    assert before["s"].turns[0].id != after["s"].turns[0].id
