"""`everthread recall`."""

from __future__ import annotations

from tests.e2e.cli.commands.memory.memory_home import (
    SampleHome,
    assert_refused,
    everthread,
    printed,
    sample,
    sample_original,
)

__all__ = ["sample_original", "sample"]


def test_recall_prints_the_items_of_a_turn_with_their_source(sample: SampleHome) -> None:
    told = printed(sample.home, "recall", "which oolong do I like?")
    by_turn = {item["turn"]: item for item in told["items"]}
    assert "I like oolong from Taiwan" in by_turn[1]["text"]
    assert (by_turn[1]["session"], by_turn[1]["title"], by_turn[1]["provider"]) == (sample.session, "Tea", "builtin")
    assert by_turn[1]["score"] > 0
    assert by_turn[1]["at"].endswith("Z")
    assert by_turn[None]["text"] == "noted: likes oolong"
    assert told["missing"] == []
    assert len(printed(sample.home, "recall", "which oolong do I like?", "--limit", "1")["items"]) == 1
    shown = everthread(sample.home, "recall", "oolong from Taiwan").stdout
    assert f'"Tea" ({sample.session}), turn 1, ' in shown
    assert everthread(sample.home, "recall", "zebras").stdout == "Nothing recalled.\n"
    assert_refused(everthread(sample.home, "recall", " "), 2, "QUERY")
