"""Changing one setting in a configuration text and keeping the rest unchanged."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.config.dotenv import parse, with_variable
from everthread.config.edit import candidate_values, change_setting, parse_key
from everthread.domain.errors import BadConfig, BadInput

TEXT = """\
# My settings

# How long it may take
[limits]  # all of them
turn_s = 30   # half a minute
iterations = 5

[reset]
mode = "idle"
"""


def set_in(text: str, key: str, value: Any) -> str:
    result = change_setting(text, parse_key(key), value)
    assert result is not None
    return result


def test_a_value_is_changed_in_place() -> None:
    assert set_in(TEXT, "limits.turn_s", 60.5) == TEXT.replace("30 ", "60.5 ")
    assert set_in(TEXT, "reset.mode", "none") == TEXT.replace('"idle"', '"none"')
    assert set_in("a = '''\nx\n'''  # y\nb = 1\n", "a", "z") == 'a = "z"  # y\nb = 1\n'


def test_a_new_key_is_added_to_its_table_and_a_new_table_at_the_end() -> None:
    assert set_in(TEXT, "limits.output_tokens", 9) == TEXT.replace("= 5\n", "= 5\noutput_tokens = 9\n")
    assert set_in(TEXT, "memory.recall_s", 1) == TEXT + "\n[memory]\nrecall_s = 1\n"
    assert set_in("", "limits.turn_s", 1) == "[limits]\nturn_s = 1\n"


def test_a_top_level_key_is_added_before_all_tables_and_their_comments() -> None:
    assert set_in(TEXT, "model", "a/b") == TEXT.replace("# How", 'model = "a/b"\n\n# How')
    assert set_in('owner = "x" # y\n' + TEXT, "model", "a/b") == 'owner = "x" # y\nmodel = "a/b"\n' + TEXT
    assert set_in("# only a remark", "model", "a/b") == '# only a remark\nmodel = "a/b"\n'


def test_inline_tables_and_dotted_keys_keep_their_style() -> None:
    assert set_in("limits = { turn_s = 3 } # z\n", "limits.iterations", 4) == (
        "limits = { turn_s = 3, iterations = 4 } # z\n"
    )
    assert set_in("limits = {}\n", "limits.iterations", 4) == "limits = { iterations = 4 }\n"
    assert set_in("limits.turn_s = 3\n[memory]\n", "limits.iterations", 4) == (
        "limits.turn_s = 3\nlimits.iterations = 4\n[memory]\n"
    )
    grown = set_in("providers.openai.tools = true\n", "providers.ollama.tools", False)
    assert tomllib.loads(grown) == {"providers": {"openai": {"tools": True}, "ollama": {"tools": False}}}


def test_an_edit_that_parses_to_another_value_is_refused() -> None:
    assert change_setting('a = "x=1"\n', ("a", "b"), 2) is None
    assert change_setting("[[a]]\nb = 1\n", ("a", "b"), 2) is None


def test_line_endings_are_kept() -> None:
    assert set_in("[limits]\r\nturn_s=1\r\n[memory]\r\n", "limits.iterations", 4) == (
        "[limits]\r\nturn_s=1\r\niterations = 4\r\n[memory]\r\n"
    )
    assert set_in("[limits]\nturn_s=1", "limits.iterations", 4) == "[limits]\nturn_s=1\niterations = 4\n"


NAMES = st.sampled_from(["a", "b", "c-d", "é", "x y", "openai/x"])
LEAVES = st.one_of(
    st.integers(-9, 9),
    st.booleans(),
    st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=8),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.integers(0, 3), max_size=3),
)
WRITTEN = ['"t # [u]"', "1", "[1, [2, 'a'], # r\n]", "{ a = 1, b.c = 2 }", "1979-05-27 07:32:00", '"""\n[x]\n"""']
TABLES = st.lists(st.sampled_from(["a", "b", "c-d", '"x y"']), min_size=1, max_size=3)
LINES = st.one_of(
    TABLES.map(lambda names: f"[{'.'.join(names)}]"),
    st.builds(
        lambda name, value: f"{name} = {value}",
        st.sampled_from(["a", "b", '"x y"', "a.b", "c-d . b", "'openai/x'"]),
        st.sampled_from(WRITTEN),
    ),
    st.sampled_from(["# remark = 1", "", "  ", "[[list]]"]),
)


@given(st.lists(LINES, max_size=8), st.lists(NAMES, min_size=1, max_size=3), LEAVES)
def test_an_edit_changes_no_other_setting(lines: list[str], keys: list[str], value: Any) -> None:
    text = "\n".join(lines)
    try:
        wanted = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    inner = wanted
    for key in keys[:-1]:
        found = inner.get(key)
        inner[key] = inner = found if isinstance(found, dict) else {}
    inner[keys[-1]] = value
    result = change_setting(text, tuple(keys), value)
    if result is not None:
        assert tomllib.loads(result) == wanted
        kept = [line for line in lines if line.startswith("#")]
        assert [line for line in result.split("\n") if line.startswith("#")] == kept


def test_keys_are_parsed_as_in_a_file() -> None:
    assert parse_key("limits.turn_s") == ("limits", "turn_s")
    assert parse_key('prices."openai/x".input') == ("prices", "openai/x", "input")
    for nonsense in ("", "a b", "a.", "a = 1", "a\nb", "[a]", "a.b = 1 #", "x" * 5000, ".".join("a" * 20)):
        with pytest.raises(BadInput):
            parse_key(nonsense)


def test_a_value_is_parsed_as_toml_a_text_or_a_list_of_texts() -> None:
    assert list(candidate_values("5")) == [5, "5", ["5"]]
    assert list(candidate_values("true"))[0] is True
    assert list(candidate_values("a/b, c/d")) == ["a/b, c/d", ["a/b", "c/d"]]
    assert list(candidate_values('["x"]')) == [["x"], '["x"]']
    assert list(candidate_values("1\nb = 2"))[0] == "1\nb = 2", "one value, not two settings"


def test_a_variable_is_set_in_place_or_at_the_end() -> None:
    assert with_variable("", "A", "1") == "A=1\n"
    assert with_variable("# x\nA=1\nB=2", "A", "3") == "# x\nA=3\nB=2"
    assert with_variable("A=1\nexport A = 2\n", "A", "3") == "A=1\nA=3\n", "the last assignment is used"
    with pytest.raises(BadConfig):
        with_variable("", "NO NAME", "1")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_a_variable_round_trips(value: str) -> None:
    from pathlib import Path

    text = with_variable("B=2", "A", value)
    assert parse(Path(".env"), text) == {"A": value, "B": "2"}
