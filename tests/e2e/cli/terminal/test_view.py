"""Start-up, input and exit on a real terminal."""

from __future__ import annotations

import json
import re
import signal

from tests.e2e.chat_home import PROMPT, Home, OpenScreen, assert_screen
from tests.terminal_screen import CTRL_D, ENTER


def test_text_typed_before_the_start_is_submitted(home: Home, open_screen: OpenScreen) -> None:
    with open_screen() as screen:
        screen.type("early bird" + ENTER)
        screen.expect("echo early bird")
        screen.settle(0.6)
        # After the start, a line feed inserts a new line.
        screen.type("one\ntwo" + ENTER)
        screen.expect("echo one")
        screen.type(CTRL_D)
        assert screen.ended() == 0
    assert [turn.user_text for turn in home.turns()] == ["early bird", "one\ntwo"]


def test_the_user_can_type_during_start_up(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(ready_s=3.0)
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("early bird" + ENTER + "/res")
        assert "Everthread with" not in screen.expect("> /res")
        screen.expect("Getting ready")
        screen.expect("echo early bird")
        # Completions appear once the start-up is complete.
        screen.expect("/reset")
    assert [turn.user_text for turn in home.turns()] == ["early bird"]


def test_messages_submitted_during_start_up_are_answered_before_leaving(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(ready_s=1.0)
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("early bird" + ENTER + CTRL_D)
        assert screen.ended() == 0
        assert re.search(r"(?s)Everthread with.*> early bird.*echo early bird", screen.shown())


def test_submitted_text_is_wrapped_between_words(home: Home, open_screen: OpenScreen) -> None:
    with open_screen(columns=40) as screen:
        screen.expect(PROMPT)
        screen.type("A question that is a bit longer than the line is wide" + ENTER)
        screen.expect("echo A question")
        assert "> A question that is a bit longer than\n  the line is wide\n" in screen.shown()
        screen.type("/retry" + ENTER)
        # A blank line separates the notice from the answer.
        screen.expect(r"(?s)memory\.\n\necho A question")


def test_the_notice_of_a_retry_is_shown_before_the_next_answer(home: Home, open_screen: OpenScreen) -> None:
    """The command still reads when the answer that it stopped has ended."""
    home.set_script(lines=[f"one {'word ' * 200}", "echo"], pause_s=0.02, slow_reads={"_waiting_before": 1.0})
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("hello" + ENTER)
        screen.expect("one word")
        screen.type("/retry" + ENTER)
        screen.expect(r"The unfinished answer is hidden and removed from memory\.\n\necho hello")


def test_an_empty_line_separates_an_answer_from_a_result_shown_before_it(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(lines=["done"], pause_s=1.5)
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("hello" + ENTER)
        screen.expect("recalling|thinking")
        screen.type("/status" + ENTER)
        screen.expect(r"An answer is being written\.\n\ndone")


def test_leaving_restores_the_terminal(home: Home, open_screen: OpenScreen) -> None:
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("hello" + ENTER)
        screen.expect("echo hello")
        screen.settle()
        screen.type(CTRL_D)
        assert screen.ended() == 0
        assert_screen("left", screen.shown())
        # The input and the status line are cleared, and bracketed paste is off.
        assert screen.raw.rfind(b"\x1b[?2004l") > screen.raw.rfind(b"\x1b[?2004h")


def test_a_hangup_at_the_prompt_suspends_the_session_once(home: Home, open_screen: OpenScreen) -> None:
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("hello" + ENTER)
        screen.expect("echo hello")
        screen.settle()
        screen.hang_up()
        assert screen.process.wait(15) == 128 + signal.SIGHUP
    done = home.run("boundaries", "--json")
    assert [row["boundary"] for row in json.loads(done.stdout)].count("suspend") == 1
