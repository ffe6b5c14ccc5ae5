"""The search text functions, proved against a real FTS5 table with the DDL they are made for."""

from collections.abc import Callable

import apsw
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everthread.domain.model import FORGOTTEN, Message, Role, Session, TurnStatus
from everthread.domain.search_terms import MAX_QUERY_CHARS, MAX_QUERY_TERMS, snippet
from everthread.store.search_index import OCTETS_PER_BATCH, TOKENIZER, index_text, match_query, owner_token
from everthread.store.turns import MESSAGES_PER_TURN
from everthread.store.unit_of_work import UnitOfWork

# Lone surrogates included: a str from JSON may hold them.
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=[]), max_size=60)
# Text made of what has a meaning for FTS5 or for match_query.
SIGNS = list("\"*(){}:^-+,'\0\\ “＂＊")
WORDS = "AND OR NOT NEAR NEAR( scope text rank a 東 東京 é ि".split()
SYNTAX = st.lists(st.sampled_from(SIGNS + WORDS), max_size=30).map("".join)
UNSPACED = st.text(alphabet="東京都に住むカタナ서울시ไทย𠮷々ー", min_size=1, max_size=8)


class Index:
    """An index in memory, and the messages of two owners by rowid."""

    def __init__(self) -> None:
        self.db = apsw.Connection(":memory:")
        self.db.execute(
            "CREATE VIRTUAL TABLE message_words USING fts5(text, scope, content='',"
            f' contentless_delete=1, tokenize="{TOKENIZER}")'
        )

    def add(self, rowid: int, content: str, owner: str = "ann") -> None:
        self.db.execute(
            "INSERT INTO message_words(rowid, text, scope) VALUES (?, ?, ?)",
            (rowid, index_text(content), owner_token(owner)),
        )

    def remove(self, rowid: int) -> None:
        self.db.execute("DELETE FROM message_words WHERE rowid = ?", (rowid,))

    def find(self, query: str, owner: str = "ann") -> list[int]:
        match = match_query(query, owner)
        if match is None:
            return []
        rows = self.db.execute(
            "SELECT rowid FROM message_words WHERE message_words MATCH ? ORDER BY rowid DESC",
            (match,),
        )
        return [row[0] for row in rows]


@pytest.fixture(name="index")
def empty_index() -> Index:
    return Index()


def finds(content: str, query: str) -> bool:
    index = Index()
    index.add(1, content)
    return index.find(query) == [1]


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("The quick brown fox", "fox quick"),
        ("The quick brown fox", '"quick brown"'),
        ("The quick brown fox", "“quick brown”"),
        ("The quick brown fox", '"quick brown'),
        ("The quick brown fox", "bro*"),
        ("The quick brown fox", '"quick bro"*'),
        ("The quick brown fox", "fox :-) !!"),
        ("Zażółć Crème brûlée", "creme BRULEE"),
        ("cre\u0300me", "crème"),
        ("see src/app/main.py", "app/main.py"),
        ("don't", "don't"),
        ("soft\u00adware", "software"),
        ("ﬁne ＡＢＣ", "fine abc"),
        ("NOT OR AND", "AND"),
        ("我住在東京都。", "東京"),
        ("我住在東京都。", "都"),
        ("我住在東京都。", "東京都。"),
        ("我住在東京都。", "住在東京都"),
        ("我住在東京都。", "我"),
        ("Tokyo東京Tower", "東京tower"),
        ("Tokyo 東京 Tower", '"東京 tower"'),
        ("Tokyo 東京都", '"tokyo 東"'),
        ("ｶﾞｲﾄﾞを見た", "ガイド"),
        ("서울에서 만나요", "서울"),
        ("서울에서 만나요", "서울에서 만나요"),
        ("\u1109\u1165\u110b\u116e\u11af", "서울"),
        ("ภาษาไทยสวย", "ไทย"),
        ("यह हिन्दी है", "हिन्दी"),
        ("שָׁלוֹם", "שלום"),
        ("𠮷野家", "𠮷"),
    ],
)
def test_finds(content: str, query: str) -> None:
    assert finds(content, query)


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("The quick brown fox", "fox dog"),
        ("The quick brown fox", '"brown quick"'),
        ("The quick brown fox", "bro"),
        ("The quick brown fox", "quick OR dog"),
        ("The quick brown fox", "quick NOT dog"),
        ("The quick brown fox", "br*"),  # too short a prefix: taken as a word
        ("京東", "東京"),
        ("東大 京大", "東京"),
        ("東京 大阪", "京大"),
    ],
)
def test_does_not_find(content: str, query: str) -> None:
    assert not finds(content, query)


@pytest.mark.parametrize("query", ["", "   ", "!!! ???", '""', "*", '"*"', "\0", "👍", "\ud800", "ि"])
def test_nothing_to_search_for(query: str) -> None:
    assert match_query(query, "ann") is None


@given(query=st.one_of(ANY_TEXT, SYNTAX), owner=ANY_TEXT)
@example(query='" OR scope:x "', owner='" OR text:x')
@example(query="word*" * 500, owner="")
@example(query="東" * 5_000, owner="")
@example(query="a " * 5_000, owner="")
def test_any_query_runs_and_stays_with_its_owner(query: str, owner: str) -> None:
    index = Index()
    index.add(1, query, owner)
    index.add(2, query, owner + "x")
    index.add(3, owner_token(owner), owner + "x")
    assert set(index.find(query, owner)) <= {1}


@given(before=UNSPACED, part=UNSPACED, after=UNSPACED)
def test_any_part_of_an_unspaced_run_is_found(before: str, part: str, after: str) -> None:
    for content in (part, before + part, part + after, before + part + after, f"a{part}b c"):
        assert finds(content, part)


@given(words=st.lists(st.sampled_from(["fox", "東京", "café", "naïve", "한국", "x1"]), min_size=1))
def test_a_message_is_found_by_its_own_words(words: list[str]) -> None:
    content = " ".join(words)
    assert finds(content, content)
    assert finds(content, f'"{content}"') or len(content) > MAX_QUERY_CHARS


def test_owners_are_apart(index: Index) -> None:
    index.add(1, "shared word", "ann")
    index.add(2, "shared word", "bob")
    index.add(3, owner_token("ann"), "bob")
    assert index.find("shared", "ann") == [1]
    assert index.find("shared", "bob") == [2]
    assert index.find("shared", "eve") == []
    assert index.find(owner_token("ann"), "ann") == []
    assert owner_token("ann").isalnum()
    assert owner_token("ann") != owner_token("Ann")


def test_a_removed_message_is_gone_without_its_text(index: Index) -> None:
    index.add(1, "keep this secretword")
    index.add(2, "drop this secretword")
    index.remove(2)
    assert index.find("secretword") == [1]
    assert index.find("drop") == []


def test_optimize_purges_removed_words_from_the_file(index: Index) -> None:
    index.add(1, "keep")
    index.add(2, "secretword")
    index.remove(2)
    index.db.execute("INSERT INTO message_words(message_words) VALUES ('optimize')")
    blocks = [row[0] for row in index.db.execute("SELECT block FROM message_words_data")]
    assert any(b"keep" in block for block in blocks)
    assert not any(b"secretword" in block for block in blocks)


def test_a_long_query_is_cut_at_a_word() -> None:
    words = [f"word{n}" for n in range(200)]
    match = match_query(" ".join(words), "ann")
    assert match is not None
    assert match.count('"word') == MAX_QUERY_TERMS
    assert finds("abcdefg", "abcdefg " * 60 + "!")


@given(text=ANY_TEXT)
def test_index_text_can_be_stored(text: str) -> None:
    assert index_text(text).isascii() or index_text(text).encode()


def test_ascii_is_indexed_as_it_is() -> None:
    text = "plain text, as most messages are"
    assert index_text(text) is text


@pytest.mark.parametrize(
    ("content", "query", "shown"),
    [
        ("short text", "text", "short text"),
        ("short\n\n  text", "nothing", "short text"),
        ("a " * 100 + "needle " + "b " * 100, "needle", "…a a a a needle b b b b b b…"),
        ("a " * 100 + "Nëedlé", "needle", "…a a a a a a a a a a Nëedlé"),
        ("needles " * 30 + "x needle", "needle", "…needles needles x needle"),
        ("あ" * 100 + "東京" + "い" * 100, "東京", "…" + "あ" * 9 + "東京" + "い" * 16 + "…"),
    ],
)
def test_snippet(content: str, query: str, shown: str) -> None:
    assert snippet(content, query, 29) == shown


@given(content=ANY_TEXT, query=st.one_of(ANY_TEXT, SYNTAX), width=st.integers(1, 40))
def test_snippet_keeps_its_width(content: str, query: str, width: int) -> None:
    shown = snippet(content, query, width)
    assert len(shown) <= width
    assert shown == " ".join(shown.split())


@pytest.mark.parametrize("place", [0, 300, 5_000, 9_990])
@pytest.mark.parametrize("write", [str.lower, str.upper, str.title])
def test_snippet_shows_the_hit(place: int, write: Callable[[str], str]) -> None:
    text = "lorem ipsum " * 1_000
    content = text[:place] + " Needle " + text[place:]
    assert "Needle" in snippet(content, write("needle"))


def test_new_messages_are_indexed_in_batches_of_whole_turns(uow: UnitOfWork, session: Session) -> None:
    half = "word " * (OCTETS_PER_BATCH // 10)
    for number in range(1, 6):
        messages = [Message(Role.USER, half), Message(Role.ASSISTANT, f"answer{number}")]
        uow.turns.add(session, number, f"t{number}", TurnStatus.DONE, messages, 1.0)
    batches = [uow.search.count()]
    while uow.search.index_batch():
        batches.append(uow.search.count())
    assert batches == [0, 4, 8], "two turns at a time"
    assert uow.search.count() == 10
    assert [len(uow.search.search("ann", f"answer{number}", limit=9)) for number in range(1, 6)] == [1] * 5
    assert not uow.search.index_batch()
    assert uow.search.count() == 10


def test_a_turn_larger_than_a_batch_is_indexed(uow: UnitOfWork, session: Session) -> None:
    uow.turns.add(session, 1, "t1", TurnStatus.DONE, [Message(Role.USER, "word " * OCTETS_PER_BATCH)], 1.0)
    assert not uow.search.index_batch()
    assert len(uow.search.search("ann", "word", limit=9)) == 1


def test_a_rebuilt_index_leaves_out_forgotten_messages(uow: UnitOfWork, session: Session) -> None:
    messages = [Message(Role.USER, "tea"), Message(Role.ASSISTANT, FORGOTTEN), Message(Role.ASSISTANT, "")]
    uow.turns.add(session, 1, "t1", TurnStatus.DONE, messages, 1.0)
    uow.search.index()
    uow.search.clear()
    uow.search.index()
    assert uow.search.count() == 1
    assert uow.search.search("ann", "forgotten", limit=9) == ()
    assert uow.search.find_damage(9) == ""


def test_samples_find_messages_that_the_index_lacks(uow: UnitOfWork, session: Session) -> None:
    for number in range(1, 51):
        uow.turns.add(session, number, f"t{number}", TurnStatus.DONE, [Message(Role.USER, f"turn {number}")], 1.0)
    assert uow.search.find_damage(50) == "", "nothing is indexed yet"
    uow.search.index()
    assert uow.search.find_damage(50) == ""
    lost = 20 * MESSAGES_PER_TURN
    uow.search.remove(lost, lost + 1)
    assert uow.search.find_damage(50) == f"message {lost} is not in the search index"
    assert uow.search.find_damage(1) == "", "the newest message only"
