"""Two terminals in one session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.e2e.chat_home import LONG, PROMPT, Home, OpenScreen
from tests.terminal_screen import ENTER


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_two_terminals_on_one_session_take_turns_and_see_each_other(
    home: Home, open_screen: OpenScreen, stack: ExitStack
) -> None:
    session = home.ask("-p", "hello")["session"]
    home.set_script(lines=[f"{LONG} end", "echo"], pause_s=0.1)
    with open_screen("-r", session) as one:
        one.expect(PROMPT)
        home.set_script()
        two = stack.enter_context(open_screen("-r", session))
        two.expect(PROMPT)
        one.type("first" + ENTER)
        one.expect("alpha")
        two.type("second" + ENTER)
        two.expect("yours follows it")
        two.expect('From another client: "first"')
        two.expect(r"echo second \(4 before")
        one.expect("juliett end")
        one.expect('From another client: "second"')
        for screen in (one, two):
            assert screen.settle().count("juliett end") == 1
    assert [turn.user_text for turn in home.turns(session)] == ["hello", "first", "second"]
