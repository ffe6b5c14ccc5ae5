"""`everthread sessions export`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.cli.commands.sessions.sessions_home import SampleHome
from tests.e2e.commands import everthread, refused

from everthread.cli.commands.sessions.export import for_a_terminal


def test_export_writes_to_stdout_and_never_overwrites_a_file(sample: SampleHome, tmp_path: Path) -> None:
    done = everthread(sample.home, "sessions", "export", sample.branch)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["id"] for line in lines if line["type"] == "session"] == [sample.lisbon, sample.branch]
    assert next(line for line in lines if line.get("hidden"))["messages"][0]["content"] == "by plane"
    (tmp_path / "mine.txt").write_text("mine")
    refused(everthread(sample.home, "sessions", "export", "--all", "-o", str(tmp_path / "mine.txt")), 1, "already")
    assert (tmp_path / "mine.txt").read_text() == "mine"
    refused(everthread(sample.home, "sessions", "export"), 2, "--all")


def test_control_characters_are_escaped_for_a_terminal() -> None:
    line = json.dumps({"content": "a\x9b31m\x7fé"}, ensure_ascii=False).encode()
    assert "\x9b".encode() in line
    shown = for_a_terminal(line)
    assert json.loads(shown) == json.loads(line)
    assert all(character.isprintable() for character in shown.decode())
