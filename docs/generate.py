"""Write the parts of the reference that come from the program: CLI commands, slash commands and settings.

`python -m docs.generate` writes them; a test checks that the pages are current.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_origin

import click
from msgspec import NODEFAULT, json

from everthread.cli.main import everthread
from everthread.commands.registry import COMMANDS
from everthread.config import declaration, schema
from everthread.config.declaration import Declaration, declarations
from everthread.config.schema import BASE_URLS, built_in_providers

REFERENCE = Path(__file__).parent / "reference"
BEGIN = "<!-- Generated from the program by `make docs`. -->"
END = "<!-- End of the generated part. -->"
_SHELL_WORDS = re.compile(r"(?<![\w`/.-])(--[a-z][a-z-]*|-[a-z]\b|\$[A-Z_]+[\w/]*)")

_SETTINGS = re.compile(r"(<!-- `make docs` writes the settings of (\w+): -->\n).*?(\n<!-- End. -->)", re.DOTALL)


def pages() -> dict[Path, str]:
    """Return the text of every page that is generated, wholly or in part."""
    commands, settings = REFERENCE / "slash-commands.md", REFERENCE / "configuration.md"
    return {
        REFERENCE / "cli.md": verbs(),
        commands: _between(commands.read_text(), slash_table()),
        settings: _SETTINGS.sub(_settings_table, settings.read_text()),
    }


# --- Verbs -----------------------------------------------------------------------------------------------------------


def verbs() -> str:
    contexts = list(verbs_of(everthread))
    contents = [
        f"{_indent(c)}- [`{_name(c)}`](#{_anchor(c)}): {_as_code(first_sentence(c.command))}" for c in contexts[1:]
    ]
    opening = [
        "# CLI commands",
        BEGIN,
        "Every command of `everthread`, as `--help` prints it. [CLI conventions](cli-conventions.md) describes what "
        "they share: session names, exit codes, JSON. Each command takes `--home PATH` (the data folder), `--json` "
        "(print JSON) and `--help`.",
        "\n".join(contents),
    ]
    return "\n\n".join([*opening, *(part for context in contexts for part in _verb(context))]) + "\n"


def verbs_of(program: click.Command) -> Iterator[click.Context]:
    """Return the contexts of the program and all its commands, groups before their members."""
    return _walk(_context(program, None, "everthread"))


def first_sentence(command: click.Command) -> str:
    return re.split(r"(?<=\.)\s", _paragraphs(command)[0], maxsplit=1)[0]


def _walk(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None, name
            if not command.hidden:
                yield from _walk(_context(command, context, name))


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
    """Return the paragraphs of the help text; paragraphs marked `\\b` keep their lines."""
    paragraphs: list[str] = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        preformatted, lines = paragraph.startswith("\b\n"), paragraph.removeprefix("\b\n").splitlines()
        paragraphs.append("\n".join(lines) if preformatted else " ".join(line.strip() for line in lines))
    return paragraphs


def _options(context: click.Context) -> str:
    options = [param for param in context.command.params if isinstance(param, click.Option) and not _shared(param)]
    records = [record for option in options if (record := option.get_help_record(context))]
    rows = [f"| `{_cell(names)}` | {_as_code(_cell(text))} |" for names, text in records]
    return "\n".join(["| option | |", "|---|---|", *rows]) if rows else ""


def _shared(option: click.Option) -> bool:
    """Return True for options of every command, which the page describes once."""
    return option.opts == ["--home"] or (option.opts == ["--json"] and option.help == "Print JSON.")


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


def _between(page: str, table: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit("slash-commands.md lacks the markers of its generated part")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


# --- Settings --------------------------------------------------------------------------------------------------------


def _settings_table(mark: re.Match[str]) -> str:
    """Write the table of one class of `everthread.config.schema`, or of the built-in providers."""
    if mark[2] == "built_in_providers":
        rows = ["| name | kind | `base_url` | `api_key_env` | address also from |", "|---|---|---|---|---|"]
        for name, provider in built_in_providers().items():
            variable = next((variable for variable, other in BASE_URLS.items() if other == name), "")
            values = (provider.base_url, provider.api_key_env, variable)
            rows.append(f"| `{name}` | `{provider.kind}` | {' | '.join(f'`{v}`' if v else '' for v in values)} |")
    else:
        rows = ["| key | type | default | allowed | meaning |", "|---|---|---|---|---|"]
        rows += [
            _setting(each)
            for each in declarations(getattr(schema, mark[2], None) or getattr(declaration, mark[2]))
            if each.setting.help
        ]
    return f"{mark[1]}\n{re.sub('  +', ' ', chr(10).join(rows))}\n{mark[3]}"


def _setting(each: Declaration) -> str:
    setting = each.setting
    allowed = setting.allowed or ", ".join(f"`{choice}`" for choice in each.choices)
    if setting.high:
        allowed = f"{setting.low:,g} to {setting.high:,.10g}"
    return (
        f"| `{each.key}` | {_type(each)} | {setting.default or _default(each.default)} | {allowed} | {setting.help} |"
    )


def _type(each: Declaration) -> str:
    plain: dict[Any, str] = {bool: "boolean", int: "integer", float: "number"}
    if get_origin(each.type) is tuple:
        return "array of strings"
    if each.type in plain or each.choices or each.type in (str, Path):
        return plain.get(each.type, "string")
    return "table"


def _default(value: Any) -> str:
    if value is NODEFAULT:
        return "required"
    if isinstance(value, bool | float | int | str | tuple) and value != "":
        return f"`{value:g}`" if isinstance(value, float) else f"`{json.encode(value).decode()}`"
    return "none"


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
