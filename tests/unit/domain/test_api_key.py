"""API keys: format, hash and names."""

from __future__ import annotations

import secrets

import pytest

from everthread.domain.api_key import BYTES, check_name, hash_token, is_token, make_token
from everthread.domain.errors import BadInput


def test_a_random_token_has_the_format_and_a_hash_that_does_not_contain_it() -> None:
    token = make_token(secrets.token_urlsafe(BYTES))
    assert is_token(token)
    assert not is_token(token[:-1])
    assert not is_token(token.removeprefix("et_"))
    assert len(hash_token(token)) == 64
    assert hash_token(token) != hash_token(token[:-1] + "~")


@pytest.mark.parametrize("name", ["", "-x", "a b", "x" * 65])
def test_an_invalid_name_is_refused(name: str) -> None:
    assert check_name("laptop-1.home") == "laptop-1.home"
    with pytest.raises(BadInput):
        check_name(name)
