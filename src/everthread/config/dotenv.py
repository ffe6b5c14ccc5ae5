"""The file `.env`: one NAME=VALUE on a line. What is wrong with a line is told without showing the line."""

from __future__ import annotations

import re
from pathlib import Path

from everthread.domain.errors import BadConfig

_LINE = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"[ \t]*(?:#.*)?')
_SINGLE = re.compile(r"'([^']*)'[ \t]*(?:#.*)?")
_COMMENT = re.compile(r"(?:^|[ \t])#.*")
_ESCAPE = re.compile(r"\\(.)")
_MEANT = {"n": "\n", "r": "\r", "t": "\t"}


def parse(file: Path, text: str) -> dict[str, str]:
    """The variables that the text sets; the last one of a name counts. Raises `BadConfig`."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise BadConfig(f"{file}:{number}: not a setting; write NAME=VALUE, or # before a remark")
        found[match[1]] = _value(match[2], f"{file}:{number}: {match[1]}")
    return found


def _value(written: str, where: str) -> str:
    quote = written[:1]
    if quote not in ('"', "'"):
        return _COMMENT.sub("", written).rstrip()
    match = (_DOUBLE if quote == '"' else _SINGLE).fullmatch(written)
    if match is None:
        raise BadConfig(f"{where}: the quote {quote} does not end at the end of the line; close it there")
    return match[1] if quote == "'" else _ESCAPE.sub(lambda found: _MEANT.get(found[1], found[1]), match[1])
