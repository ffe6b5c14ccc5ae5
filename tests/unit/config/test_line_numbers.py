"""Finding the line of a key in TOML and JSON."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import hypothesis
from hypothesis import given
from hypothesis import strategies as st

from everthread.config.line_numbers import line_of_key

NAMES = st.one_of(
    st.from_regex(r"[a-zA-Z0-9_-]{1,3}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=4),
)


NOISE = [
    '"""\n[x]\n# \\""" a = 1\n""""',
    "'''\n]}'' \"\n'''",
    '"\\"]} #"',
    "'\\'",
    "1979-05-27 07:32:00",
    "[ ] # [",
    "[\n  '[', # ]\n  { a = '}' },\n\n]",
    "{ }",
    "true # {",
    "-1.5e3",
]


def key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


class Writer:
    """Write TOML in which every integer is the line number of its key."""

    def __init__(self, draw: Any) -> None:
        self.text = ""
        self.draw = draw

    def line(self) -> int:
        return self.text.count("\n") + 1

    def value(self, depth: int) -> None:
        match self.draw(st.sampled_from(["number", "noise", "array", "table"] if depth else ["number", "noise"])):
            case "number":
                self.text += str(self.line())
            case "noise":
                self.text += self.draw(st.sampled_from([n for n in NOISE if "#" not in n or "\n" in n]))
            case "array":
                self.text += "["
                for _ in range(self.draw(st.integers(0, 3))):
                    self.text += self.draw(st.sampled_from(["", "\n", " # [\n"]))
                    self.value(depth - 1)
                    self.text += self.draw(st.sampled_from([",", " , # ]\n", "\n,"]))
                self.text += "]"
            case _:
                self.text += "{"
                for place, name in enumerate(self.draw(st.lists(NAMES, max_size=3, unique=True))):
                    self.text += ", " * bool(place) + f"{key(name)} = "
                    self.value(depth - 1)
                self.text += "}"

    def pairs(self) -> None:
        for name in self.draw(st.lists(NAMES, max_size=4, unique=True)):
            more = "".join(f" . {key(part)}" for part in self.draw(st.lists(NAMES, max_size=2)))
            self.text += self.draw(st.sampled_from(["", "\n", "  ", "# x = [\n", "\r\n"])) + f"{key(name)}{more} = "
            self.value(2)
            self.text += self.draw(st.sampled_from(["\n", " # ]\n", "\r\n"]))

    def document(self) -> str:
        self.pairs()
        for place in range(self.draw(st.integers(0, 3))):
            # Table names contain a blank and a number, so that none is declared twice.
            more = "".join(f".{key(part)}" for part in self.draw(st.lists(NAMES, max_size=2)))
            if self.draw(st.booleans()):
                self.text += f'[ "table {place}" {more} ] # [x]\n'
                self.pairs()
            else:
                for _ in range(self.draw(st.integers(1, 3))):
                    self.text += f'[["table {place}"{more}]]\n'
                    self.pairs()
                    self.text += f'["table {place}"{more}."in it"]\n'
                    self.pairs()
        return self.text


@st.composite
def documents(draw: Any) -> str:
    return Writer(draw).document()


def numbers(value: Any, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], int]]:
    match value:
        case dict():
            for name, inner in value.items():
                yield from numbers(inner, (*keys, name))
        case list():
            for place, inner in enumerate(value):
                yield from numbers(inner, (*keys, place))
        case bool() | float():
            pass
        case int():
            yield keys, value


@hypothesis.settings(max_examples=40)
@given(documents())
def test_every_key_of_a_toml_text_is_found_on_its_line(text: str) -> None:
    for keys, line in numbers(tomllib.loads(text)):
        assert line_of_key(text, keys) == line, keys


@given(st.text(max_size=300), st.lists(st.one_of(st.text(max_size=3), st.integers(0, 3)), max_size=3))
def test_any_text_gives_a_line_of_the_text(text: str, keys: list[str | int]) -> None:
    for is_json in (False, True):
        assert 1 <= line_of_key(text, tuple(keys), json=is_json) <= text.count("\n") + 1


@given(st.text("[]{}=:\"'\\#,. \n\tab1", max_size=60))
def test_any_punctuation_gives_a_line_of_the_text(text: str) -> None:
    for is_json in (False, True):
        assert 1 <= line_of_key(text, ("a", 1, "b"), json=is_json) <= text.count("\n") + 1


@given(st.recursive(st.integers(), lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=4), max_leaves=9))
def test_every_key_of_a_json_text_is_found_on_its_line(value: Any) -> None:
    text = json.dumps(value, indent=1)

    def check(value: Any, keys: tuple[str, ...]) -> None:
        for name, inner in value.items() if isinstance(value, dict) else ():
            line = text.splitlines()[line_of_key(text, (*keys, name), json=True) - 1]
            assert line.strip().startswith(json.dumps(name) + ":")
            check(inner, (*keys, name))

    check(value, ())


def test_deep_nesting_and_many_keys_are_scanned() -> None:
    assert line_of_key("a = " + "[" * 100_000, ("a", 0, 0)) == 1
    assert line_of_key("[" * 100_000, (0,), json=True) == 1
    many = "\n".join(f"k{number} = {number}" for number in range(20_000))
    assert line_of_key(many, ("k19999",)) == 20_000


def test_a_missing_key_gives_the_line_of_its_nearest_parent() -> None:
    text = "[a.b]\nc = 1\n[a]\nd = 2"
    assert line_of_key(text, ("a", "b", "x")) == 1
    assert line_of_key(text, ("a", "x")) == 3
    assert line_of_key(text, ("x",)) == 1
