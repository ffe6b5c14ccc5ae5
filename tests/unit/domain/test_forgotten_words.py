import random
import sys
from types import FrameType

import pytest

from everthread.domain.forgotten_words import (
    ForgottenWords,
    bytes_contain_words,
    contains_words,
    erase_words,
    fact_identity,
    mark_of,
)


def erase(text: str, *words: str, owner: str = "ann") -> str:
    return ForgottenWords.of(owner, [mark_of("ann", each) for each in words]).erase(text)


def test_marked_words_are_erased_wherever_they_stand() -> None:
    assert erase("4711, 4711 and 4711", "4711") == "[forgotten], [forgotten] and [forgotten]"
    assert erase("7411 has the same checksum", "4711") == "7411 has the same checksum"
    assert erase("4711", "4711", owner="bob") == "4711", "another owner's mark"
    assert erase("471", "4711") == "471"
    assert erase("", "4711") == ""


def test_the_longest_words_are_erased_first() -> None:
    assert erase("the gate code, a code", "code", "gate code") == "the [forgotten], a [forgotten]"
    assert erase_words("the gate code, a code", ["gate code", "code"]) == "the [forgotten], a [forgotten]"


def test_overlapping_words_are_erased_once() -> None:
    for text, erased in (("(a)(a)(a)", "[forgotten](a)"), ("(a)(a)(a)(a)", "[forgotten][forgotten]")):
        assert erase(text, "(a)(a)") == erased
        assert erase_words(text, ["(a)(a)"]) == erased


def test_a_mark_does_not_contain_the_words() -> None:
    mark = mark_of("ann", "the gate code is 4711")
    assert "4711" not in str(mark)
    assert mark.identity == fact_identity("ann", "The gate  code is 4711")


@pytest.mark.parametrize("words", ["日本", "\n", "\ud800", "Straße", "a" * 300])
def test_any_characters_can_be_marked(words: str) -> None:
    assert erase(f"({words})", words) == "([forgotten])"
    assert erase_words(f"({words})", [words]) == "([forgotten])"
    assert erase("anything", "") == "anything"


@pytest.mark.parametrize(
    ("text", "words", "erased"),
    [
        ("My team eats steak", "tea", "My team eats steak"),
        ("tea, (tea) and tea", "tea", "[forgotten], ([forgotten]) and [forgotten]"),
        ("4711, 14711, 47112", "4711", "[forgotten], 14711, 47112"),
        ("x(tea)y", "(tea)", "x[forgotten]y"),
        ("他说我喜欢茶了", "我喜欢茶", "他说[forgotten]了"),
        ("私はteaが好き", "tea", "私は[forgotten]が好き"),
        ("Großstadt", "Groß", "Großstadt"),
        ("cafe\u0301", "cafe", "cafe\u0301"),
        ("ЧайЧай, чай", "чай", "ЧайЧай, [forgotten]"),
        ("tea_time and a-tea.txt", "tea", "[forgotten]_time and a-[forgotten].txt"),
        (r"first\ntea\nlast", "tea", r"first\n[forgotten]\nlast"),
        (r"caf\u00e9tea", "tea", r"caf\u00e9[forgotten]"),
        ("\x1b[01;31mtea\x1b[m", "tea", "\x1b[01;31m[forgotten]\x1b[m"),
        ("\x1b[38;2;255;255;255;48;2;255;255;255mtea", "tea", "\x1b[38;2;255;255;255;48;2;255;255;255m[forgotten]"),
        ("\x1b(Btea", "tea", "\x1b(B[forgotten]"),
        ("\x1b7tea", "tea", "\x1b7[forgotten]"),
        ("^[[31mtea", "tea", "^[[31m[forgotten]"),
        (r"\u001b[1mtea\x1b[Ktea\033[0mtea", "tea", r"\u001b[1m[forgotten]\x1b[K[forgotten]\033[0m[forgotten]"),
        (r"\x1btea \xa0tea", "tea", r"\x1b[forgotten] \xa0[forgotten]"),
        (r"\U0001F600tea", "tea", r"\U0001F600[forgotten]"),
        (r"\0tea\atea\vtea", "tea", r"\0[forgotten]\a[forgotten]\v[forgotten]"),
        (r"caf\303\251tea", "tea", r"caf\303\251[forgotten]"),
        ("?q=hot%20tea%C3%A9tea%e9tea", "tea", "?q=hot%20[forgotten]%C3%A9[forgotten]%e9[forgotten]"),
        ("hot=20tea=C3=A9tea", "tea", "hot=20[forgotten]=C3=A9[forgotten]"),
        ("20tea [31mtea 5%tea =2tea", "tea", "20tea [31mtea 5%[forgotten] =2tea"),
        ("steam tea", "tea", "steam [forgotten]"),
        ("a tea", "tea", "a [forgotten]"),
    ],
)
def test_only_whole_words_are_erased(text: str, words: str, erased: str) -> None:
    """The same rule for words given as text, as marks and in files. Scripts without case have no word boundaries."""
    assert erase(text, words) == erased
    assert erase_words(text, [words]) == erased
    assert contains_words(text, [words]) is (text != erased)
    assert bytes_contain_words(text.encode(), [words]) is (text != erased)


def test_words_are_found_inside_words_of_binary_data() -> None:
    assert bytes_contain_words(b"\0\x03stea\0", ["tea"])
    assert not bytes_contain_words(b"steak", ["tea"])
    assert not bytes_contain_words(b"", ["tea"])


def test_marks_find_the_same_words_as_their_texts() -> None:
    dice = random.Random(7)
    vocabulary = ["a", "ab", "Ba", "tea", "team", "é", "日本", "\\n", "%20", "=4", "\x1b[1m", "4", "47", "-", "."]
    for _ in range(300):
        text = "".join(dice.choice(vocabulary) + dice.choice(("", " ", "")) for _ in range(30))
        start = dice.randrange(len(text) - 1)
        words = text[start : start + dice.randint(1, 6)]
        # A mark recognises other case and other spaces too.
        if " ".join(words.split()) == words == words.casefold():
            assert erase(text, words) == erase_words(text, [words]), (text, words)


def test_words_inside_longer_words_are_passed_over_with_few_calls() -> None:
    """A letter is inside the words of a long text millions of times. Calls are counted, because times vary."""
    text, calls = "tee-shirts were here. " * 100, 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    profiler = sys.getprofile()
    sys.setprofile(count)
    try:
        erased = erase_words(text, ["e"])
    finally:
        sys.setprofile(profiler)
    assert erased == text
    assert calls < 6 * text.count("e")


def test_facts_of_several_owners_are_found_in_one_pass() -> None:
    words = ForgottenWords([("ann", mark_of("ann", "tea")), ("bob", mark_of("bob", "ice"))])
    found = words.find("tea or ice")
    assert [(span, owner) for span, (owner, _) in sorted(found.items())] == [((0, 3), "ann"), ((7, 10), "bob")]
