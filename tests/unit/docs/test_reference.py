"""The generated reference pages match the program. `make docs` regenerates them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from docs import generate, record

from everthread.cli import main as cli
from everthread.cli.commands.sessions import group as sessions
from everthread.cli.main import everthread

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("path", "text"), generate.pages().items(), ids=lambda value: getattr(value, "name", ""))
def test_a_page_matches_the_program(path: Path, text: str) -> None:
    assert path.read_text() == text, f"run make docs, and look at {path.relative_to(ROOT)}"


@pytest.mark.parametrize(
    "context", [pytest.param(each, id=each.command_path) for each in generate.verbs_of(everthread)]
)
def test_every_command_has_an_example_a_home_option_and_json(context: click.Context) -> None:
    command = context.command
    assert "Examples:" in (command.help or "")
    options = {name for option in command.params for name in option.opts}
    assert isinstance(command, click.Group) or {"--home", "--json"} <= options


def listed() -> Iterator[tuple[click.Group, str, str]]:
    """Return the short help of a command in a listing, without importing the command."""
    for group, table in ((everthread, cli._COMMANDS), (sessions.sessions, sessions._COMMANDS)):  # noqa: SLF001
        for name, (_, text) in table.items():
            yield group, name, text


@pytest.mark.parametrize(("group", "name", "text"), [pytest.param(*each, id=each[1]) for each in listed()])
def test_a_listing_shows_the_first_line_of_each_commands_help(group: click.Group, name: str, text: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    words = text.removesuffix(".")
    own = generate.first_sentence(command)
    assert own.startswith(words)
    assert not own[len(words)].isalnum()


def test_the_picture_shows_the_output_of_its_recorder() -> None:
    texts = ElementTree.parse(record.PICTURE).iterfind(".//{http://www.w3.org/2000/svg}text")
    shown = " ".join(text.text or "" for text in texts)
    for said in (
        f"> {record.FIRST}",
        record.NOTED,
        "> /new",
        f"> {record.SECOND}",
        "it is what calms him",
        "memory ok",
    ):
        assert said in shown
