"""Input from real pipes and terminals: long lines, continued lines, invalid bytes."""

from __future__ import annotations

from tests.e2e.chat_home import Home
from tests.terminal_screen import CTRL_D


def test_a_backslash_at_the_end_continues_the_line(home: Home) -> None:
    with home.terminal() as terminal:
        terminal.type("one\\\ntwo\n")
        terminal.expect(r"echo one\ntwo \(0 before, 7 characters\)")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_a_huge_line_is_one_message(home: Home) -> None:
    done = home.run(stdin="x" * 9_900_000 + "\n")
    assert done.returncode == 0
    assert "9900000 characters" in done.stdout


def test_a_line_beyond_the_limit_is_rejected_and_the_next_one_answered(home: Home) -> None:
    done = home.run(stdin="x" * 10_000_001 + "\nhello\n")
    assert done.returncode == 1
    assert "at most 10000000 characters" in done.stderr
    assert done.stdout == "echo hello (0 before, 5 characters)\n"


def test_invalid_utf8_is_replaced_with_a_notice(home: Home) -> None:
    done = home.run(stdin=b"caf\xff\xfe \x00 \x80\r\nnext\n")
    assert done.returncode == 0
    assert "not valid UTF-8" in done.stderr
    assert done.stdout.startswith("echo caf\ufffd\ufffd \x00 \ufffd (0 before")
    assert "echo next" in done.stdout


def test_invalid_utf8_in_a_prompt_is_replaced_with_a_notice(home: Home) -> None:
    done = home.run("-p", "what is", stdin=b"caf\xff\xfe")
    assert (done.returncode, done.stdout) == (0, "echo what is\n\ncaf\ufffd\ufffd (0 before, 14 characters)\n")
    assert done.stderr == "Some of the input was not valid UTF-8 and is replaced by \ufffd.\n"
