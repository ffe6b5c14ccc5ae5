"""Colours on a real terminal."""

from __future__ import annotations

import re

from tests.e2e.chat_home import ANSWER, PROMPT, Home, OpenScreen
from tests.terminal_screen import ENTER


def test_colours_come_from_the_terminal_palette_and_respect_no_color(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(lines=[ANSWER])
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with open_screen(env=env) as screen:
            screen.expect(PROMPT)
            screen.type("go" + ENTER)
            screen.expect("日本語もある")
            screen.settle()
            assert (screen.colours() != {"default"}) is coloured
            assert re.search(rb"\x1b\[[0-9;]*[34]8;[25];", screen.raw) is None
