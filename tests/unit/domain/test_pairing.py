"""Pairing codes and their hashes."""

from __future__ import annotations

import secrets

from msgspec.structs import replace

from everthread.domain.pairing import (
    ALPHABET,
    Pairing,
    hash_of,
    is_of,
    new_code,
)


def test_a_code_has_eight_unambiguous_characters() -> None:
    codes = {new_code(secrets.choice) for _ in range(200)}
    assert len(codes) == 200
    assert {len(code) for code in codes} == {8}
    assert not set("".join(codes)) & set("01OIL")
    assert len(set(ALPHABET)) == len(ALPHABET) == 31


def test_a_hash_belongs_to_one_account() -> None:
    pairing = Pairing("telegram", "7", "", "", 0.0, 1.0)
    theirs = replace(pairing, code_hash=hash_of("telegram", "8", "ABCDEFGH"))
    mine = replace(pairing, code_hash=hash_of("telegram", "7", "ABCDEFGH"))
    assert (is_of(theirs, "ABCDEFGH"), is_of(mine, "ABCDEFGH"), is_of(mine, "ABCDEFGJ")) == (False, True, False)
