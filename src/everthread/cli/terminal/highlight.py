"""Syntax highlighting: comments, strings, numbers and keywords. Unknown languages stay plain."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from everthread.cli.terminal.text import Span

_PYTHON = " ".join(keyword.kwlist)
_BRACES = (
    "abstract as async await bool boolean break byte case catch char class const constexpr continue debugger default "
    "defer delete do double dyn else enum export extends extern false final finally float fn for foreach from fun func "
    "function get go if impl implements import in include instanceof int interface internal is let long loop match mod "
    "mut namespace new nil none null nullptr of operator override package private protected pub public range readonly "
    "ref return select self set short signed sizeof static string struct super switch template this throw throws trait "
    "true try type typedef typeof undefined union unsafe unsigned use using val var virtual void volatile when where "
    "while with yield"
)
_SHELL = (
    "alias break case cd continue do done echo elif else esac eval exec exit export fi for function if in local "
    "readonly return set shift source then trap unset until while"
)
_SQL = (
    "add all alter and as asc begin between by case check column commit constraint create cross default delete desc "
    "distinct drop else end exists foreign from full group having if in index inner insert into is join key left like "
    "limit not null offset on or order outer over primary references returning right rollback select set table then "
    "transaction trigger union unique update using values view when where with"
)
_RUBY = (
    "alias and begin break case class def do else elsif end ensure false for if in module next nil not or puts raise "
    "require rescue return self super then true unless until when while yield local function repeat"
)
_CONSTANTS = "true false null yes no on off"
# Possessive quantifiers prevent backtracking. An unterminated double quote ends with its line. A single quote may be an
# apostrophe, so it must be closed within 200 characters.
_QUOTES = r"\"(?:\\.|[^\"\\\n])*+\"?|'(?:\\.|[^'\\\n]){0,200}+'"
_TRIPLE = r"\"\"\"[\s\S]*?(?:\"\"\"|\Z)|'''[\s\S]*?(?:'''|\Z)|"
_BACK_QUOTES = r"|`(?:\\.|[^`\\])*+`?"
# In Rust, an apostrophe without a closing one begins the name of a lifetime.
_CHARACTERS = r"\"(?:\\.|[^\"\\\n])*+\"?|'(?:\\.|[^'\\\n])'"
_HASH = r"(?:(?<=\s)|^)\#.*"
_SLASHES = r"//.*|/\*[\s\S]*?(?:\*/|\Z)"


class _Language(Struct, frozen=True):
    words: str
    comment: str
    string: str = _QUOTES
    any_case: bool = False


_LANGUAGES = {
    "python py python3 py3 pycon": _Language(_PYTHON, r"\#.*", _TRIPLE + _QUOTES),
    "javascript js jsx typescript ts tsx mjs java kotlin kt scala swift dart go golang c h cpp c++ cc hpp cs "
    "csharp c# php zig proto groovy": _Language(_BRACES, _SLASHES, _QUOTES + _BACK_QUOTES),
    "rust rs": _Language(_BRACES, _SLASHES, _CHARACTERS),
    "css scss less": _Language("important media import", _SLASHES),
    "bash sh shell zsh console fish dockerfile docker makefile make": _Language(_SHELL, _HASH),
    "sql sqlite postgresql postgres mysql": _Language(_SQL, r"--.*|/\*[\s\S]*?(?:\*/|\Z)", any_case=True),
    "ruby rb elixir ex julia jl perl pl r": _Language(_RUBY, r"\#.*"),
    "lua haskell hs": _Language(_RUBY + " " + _BRACES, r"--.*"),
    "json jsonc json5 jsonl": _Language(_CONSTANTS, r"//.*"),
    "toml yaml yml ini cfg conf properties env dotenv nix": _Language(_CONSTANTS, _HASH),
    "html xml svg vue": _Language("", r"<!--[\s\S]*?(?:-->|\Z)", _QUOTES),
}
_NUMBER = r"\b(?:0[xXbBoO][0-9a-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b"


_ON_DARK = {"word": "94", "string": "33", "number": "96", "comment": "2", "added": "32", "removed": "31"}
_ON_LIGHT = _ON_DARK | {"word": "34", "string": "31", "number": "35"}


def highlight(text: str, language: str, *, dark: bool) -> list[Span]:
    """Return the text as spans, coloured if the language is known."""
    palette = _ON_DARK if dark else _ON_LIGHT
    name = language.strip().lower()
    if name in ("diff", "patch"):
        return _highlight_diff(text, palette)
    pattern = _pattern(name)
    if pattern is None:
        return [Span(text)]
    spans: list[Span] = []
    done = 0
    for match in pattern.finditer(text):
        spans += [Span(text[done : match.start()]), Span(match[0], (palette[match.lastgroup or "word"],))]
        done = match.end()
    return [span for span in [*spans, Span(text[done:])] if span.text]


@cache
def _pattern(name: str) -> re.Pattern[str] | None:
    language = next((language for names, language in _LANGUAGES.items() if name in names.split()), None)
    if language is None:
        return None
    words = "|".join(language.words.split())
    flags = re.MULTILINE | (re.IGNORECASE if language.any_case else 0)
    parts = [f"(?P<comment>{language.comment})", f"(?P<string>{language.string})", f"(?P<number>{_NUMBER})"]
    if words:
        parts.append(rf"(?P<word>\b(?:{words})\b)")
    return re.compile("|".join(parts), flags)


def _highlight_diff(text: str, palette: Mapping[str, str]) -> list[Span]:
    codes = {"+": (palette["added"],), "-": (palette["removed"],), "@": (palette["word"],)}
    return [Span(line, codes.get(line[:1], ())) for line in text.splitlines(keepends=True)]
