"""The user approves or denies tool calls."""

from __future__ import annotations

import pytest
from tests.e2e.chat_home import PROMPT, Home, OpenScreen
from tests.terminal_screen import CTRL_C, CTRL_D, ENTER


@pytest.mark.parametrize(("reply", "wiped"), [("y", True), ("n", False), ("", False), ("what?\ny", True)])
def test_a_dangerous_tool_needs_approval(home: Home, reply: str, wiped: bool) -> None:
    home.set_script(lines=[{"tool": "wipe", "arguments": {"path": "/\x1b[2J"}}, "done with it"])
    with home.terminal() as terminal:
        terminal.type("wipe it\n")
        terminal.expect(r"wipe \{[^\n]*\}\nAllow this\? \[y/N\] ")
        terminal.type(f"{reply}\n")
        terminal.expect("done with it")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert (home.path / "wiped").exists() == wiped


def test_end_of_input_denies_an_open_question(home: Home) -> None:
    home.set_script(lines=[{"tool": "wipe"}, "not done then"])
    with home.terminal() as terminal:
        terminal.type("wipe it\n")
        terminal.expect(r"\[y/N\] ")
        terminal.type(CTRL_D)
        terminal.expect("not done then")
        assert terminal.ended() == 0
    assert not (home.path / "wiped").exists()
    [turn] = home.turns()
    assert turn.status.value == "done"
    assert any("not approved by the user" in message.content for message in turn.messages)


def test_ctrl_c_at_a_question_stops_the_turn(home: Home) -> None:
    home.set_script(lines=[{"tool": "wipe"}, "echo"])
    with home.terminal() as terminal:
        terminal.type("wipe it\n")
        terminal.expect(r"\[y/N\] ")
        terminal.type(CTRL_C)
        terminal.expect("Interrupted")
        terminal.type("hello\n")
        terminal.expect("echo hello")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert not (home.path / "wiped").exists()


def test_without_a_terminal_dangerous_tools_are_denied(home: Home) -> None:
    home.set_script(lines=[{"tool": "wipe"}, "as you like"])
    for arguments, typed in (((), "wipe it\n"), (("-p", "wipe it"), "")):
        done = home.run(*arguments, stdin=typed)
        assert (done.returncode, done.stdout) == (0, "as you like\n")
        assert "no user can approve it: wipe" in done.stderr
    assert not (home.path / "wiped").exists()


def test_a_call_is_shown_in_full_with_its_invisible_characters(home: Home) -> None:
    script = "ls\n" + " " * 300 + "rm -rf ~\u202e"
    home.set_script(lines=[{"tool": "wipe", "arguments": {"script": script, "z": "x" * 2_000}}, "done with it"])
    with home.terminal() as terminal:
        terminal.type("wipe it\n")
        terminal.expect(r'"script":\n  \| ls\n  \|  {300}rm -rf ~\\u202e\n"z": "x{2000}"\nAllow this\? \[y/N\] ')
        terminal.type("n\n")
        terminal.expect("done with it")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_a_call_too_large_to_be_read_is_refused_and_the_user_is_told(home: Home) -> None:
    home.set_script(lines=[{"tool": "wipe", "arguments": {"z": "x" * 3_000}}, "as you like"])
    with home.terminal() as terminal:
        terminal.type("wipe it\n")
        terminal.expect(r"wipe was refused: the call has 2 lines and 3,0\d\d characters")
        terminal.expect("as you like")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert not (home.path / "wiped").exists()


def test_a_dangerous_tool_needs_approval_on_a_full_terminal(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(lines=[{"tool": "wipe", "arguments": {"what": "all"}}, "As you like."])
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("go" + ENTER)
        screen.expect(r"Allow this\? \[y/N\]")
        screen.expect(r"\? ")
        screen.type("y" + ENTER)
        screen.expect("As you like")
    assert (home.path / "wiped").exists()


def test_a_long_text_typed_at_a_question_is_the_next_message(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(lines=[{"tool": "wipe", "arguments": {"what": "all"}}, "As you like.", "echo"])
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("go" + ENTER)
        screen.expect(r"(?m)^\?")
        screen.type("yes it is about the museum" + ENTER)
        screen.expect('Queued: "yes it is about the museum"')
        # The question is still open and still shown.
        screen.expect(r"(?m)^\?$")
        screen.type("maybe" + ENTER)
        screen.expect("Please answer y or n")
        assert not (home.path / "wiped").exists()
        screen.type("n" + ENTER)
        screen.expect("As you like")
        screen.expect("echo yes it is about the museum")
        screen.expect(PROMPT)
    assert not (home.path / "wiped").exists()


def test_stopping_the_answer_closes_the_question(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(lines=[{"tool": "wipe", "arguments": {"what": "all"}}, "As you like.", "echo"])
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("go" + ENTER)
        screen.expect(r"(?m)^\?$")
        screen.type(CTRL_C)
        screen.expect("Interrupted")
        screen.expect(PROMPT)
    assert not (home.path / "wiped").exists()
