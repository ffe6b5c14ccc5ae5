"""The input line on a real terminal: several lines, history, completion."""

from __future__ import annotations

from tests.e2e.chat_home import PROMPT, Home, OpenScreen, assert_screen
from tests.terminal_screen import ALT_ENTER, CTRL_D, ENTER, ESCAPE, TAB, UP, TerminalScreen


def test_a_message_may_have_several_lines(home: Home, open_screen: OpenScreen) -> None:
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("one" + ALT_ENTER + "two\\" + ENTER + "three")
        screen.expect("three")
        screen.type(ENTER)
        screen.expect("echo one")
        screen.type(CTRL_D)
        assert screen.ended() == 0
    [turn] = home.turns()
    assert turn.user_text == "one\ntwo\nthree"


def test_input_history_is_available_in_a_new_terminal(home: Home, open_screen: OpenScreen) -> None:
    with open_screen() as screen:
        screen.expect(PROMPT)
        for text in ("one", "two"):
            screen.type(text + ENTER)
            screen.expect(f"echo {text}")
        screen.type(CTRL_D)
        assert screen.ended() == 0
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type(UP)
        screen.expect("> two")
        screen.type(UP)
        screen.expect("> one")
        screen.type(ENTER)
        screen.expect("echo one")


def test_commands_are_completed(home: Home, open_screen: OpenScreen) -> None:
    with open_screen(columns=80) as screen:
        screen.expect("memory ok")
        screen.type("/re")
        assert_screen("completing", screen.expect("/resume"))
        assert not _scroll_scroll_bar(screen), "a menu that fits must have no scroll bar"
        screen.type(ESCAPE)
        screen.expect("/reset", gone=True)
        screen.type("\x15/sta" + TAB)
        screen.expect("> /status")
        screen.type(ENTER + ENTER)
        screen.expect("Nothing is running")
        screen.type("/")
        screen.until(lambda: _scroll_scroll_bar(screen), "a bar beside a list that is longer than what is screen of it")


def _scroll_scroll_bar(screen: TerminalScreen) -> int:
    return sum(cell.reverse for row in screen.cells() for cell in row)
