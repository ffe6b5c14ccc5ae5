"""What is known of the terminal from its variables."""

from __future__ import annotations

import pytest

from everthread.config.schema import Background
from everthread.config.terminal import Resized, display


@pytest.mark.parametrize(
    ("variables", "resized"),
    [
        ({"TERM": "xterm-256color"}, Resized.WRAPS),
        ({"TERM": "xterm-kitty"}, Resized.WRAPS),
        ({"TERM": "xterm"}, Resized.CUTS),
        ({"TERM": "xterm-256color", "XTERM_VERSION": "XTerm(390)"}, Resized.CUTS),
        ({"TERM": "linux"}, Resized.CUTS),
        ({"TERM": "rxvt-unicode-256color"}, Resized.CUTS),
        ({"TERM": "screen-256color", "STY": "1.pts"}, Resized.CUTS),
        ({"TERM": "screen-256color"}, Resized.WRAPS_ERASED),
        ({"TERM": "screen", "TMUX": "/tmp/tmux", "XTERM_VERSION": "XTerm(390)"}, Resized.WRAPS_ERASED),
    ],
)
def test_what_a_terminal_does_with_its_lines_at_a_new_width(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], resized: Resized
) -> None:
    for name in ("TMUX", "STY", "XTERM_VERSION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert display().resized is resized


@pytest.mark.parametrize(
    ("said", "set_to", "dark"),
    [
        ("", "auto", True),
        ("0;15", "auto", False),
        ("15;0", "auto", True),
        ("", "light", False),
        ("0;15", "dark", True),
        ("nonsense", "auto", True),
    ],
)
def test_what_is_behind_the_text_is_what_is_set_or_what_the_terminal_says(
    monkeypatch: pytest.MonkeyPatch, said: str, set_to: Background, dark: bool
) -> None:
    monkeypatch.setenv("COLORFGBG", said)
    assert display(set_to).dark is dark
