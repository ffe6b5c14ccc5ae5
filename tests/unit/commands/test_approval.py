"""`/pair` in a terminal."""

from __future__ import annotations

from pathlib import Path

from tests.commands import CommandFixture


async def test_pair_in_a_terminal_refers_to_the_cli_command(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.refuses("/pair K7WM3XQP", "everthread pairing approve")
