"""Streamed Markdown is split into blocks that later text cannot change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.cli.terminal.markdown_stream import LINES_MAX, MarkdownStream


@pytest.mark.parametrize(
    ("text", "finished", "rest"),
    [
        ("one line", [], "one line"),
        ("a paragraph\n\n", [], "a paragraph"),
        ("a paragraph\n\nnext", [], "a paragraph\nnext"),
        ("a paragraph\n\nnext\n", ["a paragraph"], "next"),
        ("# heading\n", ["# heading"], ""),
        ("- one\n\n- two\n\n  more\n", [], "- one\n\n- two\n\n  more"),
        ("- one\n\nafter\n", ["- one"], "after"),
        ("text\n```py\na\n\nb\n", ["text"], "```py\na\n\nb"),
        ("```py\na\n\nb\n```\n", ["```py\na\n\nb\n```"], ""),
        ("````\n```\n", [], "````\n```"),
    ],
)
def test_a_block_is_finished_once_no_later_line_can_change_it(text: str, finished: list[str], rest: str) -> None:
    stream = MarkdownStream()
    assert stream.feed(text) == finished
    assert stream.rest == rest


def test_long_code_is_split_into_blocks_with_their_own_fences() -> None:
    stream = MarkdownStream()
    [block] = stream.feed("```py\n" + "x\n" * (LINES_MAX - 1))
    assert (block.splitlines()[0], block.splitlines()[-1]) == ("```py", "```")
    assert stream.in_code
    assert stream.feed("y\n```\n") == ["```py\ny\n```"]
    assert not stream.in_code


@given(st.lists(st.sampled_from(["# h", "word", "", "- a", "  b", "```", "> q"])), st.integers(1, 7))
def test_pieces_of_any_size_give_the_same_blocks(lines: list[str], size: int) -> None:
    text = "\n".join(lines)
    whole, pieces = MarkdownStream(), MarkdownStream()
    expected = [*whole.feed(text), *whole.end()]
    blocks = [block for at in range(0, len(text), size) for block in pieces.feed(text[at : at + size])]
    assert [*blocks, *pieces.end()] == expected
    assert "".join("".join(expected).split()) == "".join(text.split())
