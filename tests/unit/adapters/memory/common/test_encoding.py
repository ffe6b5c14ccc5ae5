"""Ids in the alphabet of services, and texts in pieces."""

import re

from hypothesis import given
from hypothesis import strategies as st

from everthread.adapters.memory.common.encoding import CHARS_MAX, SEPARATOR, decode_id, encode_id, join_ids, split_text


@given(st.text(max_size=200), st.booleans())
def test_an_encoded_id_uses_allowed_characters_only_and_is_short(text: str, lower: bool) -> None:
    name = encode_id(text, lower=lower)
    assert re.fullmatch(r"[a-z0-9_-]+" if lower else r"[A-Za-z0-9_-]+", name)
    assert len(name) <= CHARS_MAX


@given(st.text(max_size=6))
def test_a_short_id_can_be_decoded(text: str) -> None:
    name = encode_id(text)
    assert decode_id(name) == (text or None)
    assert SEPARATOR not in name


def test_a_long_id_becomes_a_hash_that_can_not_be_decoded() -> None:
    assert decode_id(encode_id("a" * (CHARS_MAX + 1))) is None
    assert encode_id("a" * 100) != encode_id("a" * 101)


def test_joined_ids_are_separated() -> None:
    assert join_ids("a", encode_id("_"), "b") == "a___5f__b"


@given(st.text(alphabet="ab \n", max_size=200), st.integers(4, 40))
def test_the_pieces_of_a_text_are_short_and_make_up_the_text(text: str, chars_max: int) -> None:
    pieces = split_text(text, chars_max)
    assert all(len(piece) <= chars_max for piece in pieces)
    assert "".join(pieces) == (text if text.strip() else "")
