"""Sessions of Hermes as sessions of this program."""

from __future__ import annotations

import pytest
from tests.hermes_rows import session

from everthread.hermes_import.lineage import LinkedSession, Relation
from everthread.hermes_import.rows import SessionRow
from everthread.hermes_import.session_keys import key_of_member, key_of_route, routes_of


@pytest.mark.parametrize("name", ["expiry_finalized", "memory_flushed"])
@pytest.mark.parametrize("flag", [True, False])
def test_both_spellings_of_the_finalised_flag_are_understood(name: str, flag: bool) -> None:
    [route], _ = routes_of({"agent:main:telegram:dm:42": {"session_id": "s", name: flag}})
    assert route.finalised is flag


def test_the_newer_spelling_wins_over_the_older_one() -> None:
    entry = {"session_id": "s", "expiry_finalized": False, "memory_flushed": True}
    [route], _ = routes_of({"agent:main:telegram:dm:42": entry})
    assert not route.finalised


def test_invalid_entries_are_counted_and_comments_skipped() -> None:
    entries = {"_comment": "x", "agent:main:telegram:dm:1": "{broken", "agent:main:x": {"session_id": "s"}, "k": 7}
    routes, spoiled = routes_of(entries)
    assert (routes, spoiled) == ([], 3)


@pytest.mark.parametrize(
    ("key", "origin", "ours"),
    [
        ("agent:main:telegram:dm:42", {}, "agent:main:telegram:dm:42"),
        ("agent:main:telegram:dm:42:7", {"chat_id": "42", "thread_id": "7"}, "agent:main:telegram:dm:42:7"),
        (
            "agent:main:discord:group:9:5",
            {"chat_id": "9", "user_id": "5", "chat_type": "group"},
            "agent:main:discord:group:9::5",
        ),
        ("agent:main:discord:group:9", {"chat_id": "9", "user_id": "5"}, "agent:main:discord:group:9"),
        ("agent:main:slack:forum:9", {"chat_id": "9"}, "agent:main:slack:group:9"),
    ],
)
def test_a_hermes_key_becomes_a_session_key(key: str, origin: dict[str, str], ours: str) -> None:
    [route], _ = routes_of({key: {"session_id": "s", "origin": origin}})
    assert str(key_of_route(route, "main")) == ours


def test_a_session_without_a_known_key_gets_one() -> None:
    def place(row: SessionRow, relation: Relation = Relation.NONE) -> str:
        return str(key_of_member(LinkedSession(row, None, relation), None, "main"))

    assert place(session("s")) == "agent:main:cli:dm:hermes"
    assert place(session("s", source="telegram", user_id="42")) == "agent:main:telegram:dm:42"
    assert place(session("s", source="telegram")) == "agent:main:telegram:dm:hermes"
    assert place(session("s", source="cron")) == "agent:main:cron:dm:hermes"
    assert place(session("s"), Relation.DELEGATE) == "agent:main:subagent:dm:hermes-s"
    assert len(place(session("s", source="x" * 999, user_id=":" * 999))) <= 512
