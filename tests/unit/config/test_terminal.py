"""Capabilities of the terminal, read from its variables."""

from __future__ import annotations

import pytest

from everthread.config.schema import Background
from everthread.config.terminal import ResizeBehavior, detect_display


@pytest.mark.parametrize(
    ("variables", "resized"),
    [
        ({"TERM": "xterm-256color"}, ResizeBehavior.WRAPS),
        ({"TERM": "xterm-kitty"}, ResizeBehavior.WRAPS),
        ({"TERM": "xterm"}, ResizeBehavior.CUTS),
        ({"TERM": "xterm-256color", "XTERM_VERSION": "XTerm(390)"}, ResizeBehavior.CUTS),
        ({"TERM": "linux"}, ResizeBehavior.CUTS),
        ({"TERM": "rxvt-unicode-256color"}, ResizeBehavior.CUTS),
        ({"TERM": "screen-256color", "STY": "1.pts"}, ResizeBehavior.CUTS),
        ({"TERM": "screen-256color"}, ResizeBehavior.WRAPS_ERASED),
        ({"TERM": "screen", "TMUX": "/tmp/tmux", "XTERM_VERSION": "XTerm(390)"}, ResizeBehavior.WRAPS_ERASED),
    ],
)
def test_line_wrapping_on_resize_is_known_per_terminal(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], resized: ResizeBehavior
) -> None:
    for name in ("TMUX", "STY", "XTERM_VERSION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert detect_display().resized is resized


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
def test_the_background_comes_from_the_setting_or_the_terminal(
    monkeypatch: pytest.MonkeyPatch, said: str, set_to: Background, dark: bool
) -> None:
    monkeypatch.setenv("COLORFGBG", said)
    assert detect_display(set_to).dark is dark
