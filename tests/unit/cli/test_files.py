"""Paths typed by users, and files written atomically."""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread.cli.files import new_file, parse_path
from everthread.domain.errors import BadInput, StoreUnwritable


def test_a_path_is_kept_and_a_tilde_is_expanded() -> None:
    assert parse_path("some/where.jsonl") == Path("some/where.jsonl")
    assert parse_path("~/x") == Path.home() / "x"


@pytest.mark.parametrize("text", ["~nosuchuser/x", "~nosuchuser", "", "a\0b"])
def test_an_invalid_path_is_refused_in_one_line_with_the_next_step(text: str) -> None:
    with pytest.raises(BadInput, match="write the full path|give a path"):
        parse_path(text)
    with pytest.raises(BadInput), new_file(text):
        pass


def test_a_name_that_is_too_long_is_refused_with_a_plain_message(tmp_path: Path) -> None:
    with pytest.raises(StoreUnwritable, match="choose another path"), new_file(tmp_path / ("x" * 300)):
        pass
