"""Turns in a chat: stopped, steered, failed and queued."""

from __future__ import annotations

import re

import pytest
from tests.e2e.chat_home import LONG, PROMPT, Home, OpenScreen
from tests.terminal_screen import CTRL_C, CTRL_D, ENTER


def test_s29_ctrl_c_keeps_the_message_and_the_partial_answer(home: Home) -> None:
    home.set_script(lines=["one two three four five six seven", "echo"], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.expect("> ")
        terminal.type("count\n")
        terminal.expect("two")
        terminal.type(CTRL_C)
        terminal.expect("Interrupted. The partial answer is kept; /undo removes it.\n> ")
        [turn] = home.turns()
        assert turn.status.value == "interrupted"
        assert turn.user_text == "count"
        assert "one two".startswith(turn.assistant_text[:7])
        assert "seven" not in turn.assistant_text
        terminal.type("go on\n")
        terminal.expect(r"\(2 before[^\n]*\n> ")
        terminal.type("/undo 2\n")
        terminal.expect('Undid 2 turns, from "count"')
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert home.turns() == []


def test_slash_stop_stops_the_answer_and_the_queue_continues(home: Home) -> None:
    home.set_script(lines=[LONG, "echo"], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("one\n")
        terminal.expect("alpha")
        terminal.type("two\n")
        terminal.expect("Queued")
        terminal.type("/stop\n")
        terminal.expect("Stopped. The partial answer is kept")
        terminal.expect(r"echo two \(2 before[^\n]*\n> ")
        terminal.type("/stop\n")
        terminal.expect("Nothing is running here")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert [turn.status.value for turn in home.turns()] == ["interrupted", "done"]


def test_a_steering_message_reaches_the_model_between_two_steps(home: Home) -> None:
    home.set_script(lines=[{"tool": "look"}, "echo"], tool_s=1.0)
    with home.terminal() as terminal:
        terminal.type("what is the weather\n")
        terminal.expect(r"\* look \{\}")
        terminal.type("/steer in Lisbon, I mean\n")
        terminal.expect("The agent reads it at its next step")
        terminal.expect("Passed to the running answer: in Lisbon, I mean")
        terminal.expect(r"echo what is the weather \+ in Lisbon, I mean")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert len(home.turns()) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ModelUnauthorized", "the key was refused; check FAKE_API_KEY"),
        ("ModelUnknown", "there is no model one; choose another"),
        ("ModelUnavailable", "the endpoint can't be reached; try again later"),
        ("ModelRefused", "the endpoint will not take this"),
    ],
)
def test_a_failed_turn_is_one_line_and_the_chat_continues(home: Home, name: str, text: str) -> None:
    # An unavailable endpoint is tried four times.
    failures = [{"error": name, "text": text}] * (4 if name == "ModelUnavailable" else 1)
    home.set_script(lines=[*failures, "echo"])
    with home.terminal() as terminal:
        terminal.type("one\n")
        terminal.expect(f"everthread: {re.escape(text)} \\(your message is kept; /undo removes it\\)\n> ")
        [turn] = home.turns()
        assert (turn.user_text, turn.status.value) == ("one", "interrupted")
        terminal.type("/undo\n")
        terminal.expect('Undid 1 turn, from "one"')
        terminal.type("two\n")
        terminal.expect(r"echo two \(0 before")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_without_a_model_the_chat_starts_and_messages_are_kept(home: Home) -> None:
    home.set_script(no_model=True)
    with home.terminal() as terminal:
        terminal.expect("everthread: no model is chosen; put one into config.toml\n")
        terminal.type("hello\n")
        terminal.expect(r"no model is chosen; put one into config.toml \(your message is kept")
        terminal.type("/status\n")
        terminal.expect("1 turn")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_text_typed_during_an_answer_is_visible_and_queued(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(lines=[f"{LONG} end", "echo"], pause_s=0.2)
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("first" + ENTER)
        screen.expect("alpha")
        screen.type("second")
        screen.expect("> second")
        screen.type(ENTER)
        screen.expect('Queued: "second"')
        screen.expect("1 queued")
        screen.expect("juliett end")
        screen.expect(r"echo second \(2 before")
        screen.expect("queued", gone=True)


def test_a_message_queued_by_a_command_is_announced_when_it_is_answered(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(lines=[f"{LONG} end", "echo"], pause_s=0.1)
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("first" + ENTER)
        screen.expect("alpha")
        screen.type("/queue the second" + ENTER)
        screen.expect('Queued, next: "the second"')
        screen.expect(r'Answering "the second"\n\necho the second')
