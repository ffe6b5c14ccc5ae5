"""Names of Honcho: allowed, distinct and decodable."""

from __future__ import annotations

import pytest

from everthread.adapters.memory.common.encoding import decode_id, encode_id, split_text
from everthread.adapters.memory.honcho.codec import agent_peer, note_name, our_session_id, session_name, user_peer

ANN, BOB = "telegram:1 ann", "telegram:1-ann"


# --- Names and limits ---


@pytest.mark.parametrize(
    "text", ["s1", "notes:telegram:1 ann", "under_score", "Ørsted-漢", "a" * 500, "_h", "", "a__b"]
)
def test_a_name_is_allowed_and_decodable_unless_it_is_long(text: str) -> None:
    name = encode_id(text)
    assert name
    assert len(name) <= 80
    assert all(one.isascii() and (one.isalnum() or one in "_-") for one in name)
    assert decode_id(name) == (text if 0 < len(text) < 80 else None)


def test_similar_names_stay_different() -> None:
    alike = [":", "_3a", "_", "__", "-", "a" * 81, "a" * 82]
    assert len({encode_id(text) for text in alike}) == len(alike)
    assert user_peer(ANN) != user_peer(BOB) != agent_peer(BOB)
    assert (
        our_session_id(note_name("notes:ann", "n__1"))
        == our_session_id(session_name("notes:ann") + "__r3")
        == "notes:ann"
    )


@pytest.mark.parametrize("text", ["", "   ", "word " * 20, "x" * 95, "äö\n" * 40])
def test_the_pieces_of_a_split_text_join_to_the_text(text: str) -> None:
    pieces = split_text(text, 30)
    assert "".join(pieces) == (text if text.strip() else "")
    assert all(len(piece) <= 30 for piece in pieces)
