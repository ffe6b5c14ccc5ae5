"""Configuration files as text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.config_files import config_error, load_home, write_files

from everthread.config.schema import Settings


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"x" * 10_000_000, "has more than 1000000 bytes"),
        (b"a = 1\nb\0", ":2: not a text file"),
        (b"# caf\xe9\n", ":1: not UTF-8"),
        (b"a = 1\n\xff\xfe", ":2: not UTF-8"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = " + b"1" * 10_000, "config.toml: "),
    ],
)
@pytest.mark.parametrize("name", ["config.toml", "mcp.json", ".env"])
def test_a_file_without_valid_text_gives_a_one_line_error(name: str, content: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content if name == "config.toml" else content.replace(b"a = ", b""))
    told = config_error(tmp_path)
    assert told.startswith(str(tmp_path / name))
    assert name != "config.toml" or what in told


def test_a_folder_or_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    assert "config.toml: not a regular file" in config_error(tmp_path)
    (tmp_path / "config.toml").rmdir()
    os.mkfifo(tmp_path / "config.toml")
    assert "config.toml: not a regular file" in config_error(tmp_path)


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    home = write_files(tmp_path, "", mode=0)
    if os.access(home / "config.toml", os.R_OK):
        pytest.skip("root can read every file")
    assert "config.toml: Permission denied; make it readable" in config_error(tmp_path)


def test_a_dangling_link_counts_as_no_file(tmp_path: Path) -> None:
    for name in ("config.toml", ".env", "mcp.json"):
        (tmp_path / name).symlink_to("nowhere")
    assert load_home(tmp_path) == Settings(tmp_path)
