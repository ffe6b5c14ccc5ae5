"""The terminal as prompt_toolkit draws on it."""

from __future__ import annotations

import os
import pty
import termios

import pytest
from prompt_toolkit.data_structures import Size

from everthread.cli.prompt_output import terminal_output


@pytest.mark.parametrize(("reported", "size"), [((40, 100), Size(40, 100)), ((0, 0), Size(24, 80))])
def test_an_unknown_size_is_replaced_by_a_default(
    reported: tuple[int, int], size: Size, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal, os.fdopen(master):
        termios.tcsetwinsize(terminal, reported)
        monkeypatch.setattr("sys.stdout", terminal)
        output = terminal_output("xterm", colour=True)
        assert output.get_size() == size
        assert not output.responds_to_cpr, "cursor position requests are off"
