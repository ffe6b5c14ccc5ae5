"""What is known of the terminal from its variables."""

from __future__ import annotations

import pytest

from everthread.config.display import Resized, display


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
