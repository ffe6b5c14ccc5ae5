"""Search terms of a question, and excerpts of matches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.domain.search_terms import (
    MAX_KEYWORD_PAIRS,
    MAX_KEYWORDS,
    MAX_SEARCHED_CHARS,
    count_matches,
    excerpt,
    keywords,
)

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=[]), max_size=80)


def words(question: str) -> list[str]:
    return [word for word, _ in keywords(question)]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("what was the name of my dog again?", {"name", "dog"}),
        ("What's my dog's name?", {"name", "dog"}),
        ("Wie heißt mein Hund?", {"heißt", "hund"}),
        ("quel est le nom de mon chien ?", {"nom", "chien"}),
        ("¿Cómo se llama mi perro?", {"llama", "perro"}),
        ("What colour is my hat?", {"colour", "hat"}),
        ("was the war in 1940?", {"war", "1940"}),
        ("我的狗叫什么", {"我的", "的狗", "狗叫", "叫什", "什么"}),
        ("犬", {"犬"}),
        ("मेरे कुत्ते का नाम", {"मेरे", "कुत्ते", "का", "नाम"}),
        ("who are you?", set()),
        ("", set()),
        ("?! \x00", set()),
    ],
)
def test_common_words_are_no_search_terms(question: str, expected: set[str]) -> None:
    assert set(words(question)) == expected


def test_hiragana_is_used_without_other_terms() -> None:
    assert "でし" not in words("私の名前は何でしたか")
    assert "名前" in words("私の名前は何でしたか")
    assert "いぬ" in words("いぬのなまえは")


def test_singular_and_plural_match_each_other() -> None:
    assert keywords("languages") == [("language", True)]
    assert keywords("hive") == [("hive", True)]
    assert keywords("Paris glass bus dog") == [("paris", True), ("glass", True), ("bus", False), ("dog", False)]


def test_the_longest_of_many_words_are_used() -> None:
    found = words(" ".join("x" * n for n in range(2, 27)))
    assert len(found) == MAX_KEYWORDS
    assert min(map(len, found)) == 27 - MAX_KEYWORDS


@given(ANY_TEXT, ANY_TEXT)
def test_any_text_is_accepted(question: str, text: str) -> None:
    sought = keywords(question)
    assert len(sought) <= MAX_KEYWORDS + MAX_KEYWORD_PAIRS
    assert 0 <= count_matches(text, sought) <= len(sought)
    assert len(excerpt(text, sought, 40)) <= 41


@given(st.text(st.characters(codec="ascii"), max_size=80))
def test_a_text_contains_its_search_terms(text: str) -> None:
    sought = keywords(text)
    assert count_matches(text, sought) == len(sought)


def test_an_excerpt_shows_a_match_deep_in_a_long_text() -> None:
    text = "so it went on " * 1000 + "and the dog is called Bruno " + "and so on " * 1000
    shown = excerpt(text, keywords("my dog"), 100)
    assert "dog is called Bruno" in shown
    assert len(shown) <= 100
    assert shown.startswith("…")
    assert shown.endswith("…")


def test_only_the_beginning_of_a_very_long_text_is_searched() -> None:
    shown = excerpt("x " * MAX_SEARCHED_CHARS + "dog", keywords("dog"), 50)
    assert shown.startswith("x x")
    assert shown.endswith("…")
