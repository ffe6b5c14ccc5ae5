from everthread.domain.forgotten_words import erase_marked, fact_identity, mark_of


def test_marked_words_are_erased_wherever_they_stand() -> None:
    mark = mark_of("ann", "4711")
    assert erase_marked("4711, 4711 and 14711", "ann", [mark]) == "[forgotten], [forgotten] and 1[forgotten]"
    assert erase_marked("7411 has the same checksum", "ann", [mark]) == "7411 has the same checksum"
    assert erase_marked("4711", "bob", [mark]) == "4711", "another owner's mark"
    assert erase_marked("471", "ann", [mark]) == "471"


def test_the_longest_words_are_erased_first() -> None:
    marks = [mark_of("ann", "code"), mark_of("ann", "gate code")]
    assert erase_marked("the gate code, a code", "ann", marks) == "the [forgotten], a [forgotten]"


def test_overlapping_words_are_erased_once() -> None:
    assert erase_marked("aaaa", "ann", [mark_of("ann", "aa")]) == "[forgotten][forgotten]"
    assert erase_marked("aaa", "ann", [mark_of("ann", "aa")]) == "[forgotten]a"


def test_a_mark_does_not_contain_the_words() -> None:
    mark = mark_of("ann", "the gate code is 4711")
    assert "4711" not in str(mark)
    assert mark.identity == fact_identity("ann", "The gate  code is 4711")


def test_any_characters_can_be_marked() -> None:
    for words in ("日本", "\n", "\ud800", "Straße"):
        assert erase_marked(f"x{words}y", "ann", [mark_of("ann", words)]) == "x[forgotten]y"
    assert erase_marked("anything", "ann", [mark_of("ann", "")]) == "anything"


def test_whole_words_are_not_erased_from_longer_words() -> None:
    def erase(text: str, words: str) -> str:
        return erase_marked(text, "ann", [mark_of("ann", words)], whole_words=True)

    assert erase("My team eats steak", "tea") == "My team eats steak"
    assert erase("tea, (tea) and tea", "tea") == "[forgotten], ([forgotten]) and [forgotten]"
    assert erase("4711, 14711, 47112", "4711") == "[forgotten], 14711, 47112"
    assert erase("x(tea)y", "(tea)") == "x[forgotten]y", "the words end without a letter"
    assert erase("他说我喜欢茶了", "我喜欢茶") == "他说[forgotten]了", "no spaces between words"
    assert erase(r"first\ntea\nlast", "tea") == r"first\n[forgotten]\nlast", "escaped line breaks"
