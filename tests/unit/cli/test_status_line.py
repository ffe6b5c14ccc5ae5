"""The status line fits the terminal; the most important parts come first."""

from __future__ import annotations

import pytest

from everthread.cli.status_line import Status, status_line

FULL = Status("Trip to Lisbon", "local/some-model", 12_800, 128_000, 1.25, "memory ok", 2)


@pytest.mark.parametrize(
    ("status", "columns", "line"),
    [
        (FULL, 100, " Trip to Lisbon · local/some-model · 2 queued · 10% of 128k context · $1.25 · memory ok"),
        (FULL, 60, " Trip to Lisbon · some-model · 2 queued · $1.25 · memory ok"),
        (FULL, 30, " Trip to... · some-model"),
        (Status(model="a/b", cost=0.01234, memory="memory ok"), 80, " new session · a/b · $0.0123 · memory ok"),
        (Status("x", "m", 500, 4_000), 80, " x · m · 12% of 4000 context"),
        (FULL, 5, "Tr..."),
    ],
)
def test_parts_that_do_not_fit_are_left_out(status: Status, columns: int, line: str) -> None:
    assert status_line(status, columns) == line
