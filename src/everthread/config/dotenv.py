"""Read and change the file `.env`: one NAME=VALUE per line. Error messages do not quote the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from everthread.domain.errors import BadConfig

_LINE = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"[ \t]*(?:#.*)?')
_SINGLE = re.compile(r"'([^']*)'[ \t]*(?:#.*)?")
_COMMENT = re.compile(r"(?:^|[ \t])#.*")
_ESCAPE = re.compile(r"\\(.)")
_MEANT = {"n": "\n", "r": "\r", "t": "\t"}
_WRITTEN = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
_NEEDS_QUOTES = re.compile(r"[\s\"'#\\]|^$")


def parse(file: Path, text: str) -> dict[str, str]:
    """Return the variables. The last line of a name wins. Raises `BadConfig` for the first invalid line."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if variable := _variable(file, number, line.strip()):
            found[variable[0]] = variable[1]
    return found


def problems(file: Path, text: str) -> Iterator[str]:
    """Yield one message per invalid line."""
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            _variable(file, number, line.strip())
        except BadConfig as error:
            yield str(error)


def with_variable(text: str, name: str, value: str) -> str:
    """Return the text with the variable set: replace its last line, or append one. Other lines stay."""
    if not _LINE.fullmatch(f"{name}=") or "\0" in value:
        raise BadConfig(f"{name[:60]!r} can't be set; a name is made of letters, digits and _, a value has no NUL")
    quoted = "".join(_WRITTEN.get(c, c) for c in value)
    line = f'{name}="{quoted}"' if _NEEDS_QUOTES.search(value) else f"{name}={value}"
    lines = text.split("\n")
    places = [n for n, old in enumerate(lines) if (found := _LINE.fullmatch(old.strip())) and found[1] == name]
    if places:
        lines[places[-1]] = line
        return "\n".join(lines)
    start = text if not text or text.endswith("\n") else text + "\n"
    return f"{start}{line}\n"


def _variable(file: Path, number: int, line: str) -> tuple[str, str] | None:
    if not line or line.startswith("#"):
        return None
    match = _LINE.fullmatch(line)
    if match is None:
        raise BadConfig(f"{file}:{number}: not a setting; write NAME=VALUE, or # before a remark")
    return match[1], _value(match[2], f"{file}:{number}: {match[1]}")


def _value(written: str, where: str) -> str:
    quote = written[:1]
    if quote not in ('"', "'"):
        return _COMMENT.sub("", written).rstrip()
    match = (_DOUBLE if quote == '"' else _SINGLE).fullmatch(written)
    if match is None:
        raise BadConfig(f"{where}: the quote {quote} does not end at the end of the line; close it there")
    return match[1] if quote == "'" else _ESCAPE.sub(lambda found: _MEANT.get(found[1], found[1]), match[1])
