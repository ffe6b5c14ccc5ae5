"""Writes those parts of the reference that the program can say by itself: its verbs, and the slash commands.

`python -m docs.generate` writes them; a test sees to it that they are as the program is.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from everthread.cli.main import everthread
from everthread.commands.registry import COMMANDS

REFERENCE = Path(__file__).parent / "reference"
BEGIN = "<!-- Made from the program by `make docs`: change it there. -->"
END = "<!-- As far as here. -->"
_SHELL_WORDS = re.compile(r"(?<![\w`/.-])(--[a-z][a-z-]*|-[a-z]\b|\$[A-Z_]+[\w/]*)")


def pages() -> dict[Path, str]:
    """Every page that is made, whole or in part, with all of its text."""
    commands = REFERENCE / "slash-commands.md"
    return {REFERENCE / "cli.md": verbs(), commands: _between(commands.read_text(), slash_table())}


# --- Verbs -----------------------------------------------------------------------------------------------------------


def verbs() -> str:
    walked = list(verbs_of(everthread))
    contents = [
        f"{_indent(c)}- [`{_name(c)}`](#{_anchor(c)}): {_as_code(first_sentence(c.command))}" for c in walked[1:]
    ]
    opening = [
        "# CLI commands",
        BEGIN,
        "Every command of `everthread`, as `--help` prints it. [CLI conventions](cli-conventions.md) describes what "
        "they share: session names, exit codes, JSON. Each command takes `--home PATH` (the data folder), `--json` "
        "(print JSON) and `--help`.",
        "\n".join(contents),
    ]
    return "\n\n".join([*opening, *(part for context in walked for part in _verb(context))]) + "\n"


def verbs_of(program: click.Command) -> Iterator[click.Context]:
    """The program, and every verb of it, groups before what is in them."""
    return _walked(_context(program, None, "everthread"))


def first_sentence(command: click.Command) -> str:
    said = _paragraphs(command)[0]
    return re.split(r"(?<=\.)\s", said, maxsplit=1)[0]


def _walked(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None, name
            if not command.hidden:
                yield from _walked(_context(command, context, name))


def _context(command: click.Command, parent: click.Context | None, name: str) -> click.Context:
    return click.Context(command, info_name=name, parent=parent)


def _name(context: click.Context) -> str:
    return context.command_path


def _anchor(context: click.Context) -> str:
    return _name(context).replace(" ", "-")


def _indent(context: click.Context) -> str:
    return "  " * (_name(context).count(" ") - 1)


def _verb(context: click.Context) -> Iterator[str]:
    command = context.command
    depth = _name(context).count(" ")
    yield f"{'##' if depth < 2 else '###'} {_name(context)}"
    yield f"```text\n{_name(context)} {' '.join(command.collect_usage_pieces(context))}\n```"
    examples = ""
    for paragraph in _paragraphs(command):
        if paragraph.startswith("Examples:"):
            lines = [line.strip() for line in paragraph.splitlines()[1:]]
            examples = "```console\n" + "\n".join(f"$ {line}" for line in lines) + "\n```"
        else:
            yield _as_code(paragraph)
    if options := _options(context):
        yield options
    if examples:
        yield examples


def _paragraphs(command: click.Command) -> list[str]:
    """Its help; what click is told not to wrap (`\\b`) keeps its lines."""
    found: list[str] = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        kept, lines = paragraph.startswith("\b\n"), paragraph.removeprefix("\b\n").splitlines()
        found.append("\n".join(lines) if kept else " ".join(line.strip() for line in lines))
    return found


def _options(context: click.Context) -> str:
    options = [param for param in context.command.params if isinstance(param, click.Option) and not _shared(param)]
    records = [record for option in options if (record := option.get_help_record(context))]
    rows = [f"| `{_cell(names)}` | {_as_code(_cell(text))} |" for names, text in records]
    return "\n".join(["| option | |", "|---|---|", *rows]) if rows else ""


def _shared(option: click.Option) -> bool:
    """Whether every verb has it, so that it is told of once."""
    return option.opts == ["--home"] or (option.opts == ["--json"] and option.help == "Print JSON, for programs.")


def _as_code(text: str) -> str:
    return _SHELL_WORDS.sub(r"`\1`", text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# --- Slash commands --------------------------------------------------------------------------------------------------


def slash_table() -> str:
    rows = ["| command | what it does | acts |", "|---|---|---|"]
    for command in COMMANDS:
        also = f" Also {', '.join(f'`/{alias}`' for alias in command.aliases)}." if command.aliases else ""
        acts = "at once" if command.skips_queue else "in its turn"
        rows.append(f"| `{_cell(command.usage)}` | {_cell(command.help)}{also} | {acts} |")
    return "\n".join(rows)


def _between(page: str, made: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit("slash-commands.md lacks the markers of its generated part")
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
