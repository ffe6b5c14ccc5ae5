"""Pairing codes and their hashes."""

from __future__ import annotations

import secrets

from msgspec.structs import replace

from everthread.domain.pairing import (
    ALPHABET,
    PairingRequest,
    hash_code,
    matches_code,
    new_code,
)


def test_a_code_has_eight_unambiguous_characters() -> None:
    codes = {new_code(secrets.choice) for _ in range(200)}
    assert len(codes) == 200
    assert {len(code) for code in codes} == {8}
    assert not set("".join(codes)) & set("01OIL")
    assert len(set(ALPHABET)) == len(ALPHABET) == 31


def test_a_hash_belongs_to_one_account() -> None:
    pairing = PairingRequest("telegram", "7", "", "", 0.0, 1.0)
    theirs = replace(pairing, code_hash=hash_code("telegram", "8", "ABCDEFGH"))
    mine = replace(pairing, code_hash=hash_code("telegram", "7", "ABCDEFGH"))
    assert (matches_code(theirs, "ABCDEFGH"), matches_code(mine, "ABCDEFGH"), matches_code(mine, "ABCDEFGJ")) == (
        False,
        True,
        False,
    )
