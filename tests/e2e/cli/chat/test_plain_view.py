"""The chat on plain streams: real processes on a dumb terminal, a pipe or a full device."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.e2e.chat_home import PROMPT, Home, OpenScreen

from everthread.domain.model import TurnStatus


def test_an_answer_is_streamed_on_a_terminal(home: Home) -> None:
    home.set_script(lines=["first second third"], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("hello\n")
        terminal.expect("first")
        assert "third" not in terminal.seen
        terminal.expect("second third\n> ")


def test_control_characters_of_an_answer_are_removed(home: Home) -> None:
    home.set_script(lines=["plain \x1b]0;owned\x07 text\r\x9b2J"])
    with home.terminal() as terminal:
        terminal.type("hello\n")
        terminal.expect(r"plain \]0;owned text2J\n")


@pytest.mark.parametrize("arguments", [(), ("-p", "hello"), ("-p", "hello", "--json")])
def test_an_answer_is_kept_if_stdout_cannot_be_written(home: Home, arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            home.command(*arguments), input=b"hello\n", stdout=full, stderr=subprocess.PIPE, check=False, timeout=18
        )
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "everthread: can't write to stdout (No space left on device); the conversation is kept, see "
        "everthread sessions list\n"
    )
    [turn] = home.turns()
    assert turn.status is TurnStatus.DONE


def test_a_closed_pipe_ends_the_process_without_a_message(home: Home) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        for arguments, typed in (((), b"hello\nthere\n"), (("-p", "hello"), b"")):
            done = subprocess.run(
                home.command(*arguments), input=typed, stdout=gone, stderr=subprocess.PIPE, check=False, timeout=18
            )
            assert done.returncode == 1
            assert done.stderr == b""


def test_a_dumb_terminal_gets_plain_lines(home: Home, open_screen: OpenScreen) -> None:
    with open_screen(term="dumb") as screen:
        screen.expect(PROMPT)
        screen.type("hello\n")
        screen.expect("echo hello")
        assert b"\x1b" not in screen.raw
