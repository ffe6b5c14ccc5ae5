"""Long replies in parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.gateway.message_split import chars_that_fit, split
from everthread.ports.platform import Capabilities

TEXTS = st.lists(
    st.sampled_from(
        ["word ", "\n", "\n\n", "```Q\n", "\n```\n", "~~~\n", "\n~~~\n", "x = 1\n", "a" * 90, "ü ", "````\n", "  "]
    ),
    max_size=80,
).map("".join)

FENCES = st.lists(
    st.sampled_from(
        ["\n```" + "b" * 90, "\n~~~" + "c" * 300 + "\n", "`" * 70, "\n" + "~" * 300, "\n```\n", "x\n", "\n~~~a"]
    ),
    max_size=40,
).map("".join)


def test_a_short_text_is_one_part() -> None:
    assert split("hello", 100) == ["hello"]
    assert split("", 100) == [""]


def test_a_long_text_is_cut_after_a_paragraph_a_line_or_a_word() -> None:
    text = "one " * 20 + "\n\n" + "two " * 20
    assert split(text, 100) == [("one " * 20).rstrip(), ("two " * 20)]
    assert all(part.strip().startswith("word") for part in split("word " * 100, 64))


def test_a_code_block_is_closed_in_one_part_and_reopened_in_the_next() -> None:
    text = "Look:\n```python\n" + "x = 1\n" * 60 + "```\nThat is all."
    parts = split(text, 120)
    assert len(parts) > 3
    for part in parts:
        assert len(part) <= 120
        assert part.count("```") % 2 == 0, part
    assert all(part.startswith("```python\n") for part in parts[1:-1])
    assert "".join(parts).count("x = 1") == 60


def test_a_code_block_that_fits_moves_whole_into_the_next_part() -> None:
    text = "intro " * 10 + "\n```\n" + "code\n" * 8 + "```"
    first, second = split(text, 80)
    assert "```" not in first
    assert second.startswith("```\ncode")


@pytest.mark.parametrize("text", ["```" + "x" * 10_000 + "```", "```" + "x" * 10_000 + "\ncode\n```", "`" * 10_000])
def test_text_that_only_starts_like_code_is_split_too(text: str) -> None:
    parts = split(text, 4000)
    assert len(parts) <= 4
    assert all(len(part) <= 4000 for part in parts)
    assert "".join(parts).count("x") == text.count("x")


def test_no_part_is_blank() -> None:
    assert split("a" * 64 + "\n" * 300 + "b" * 10, 64) == ["a" * 64, "b" * 10]
    assert split("a" * 64 + " " * 300, 64) == ["a" * 64]
    assert split("a" * 64 + " " * 300 + "b", 64) == ["a" * 64, " " * 44 + "b"]


def test_a_block_whose_first_line_is_long_is_cut_inside_that_line() -> None:
    parts = split("```py\n" + "x" * 300 + "\n```", 64)
    assert all(part.startswith("```py\n") and part.endswith("\n```") for part in parts)
    assert [part.count("x") for part in parts[:-1]] == [54] * (len(parts) - 1)
    assert sum(part.count("x") for part in parts) == 300


def test_a_limit_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        split("x", 10)


@given(TEXTS, st.integers(64, 200))
def test_no_text_is_lost_and_no_part_is_too_long(text: str, chars_max: int) -> None:
    parts = split(text, chars_max)
    assert parts
    assert all(len(part) <= chars_max for part in parts)
    marks = ("`", "~", " ", "\n")
    kept = "".join("".join(parts).translate({ord(mark): None for mark in marks}).split())
    said = "".join(text.translate({ord(mark): None for mark in marks}).split())
    # The language of a cut block is repeated. It has one letter here, so that it is not cut itself.
    assert kept.replace("Q", "") == said.replace("Q", "")
    assert kept.count("Q") >= said.count("Q")
    assert len(parts) == 1 or all(part.strip() for part in parts)


@given(FENCES, st.integers(64, 200))
def test_any_fences_are_split_in_finite_time(text: str, chars_max: int) -> None:
    parts = split(text, chars_max)
    assert all(len(part) <= chars_max for part in parts)
    for mark in "bcx":
        assert "".join(parts).count(mark) >= text.count(mark)


@given(st.text(st.sampled_from("ab 🙂🎉\n`"), max_size=400), st.integers(64, 200))
def test_no_part_is_too_long_if_some_characters_count_twice(text: str, chars_max: int) -> None:
    parts = split(text, chars_max, utf16=True)
    assert all(len(part.encode("utf-16-le")) // 2 <= chars_max for part in parts)
    for mark in "ab🙂🎉":
        assert "".join(parts).count(mark) == text.count(mark)


def test_a_draft_leaves_room_for_its_continuation_mark() -> None:
    able = Capabilities(100, counts_utf16=True)
    assert chars_that_fit(able, "x" * 500, 2) == 98
    assert chars_that_fit(able, "🙂" * 500, 2) == 49
    assert chars_that_fit(Capabilities(100), "🙂" * 500, 2) == 98


def left_open(text: str) -> str:
    """Return the fence that is open at the end for a Markdown parser, or an empty text."""
    fence = ""
    for line in text.split("\n"):
        bare = line.lstrip(" ")
        mark = bare[:1]
        run = len(bare) - len(bare.lstrip(mark)) if mark in ("`", "~") and mark else 0
        if run < 3 or len(line) - len(bare) > 3:
            continue
        after = bare[run:]
        if not fence and "`" not in after:
            fence = mark * run
        elif fence and mark == fence[0] and run >= len(fence) and not after.strip():
            fence = ""
    return fence


@given(TEXTS, st.integers(64, 200))
def test_no_part_but_the_last_leaves_code_open(text: str, chars_max: int) -> None:
    *parts, last = split(text, chars_max)
    assert [part for part in parts if left_open(part)] == []
    if not left_open(text.strip("\n")):
        assert not left_open(last)


def test_no_part_begins_with_a_new_fence_by_accident() -> None:
    words = "word " * 15
    assert split(f"{words}  ```Q and more words that go on for a while", 80)[1].startswith("word   ```Q and")
    assert split("a" * 78 + "b```c" + "a" * 70, 79) == ["a" * 78, "b```c" + "a" * 70]
