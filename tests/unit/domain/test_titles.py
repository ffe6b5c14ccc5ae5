import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everthread.domain.errors import BadTitle
from everthread.domain.titles import TITLE_CHARS_MAX, clean, fold, next_title, numbered, split

TOP = 999_999_999


def cleaned_or_none(text: str) -> str | None:
    try:
        return clean(text)
    except BadTitle:
        return None


# Letters with special case, composition or width, beside ordinary and invisible ones.
TRICKY = st.sampled_from(
    [*"abc ABC  #123", "\u00e9", "e", "\u0301", "ß", "ẞ", "İ", "ﬁ", "Ａ", "＃", "２", "\u200b", "Ω", "漢", "\u0345"]
)
RAW = st.text(TRICKY, max_size=130) | st.text(max_size=130)
TITLES = RAW.map(cleaned_or_none).filter(lambda title: title is not None).map(str)
NUMBERS = st.integers(2, 1200) | st.integers(2, TOP)


# --- clean ---


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("  trip to \t Rome\n", "trip to Rome"),
        ("a\tb\nc\x85d\x1fe", "a b c d e"),
        ("a\u00a0\u3000b\u2028c", "a b c"),
        ("a \u200b b", "a b"),
        ("pass\u200bword", "password"),
        ("\u202egnp.exe\u202c", "gnp.exe"),
        ("\u2066x\u2069\ufeff", "x"),
        ("a\x00b\x1b[31mc\x7f", "ab[31mc"),
        ("so\u00adft", "soft"),
        ("\u3164x\u115f\uffa0", "x"),
        ("x\ufe0f\U000e0041\U000e0100", "x"),
        ("a\u2800b", "a b"),
        ("cafe\u0301", "café"),
        ("cafe\u200d\u0301", "café"),
        ("ok\ud800", "ok"),
        ("日本 🎉", "日本 🎉"),
    ],
)
def test_clean_keeps_visible_text(text: str, title: str) -> None:
    assert clean(text) == title


@pytest.mark.parametrize(
    "text", ["", "   ", "\n\t", "\u200b\u200d", "\u3164", "\u2800 \u2800", "\x00", "\U000e0020", "\ud800"]
)
def test_a_title_without_visible_text_is_refused(text: str) -> None:
    with pytest.raises(BadTitle, match="at least one visible character"):
        clean(text)


def test_a_title_of_a_hundred_characters_is_allowed_and_a_longer_one_is_not() -> None:
    assert clean("x" * 100) == "x" * 100
    with pytest.raises(BadTitle, match="has 101 characters: shorten it by 1,"):
        clean("x" * 101)


def test_the_length_of_the_clean_title_is_limited() -> None:
    assert clean("  " + "e\u0301\u200b" * 100 + "  ") == "é" * 100
    with pytest.raises(BadTitle):  # this letter has no composed form in NFC: it counts as two
        clean("\u0958" * 51)


@given(RAW)
def test_cleaning_twice_changes_nothing(text: str) -> None:
    title = cleaned_or_none(text)
    if title is None:
        return
    assert clean(title) == title
    assert 1 <= len(title) <= TITLE_CHARS_MAX
    assert title == " ".join(title.split())
    assert unicodedata.is_normalized("NFC", title)
    assert not {unicodedata.category(character) for character in title} & {"Cc", "Cf", "Cs"}
    title.encode()


# --- fold ---


@pytest.mark.parametrize(
    ("one", "other"),
    [("Name", "nAME"), ("Straße", "STRASSE"), ("café", "CAFE\u0301"), ("ﬁn", "FIN"), ("Ｎａｍｅ", "name"), ("𝐀", "a")],
)
def test_equal_looking_titles_fold_equally(one: str, other: str) -> None:
    assert fold(one) == fold(other)


@pytest.mark.parametrize(("one", "other"), [("name", "name #2"), ("cafe", "café"), ("a b", "ab")])
def test_different_looking_titles_fold_differently(one: str, other: str) -> None:
    assert fold(one) != fold(other)


@given(RAW)
@example("\u01f0")  # its case folding is decomposed
def test_folding_twice_changes_nothing_and_gives_a_normal_form(text: str) -> None:
    assert fold(fold(text)) == fold(text)
    assert unicodedata.is_normalized("NFKC", fold(text))


@given(TITLES)
def test_titles_that_differ_in_case_or_composition_are_equal(title: str) -> None:
    assert fold(title.casefold()) == fold(title)
    assert fold(unicodedata.normalize("NFD", title)) == fold(title)


# --- split and numbered ---


@pytest.mark.parametrize(
    ("title", "parts"),
    [
        ("name", ("name", 1)),
        ("name #2", ("name", 2)),
        ("name #10", ("name", 10)),
        ("a b #3", ("a b", 3)),
        ("name #2 #3", ("name #2", 3)),
        ("# #2", ("#", 2)),
        ("name #1", ("name #1", 1)),
        ("name #0", ("name #0", 1)),
        ("name #02", ("name #02", 1)),
        ("name #-2", ("name #-2", 1)),
        ("name #2x", ("name #2x", 1)),
        ("name#2", ("name#2", 1)),
        ("name # 2", ("name # 2", 1)),
        ("name #٢", ("name #٢", 1)),
        ("name #1٢", ("name #1٢", 1)),
        ("name #2\n", ("name #2\n", 1)),
        ("#2", ("#2", 1)),
        (" #2", (" #2", 1)),
        (f"name #{TOP}", ("name", TOP)),
        (f"name #{TOP + 1}", (f"name #{TOP + 1}", 1)),
        ("name #" + "9" * 5000, ("name #" + "9" * 5000, 1)),
    ],
)
def test_split_parses_only_the_format_of_numbered(title: str, parts: tuple[str, int]) -> None:
    assert split(title) == parts


def test_number_one_is_the_base_itself() -> None:
    assert numbered("name", 1) == "name"


def test_a_long_base_is_cut_and_its_number_is_kept() -> None:
    assert numbered("x" * 100, 2) == "x" * 97 + " #2"
    assert numbered("x" * 100, 1234) == "x" * 94 + " #1234"
    assert numbered("x" * 97, 2) == "x" * 97 + " #2"


def test_a_cut_after_a_word_leaves_no_double_space() -> None:
    assert numbered("x" * 96 + " yyy", 2) == "x" * 96 + " #2"


@pytest.mark.parametrize("number", [0, -1, TOP + 1])
def test_an_invalid_number_raises(number: int) -> None:
    with pytest.raises(ValueError, match="from 1 to"):
        numbered("name", number)


@given(base=TITLES, number=NUMBERS)
@example(base="x" * 97 + " #2", number=3)
def test_a_numbered_title_splits_into_its_number_and_the_cut_base(base: str, number: int) -> None:
    title = numbered(base, number)
    cut, found = split(title)
    assert found == number
    assert base.startswith(cut)
    assert cut == base or len(title) >= TITLE_CHARS_MAX - 1  # nothing is cut unnecessarily
    assert clean(title) == title
    assert numbered(cut, number) == title


@given(TITLES)
def test_splitting_and_numbering_round_trips(title: str) -> None:
    assert numbered(*split(title)) == title


# --- next_title ---


@pytest.mark.parametrize(
    ("title", "taken", "following"),
    [
        ("name", [], "name #2"),
        ("name", ["name"], "name #2"),
        ("name #2", ["name", "name #2"], "name #3"),
        ("name #2", [], "name #3"),
        ("name", ["name #2", "name #7"], "name #8"),
        ("name #9", ["name #10"], "name #11"),
        ("name", ["NAME #4"], "name #5"),
        ("Straße", ["STRASSE #4"], "Straße #5"),
        ("name", ["ｎａｍｅ ＃２"], "name #3"),
        ("name", ["other #9", "my name #9", "name #2 #9", "names #9", "name #09"], "name #2"),
        ("name #1", ["name #2"], "name #1 #2"),
        ("#2", [], "#2 #2"),
        ("x" * 100, [], "x" * 97 + " #2"),
        ("x" * 100, ["x" * 97 + " #2"], "x" * 97 + " #3"),
        ("x" * 97 + " #9", ["x" * 97 + " #9"], "x" * 96 + " #10"),
        ("x" * 100, ["x" * 97 + " #9", "x" * 96 + " #10"], "x" * 96 + " #11"),
        ("name", [f"name #{TOP}"], "name #2"),
        (f"name #{TOP}", ["name #2", "name #4"], "name #3"),
        ("name #3", ["name #2", f"name #{TOP}"], "name #4"),
    ],
)
def test_the_next_title_has_the_highest_number_of_its_base_plus_one(
    title: str, taken: list[str], following: str
) -> None:
    assert next_title(title, taken) == following


@given(
    title=TITLES,
    others=st.lists(TITLES, max_size=4),
    numbers=st.lists(NUMBERS, max_size=6),
    written=st.sampled_from([str, str.casefold, fold]),
)
def test_the_next_title_is_unused_clean_and_above_its_relatives(
    title: str, others: list[str], numbers: list[int], written: Callable[[str], str]
) -> None:
    base, number = split(title)
    relatives = [written(numbered(base, n)) for n in numbers]
    taken = [title, *others, *relatives]
    following = next_title(title, taken)
    assert fold(following) not in {fold(other) for other in taken}
    assert clean(following) == following
    cut, chosen = split(following)
    assert base.startswith(cut)
    if max([number, *numbers]) < TOP:
        assert chosen > max([number, *numbers])


@given(title=TITLES, steps=st.integers(1, 30))
def test_a_lineage_never_repeats_a_title(title: str, steps: int) -> None:
    lineage = [title]
    for _ in range(steps):
        lineage.append(next_title(lineage[-1], lineage))
    assert len({fold(member) for member in lineage}) == len(lineage)
