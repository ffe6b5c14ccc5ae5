"""Answers and tool calls on a real terminal. Expected screens are in `tests/screens`."""

from __future__ import annotations

import pytest
from tests.e2e.chat_home import ANSWER, LONG, PROMPT, Home, OpenScreen, assert_screen
from tests.terminal_screen import ENTER

SIZES = [(60, 40), (100, 40), (200, 50)]


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_an_answer_is_rendered_with_its_tool_calls(
    home: Home, open_screen: OpenScreen, columns: int, rows: int
) -> None:
    home.set_script(lines=[{"tool": "look", "arguments": {"where": "Lisbon"}}, ANSWER])
    with open_screen(columns=columns, rows=rows) as screen:
        screen.expect("new session · ")
        screen.type("Plan me a trip" + ENTER)
        screen.expect("日本語もある")
        screen.expect(r"\d+% of 128k context" if columns >= 60 else "fake")
        assert_screen(f"answer-{columns}", screen.settle())


def test_a_streamed_answer_is_rendered_once(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(lines=[f"First **block**.\n\n{LONG}\n\n{LONG.upper()} end"], pause_s=0.05)
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("go" + ENTER)
        screen.expect("First block")
        assert "juliett" not in screen.shown()
        screen.expect("JULIETT end")
        text = screen.settle()
        assert text.count("First block") == text.count("alpha bravo") == text.count("ALPHA") == 1
        assert "**" not in text


def test_no_frame_shows_a_word_twice(home: Home, open_screen: OpenScreen) -> None:
    words = [f"word{number:03}" for number in range(120)]
    home.set_script(lines=["\n\n".join(" ".join(words[at : at + 12]) for at in range(0, 120, 12))], pause_s=0.02)
    with open_screen(rows=40) as screen:
        screen.expect(PROMPT)
        screen.type("go" + ENTER)
        screen.expect("word119")
        screen.settle()
        pictures = [picture for picture in screen.pictures() if "word000" in picture]
    assert len(pictures) >= 8
    twice = {word for picture in pictures for word in words if picture.count(word) > 1}
    assert not twice


def test_a_running_tool_has_a_spinner_and_seconds(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(lines=[{"tool": "look"}, "done"], tool_s=1.5)
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("go" + ENTER)
        screen.expect(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] look")
        screen.expect(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] look \{\} 1 s")
        screen.expect(r"✓ look \{\} 1\.[5-9] s")
        screen.expect("done")


def test_long_code_is_complete_once_it_is_finished(home: Home, open_screen: OpenScreen) -> None:
    code = "\n".join(f"line_{number} = {number}" for number in range(60))
    home.set_script(lines=[f"Look:\n\n```python\n{code}\n```\n\nThat was it."], pause_s=0.002)
    with open_screen(columns=80, rows=20) as screen:
        screen.expect(PROMPT)
        screen.type("go" + ENTER)
        screen.expect("That was it")
        screen.settle()
        whole = screen.scrolled()
        assert [whole.count(f"line_{number} = {number}\n") for number in range(60)] == [1] * 60


def test_control_sequences_of_a_model_are_removed(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(lines=["be\x1b]0;title\x07fore \x1b[2J\x1b[31mafter", "echo"])
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("go" + ENTER)
        screen.expect("after")
        assert "Everthread with" in screen.shown()
        assert b"\x1b]0;title" not in screen.raw
        assert b"\x1b[2J" not in screen.raw
