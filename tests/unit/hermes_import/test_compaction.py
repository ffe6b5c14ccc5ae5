""""""

from __future__ import annotations

import pytest
from tests.hermes_rows import START, Rows, compacted, session, translated, words

from everthread.domain.model import Cause
from everthread.hermes_import.compaction import split_at_summaries, summary_of
from everthread.hermes_import.rows import MessageRow

SUMMARY = "[CONTEXT COMPACTION — REFERENCE ONLY] Earlier turns were compacted: they like mangoes."


MERGED = "[PRIOR CONTEXT — for reference only]\n{}\n\n[END OF PRIOR CONTEXT — SUMMARY BELOW]\n\n" + SUMMARY


def test_a_summary_in_a_new_session_shows_the_end_of_the_old_one_in_place() -> None:
    old = session("p", end_reason="compression", ended_at=START + 100)
    rows = Rows(START + 100).say("user", "a").say("assistant", SUMMARY).talk("c", "new").rows
    found, _ = translated((old, Rows().talk("a", "b", "c").rows), (session("c", "p", started_at=START + 100), rows))
    line = found["c"].line
    assert (line.parent, line.base.turn, line.floor, line.cause) == ("p", 3, 2, Cause.COMPRESSION)
    assert line.summary is not None
    assert "mangoes" in line.summary
    assert words(found["c"]) == ["new"]


def test_a_summary_in_the_same_session_makes_a_continuation_of_it() -> None:
    rows = Rows().talk("a", "b", "c", active=False, compacted=True)
    rows.say("user", "a").say("assistant", MERGED.format("You said: b")).talk("c", "new")
    found, _ = translated((session("s", title="Talk"), rows.rows))
    first, second = found["s"], found["s.2"]
    assert (words(first), first.line.title, first.line.end_reason) == (["a", "b", "c"], "Talk", "compressed")
    line = second.line
    assert (line.parent, line.base.turn, line.floor, line.title) == ("s", 3, 1, None)
    assert words(second) == ["new"]
    assert line.summary == SUMMARY


def test_a_later_summary_in_place_keeps_the_first_part_unchanged() -> None:
    old = (session("p", end_reason="compression", ended_at=START + 100), Rows().talk("hi", "b", "hi").rows)
    child = session("c", "p", started_at=START + 100)
    # The first words of the conversation, and of what is left of its end, are the same.
    once = Rows(START + 100).say("user", "hi").say("assistant", SUMMARY).talk("hi", "c", "d")
    before, _ = translated(old, (child, once.rows))
    twice = Rows(START + 100)
    twice.rows = compacted(once.rows)
    twice.say("user", "hi").say("assistant", SUMMARY + " And plums.").talk("d", "e")
    after, _ = translated(old, (child, twice.rows))
    assert list(after) == ["p", "c", "c.2"]
    assert (after["c"].turns, after["c"].line.summary) == (before["c"].turns, before["c"].line.summary)
    assert words(after["c.2"]) == ["e"]


@pytest.mark.parametrize("marks", [{"_branched_from": "p"}, {"_delegate_from": "p"}])
def test_children_of_a_session_are_unchanged_by_its_later_summary(marks: dict[str, str]) -> None:
    parent, rows = session("p"), Rows().talk("a", "b", "c")
    child = session("c", "p", started_at=START + 50, marks=marks)
    copies = Rows(START + 50).talk("a", "b", "c", "mine").rows
    before, _ = translated((parent, rows.rows), (child, copies))
    later = Rows(START + 100)
    later.rows = compacted(rows.rows)
    later.say("user", "a").say("assistant", SUMMARY).talk("c", "d")
    after, _ = translated((parent, later.rows), (child, copies))
    assert list(after) == ["p", "p.2", "c"]
    assert (after["c"].line, after["c"].turns) == (before["c"].line, before["c"].turns)


def test_a_second_summary_keeps_the_first_parts_unchanged() -> None:
    once = Rows().talk("a", "b", "c", active=False, compacted=True).say("user", "a").say("assistant", SUMMARY)
    before, _ = translated((session("s"), once.talk("c", "d").rows))
    twice = Rows()
    twice.rows = compacted(once.rows)
    twice.say("user", "a").say("assistant", SUMMARY + " And plums.").talk("d", "e")
    after, _ = translated((session("s"), twice.rows))
    assert list(after) == ["s", "s.2", "s.3"]
    assert after["s"].turns == before["s"].turns
    assert after["s.2"].turns == before["s.2"].turns
    assert after["s.2"].line.opened_at == before["s.2"].line.opened_at
    third = after["s.3"].line
    assert (third.parent, third.base.turn, third.floor, words(after["s.3"])) == ("s.2", 4, 3, ["e"])


def test_a_branch_of_a_summarised_session_has_the_same_summary() -> None:
    rows = Rows().talk("a", "b", active=False, compacted=True).say("user", "a").say("assistant", SUMMARY).talk("b", "c")
    copy = Rows().say("user", "a").say("assistant", SUMMARY).talk("b", "c", "x").rows
    mark = {"_branched_from": "s"}
    found, _ = translated((session("s"), rows.rows), (session("k", "s", marks=mark), copy))
    line = found["k"].line
    assert (line.parent, line.base.turn, line.floor, line.summary_of) == ("s.2", 3, 1, "s.2")
    assert words(found["k"]) == ["x"]
    # When that branch is summarised too, the summary that it came with is no second one.
    assert len(split_at_summaries(compacted(copy))) == 1


def test_a_quoted_summary_is_not_a_summary() -> None:
    rows = Rows().talk("a").say("user", SUMMARY).say("assistant", "Yes?").rows
    found, _ = translated((session("s"), rows))
    assert list(found) == ["s"]
    assert words(found["s"]) == ["a", SUMMARY]


def test_a_changed_tail_is_kept_unchanged() -> None:
    rows = Rows().talk("a", "b", active=False, compacted=True).say("user", "a").say("assistant", SUMMARY)
    rows.say("user", "b").say("assistant", "(shortened)").talk("c")
    found, _ = translated((session("s"), rows.rows))
    line = found["s.2"].line
    assert (line.base.turn, line.floor, words(found["s.2"])) == (2, 2, ["b", "c"])


def test_a_summary_is_found_at_the_start_of_a_message_only() -> None:
    assert summary_of(MessageRow(1, "user", f"What is this? {SUMMARY}", START)) is None
    assert summary_of(MessageRow(1, "tool", SUMMARY, START)) is None
    assert summary_of(MessageRow(1, "user", "[CONTEXT SUMMARY]: short", START)) == "[CONTEXT SUMMARY]: short"
