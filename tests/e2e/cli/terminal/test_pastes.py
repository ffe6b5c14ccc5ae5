"""Pastes into the input line of a real terminal."""

from __future__ import annotations

from tests.e2e.chat_home import PROMPT, Home, OpenScreen
from tests.terminal_screen import CTRL_D, ENTER, UP


def test_a_paste_of_a_megabyte_is_inserted_at_once(home: Home, open_screen: OpenScreen) -> None:
    text = "\n".join(f"{number:07} some words" for number in range(50_000))
    assert len(text) > 1_000_000 - 100_000
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("Look at this: ")
        screen.paste(text)
        screen.expect(r"> Look at this: \[pasted 1: 50000 lines\]")
        screen.type(ENTER)
        screen.expect(rf"echo Look at this.*\(0 before, {len(text) + 14} characters\)")
        screen.type("next" + ENTER)
        screen.expect("echo next")


def test_a_short_paste_is_inserted_unchanged(home: Home, open_screen: OpenScreen) -> None:
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.paste("one\ntwo")
        screen.expect("> one\n  two")
        screen.type(ENTER)
        screen.expect("echo one")


def test_a_paste_can_be_sent_again_from_the_history(home: Home, open_screen: OpenScreen) -> None:
    text = "\n".join(f"line {number}" for number in range(20))
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.paste(text)
        screen.expect(r"\[pasted 1: 20 lines\]")
        screen.type(ENTER)
        screen.expect("echo line 0")
        screen.type(UP)
        screen.expect(r"> \[pasted 1: 20 lines\]")
        screen.paste(text.replace("line", "word"))
        screen.expect(r"\[pasted 2: 20 lines\]")
        screen.type(ENTER)
        screen.expect(r"\(2 before")
        screen.type(CTRL_D)
        assert screen.ended() == 0
    assert home.turns()[1].user_text == text + text.replace("line", "word")
