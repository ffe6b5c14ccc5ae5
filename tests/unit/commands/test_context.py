"""The result of a command."""

from __future__ import annotations

import pytest

from everthread.commands.context import Document


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("notes.md", "notes.md"),
        ("../../etc/passwd", "passwd"),
        ("C:\\files\\x.md", "x.md"),
        ("..", "conversation.md"),
        (".bashrc", "bashrc"),
        ("/", "conversation.md"),
    ],
)
def test_the_file_name_of_a_document_has_no_path(name: str, safe: str) -> None:
    assert Document(name, "").file_name == safe
