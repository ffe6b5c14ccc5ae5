"""Texts with markup in any parse mode: shown text, entities and errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.testing.telegram.entities import utf16_len
from everthread.testing.telegram.errors import ApiError
from everthread.testing.telegram.formatting import format_text, utf16_slice
from everthread.testing.telegram.screen import mark_text

RESERVED = r"_*[]()~`>#+-=|{}.!"


def read(text: str, mode: str | None) -> tuple[str, list[tuple[str, str]]]:
    """The text, and of each entity its kind and the words it is about."""
    shown, entities = format_text(text, mode)
    return shown, [(one.type, utf16_slice(shown, one.offset, one.length)) for one in entities]


def test_entities_are_detected_in_plain_text() -> None:
    text = "/start@my_bot 😀 @ann_example, mail a@b.org see https://example.org/x?y=1 or example.com #tag1 not/this"
    assert read(text, None) == (
        text,
        [
            ("bot_command", "/start@my_bot"),
            ("mention", "@ann_example"),
            ("email", "a@b.org"),
            ("url", "https://example.org/x?y=1"),
            ("url", "example.com"),
            ("hashtag", "#tag1"),
        ],
    )
    assert read("`/start @ann_example`", "MarkdownV2")[1] == [("code", "/start @ann_example")]


def test_an_unknown_parse_mode_is_refused() -> None:
    with pytest.raises(ApiError, match="unsupported parse_mode"):
        format_text("x", "BBCode")


@given(st.text(alphabet=RESERVED + "\\ab \n😀é", max_size=30), st.sampled_from(["MarkdownV2", "HTML", "Markdown"]))
def test_any_text_is_parsed_or_refused_and_entities_stay_within_it(text: str, mode: str) -> None:
    try:
        shown, entities = format_text(text, mode)
    except ApiError:
        return
    assert all(0 <= one.offset < one.end <= utf16_len(shown) for one in entities)
    mark_text(shown, entities)
