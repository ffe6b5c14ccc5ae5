"""`/pair` in a terminal."""

from __future__ import annotations

from pathlib import Path

from tests.commands import CommandFixture


async def test_nobody_is_let_in_from_the_terminal_but_by_the_command(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.refuses("/pair K7WM3XQP", "everthread pairing approve")
