"""Reading `.env`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.config_files import SECRET, config_error, load_home

from everthread.config import dotenv
from everthread.domain.errors import BadConfig


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=b", "b"),
        ("  export\tA = b  ", "b"),
        ("A=b # remark", "b"),
        ("A=b#c", "b#c"),
        ("A=#c", None),
        ("A='b # c' # remark", "b # c"),
        ("A='b\\n'", "b\\n"),
        (r'A="b\n\"c\" \\ \$d"', 'b\n"c" \\ $d'),
        ('A="b=c"#remark', "b=c"),
        ("\ufeffA=b\r\nC=d\r\n", "b"),
        ("# A=c\n\nA=b", "b"),
        ("A=c\nA=b", "b"),
        ("A=", None),
        ('A=""', None),
        ("A=b=c==", "b=c=="),
        ("A=日本", "日本"),
    ],
)
def test_common_forms_of_a_line_are_read(text: str, value: str | None, tmp_path: Path) -> None:
    assert load_home(tmp_path, env=text).secret("A") == value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"A=b\n{SECRET}", 2),
        (f"\n\n=\t{SECRET}", 3),
        (f"1A={SECRET}", 1),
        (f"A B={SECRET}", 1),
        (f"# x\r\nA='{SECRET}", 2),
        (f'A="{SECRET}" more', 1),
        (f'A="{SECRET}\\"', 1),
        ("export A", 1),
    ],
)
def test_an_invalid_line_is_named_and_not_quoted(text: str, line: int, tmp_path: Path) -> None:
    told = config_error(tmp_path, env=text)
    assert told.startswith(f"{tmp_path / '.env'}:{line}: ")
    assert SECRET not in told


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    told = ""
    try:
        dotenv.parse(Path("x"), text)
    except BadConfig as error:
        told = str(error)
    assert told == "" or re.match(r"x:\d+: ", told)
