"""The messages at the start and at the end of a chat."""

from __future__ import annotations

from tests.e2e.chat_home import Home
from tests.terminal_screen import CTRL_D


def test_a_chat_starts_with_a_welcome_and_ends_with_the_command_to_resume_it(home: Home) -> None:
    with home.terminal() as terminal:
        terminal.expect(r"Everthread with fake/one: a new session\.\n/help lists the commands, Ctrl-D leaves\.\n")
        terminal.expect("> ")
        terminal.type("hello\n")
        terminal.expect(r"echo hello \(0 before, 5 characters\)\n> ")
        terminal.type("again\n")
        terminal.expect(r"echo again \(2 before, 5 characters\)\n> ")
        terminal.type(CTRL_D)
        session = terminal.expect(r"Continue with: everthread -r (\w{26})")[1]
        assert terminal.ended() == 0
    assert [turn.user_text for turn in home.turns(session)] == ["hello", "again"]
    with home.terminal("-r", session) as terminal:
        terminal.expect(f"resumed {session}")
        terminal.type("and again\n")
        terminal.expect(r"\(4 before")
        terminal.type("/quit\n")
        assert terminal.ended() == 0


def test_problems_at_the_start_are_shown_and_the_chat_works(home: Home) -> None:
    home.set_script(problems=["the server 'files' did not start"])
    with home.terminal() as terminal:
        terminal.expect("everthread: the server 'files' did not start")
        terminal.type("hello\n")
        terminal.expect("echo hello")
