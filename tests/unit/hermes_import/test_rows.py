"""What rows of Hermes's mean to us: messages, turns, places, guests."""

from __future__ import annotations

import json

import pytest
from tests.hermes_rows import START, Rows, session, translated, words

from everthread.domain.model import Role, TurnStatus
from everthread.hermes_import.allowlist import accounts_of
from everthread.hermes_import.convert import our_id
from everthread.hermes_import.lineage import LinkedSession, Relation
from everthread.hermes_import.rows import MessageRow, SessionRow, calls_of, line_of, text_of, time_of
from everthread.hermes_import.session_keys import key_of_member, key_of_route, routes_of
from everthread.hermes_import.turns import RUNNING_S, turns_of

# --- Messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "meant"),
    [
        ("plain", "plain"),
        (
            '\0json:[{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "x"}}]',
            "Look\n[image]",
        ),
        ('\0json:{"type": "text", "text": "one"}', "one"),
        ('\0json:["a", 7, {"type": "input_audio"}, {"odd": 1}]', 'a\n7\n[audio]\n{"odd": 1}'),
        ("\0json:[not json", "json:[not json"),
        ('\0json:"' + "[" * 100_000, 'json:"' + "[" * 100_000),
        ("half \ud800 character", "half ? character"),
    ],
)
def test_content_is_decoded_and_what_cannot_be_is_kept(stored: str, meant: str) -> None:
    assert text_of(stored) == meant


def test_tool_calls_are_read_in_every_shape_and_kept_as_text_in_no_shape() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    flat = {"call_id": "c2", "name": "look", "arguments": {"a": 2}}
    found = calls_of(json.dumps([call, flat, 7, {"function": {}}]))
    assert [(each.id, each.name, each.arguments) for each in found] == [
        ("c1", "look", '{"a": 1}'),
        ("c2", "look", '{"a": 2}'),
    ]
    assert calls_of(json.dumps(json.dumps([call])))[0].id == "c1"
    line = line_of(MessageRow(1, "assistant", "Hm.", START, tool_calls="{broken"))
    assert (line.tool_calls, line.content) == ((), "Hm.\n{broken")


def test_a_tools_answer_says_which_call_it_answers_and_an_answer_what_was_thought() -> None:
    answer = line_of(MessageRow(1, "tool", "42", START, tool_call_id="c1", tool_name="look"))
    assert (answer.role, answer.tool_call_id, answer.name) == (Role.TOOL, "c1", "look")
    thought = line_of(MessageRow(2, "assistant", "It is 42.", START, reasoning="I looked."))
    assert thought.reasoning == "I looked."


@pytest.mark.parametrize("value", ["soon", None, float("nan"), float("inf"), -1.0, 1e300])
def test_a_time_that_is_none_becomes_another(value: object) -> None:
    assert time_of(value, 5.0) == 5.0


# --- Turns -----------------------------------------------------------------------------------------------------------


def test_a_turn_is_what_was_said_and_all_up_to_the_answer() -> None:
    rows = Rows().say("user", "a").say("assistant", "", tool_calls="[]x").say("tool", "r").say("assistant", "b")
    rows.say("user", "c").say("user", "d").say("assistant", "e").say("assistant", "by the way")
    found = list(turns_of(rows.rows))
    assert [[row.content for row in turn.rows] for turn in found] == [
        ["a", "", "r", "b"],
        ["c"],
        ["d", "e"],
        ["by the way"],
    ]
    assert [turn.status for turn in found] == [
        TurnStatus.DONE,
        TurnStatus.INTERRUPTED,
        TurnStatus.DONE,
        TurnStatus.DONE,
    ]


def test_what_was_only_overheard_is_set_aside() -> None:
    [turn] = turns_of(Rows().say("user", "psst", observed=True).rows)
    assert turn.status is TurnStatus.SET_ASIDE


def test_a_question_that_hermes_may_be_answering_waits_for_the_next_import() -> None:
    rows = Rows().talk("a").say("user", "b").rows
    arriving, translator = translated((session("s"), rows), now=START + 10)
    assert (words(arriving["s"]), translator.unfinished) == (["a"], 1)
    late, _ = translated((session("s"), rows), now=START + RUNNING_S + 10)
    assert words(late["s"]) == ["a", "b"]
    ended, _ = translated((session("s", ended_at=START + 9), rows), now=START + 10)
    assert words(ended["s"]) == ["a", "b"]


def test_a_turn_that_has_grown_is_not_taken_for_the_one_it_was() -> None:
    rows = Rows().say("user", "a").rows
    before, _ = translated((session("s"), rows))
    after, _ = translated((session("s"), [*rows, Rows().talk("x").rows[1]]))
    assert before["s"].turns[0].id != after["s"].turns[0].id


# --- Places, guests, names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["expiry_finalized", "memory_flushed"])
@pytest.mark.parametrize("flag", [True, False])
def test_both_spellings_of_the_finalised_flag_are_understood(name: str, flag: bool) -> None:
    [route], _ = routes_of({"agent:main:telegram:dm:42": {"session_id": "s", name: flag}})
    assert route.finalised is flag


def test_the_newer_spelling_counts_where_both_are_there() -> None:
    entry = {"session_id": "s", "expiry_finalized": False, "memory_flushed": True}
    [route], _ = routes_of({"agent:main:telegram:dm:42": entry})
    assert not route.finalised


def test_entries_that_mean_nothing_are_counted_and_remarks_passed_over() -> None:
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
def test_a_key_of_hermes_is_a_key_of_ours(key: str, origin: dict[str, str], ours: str) -> None:
    [route], _ = routes_of({key: {"session_id": "s", "origin": origin}})
    assert str(key_of_route(route, "main")) == ours


def test_a_session_whose_place_is_not_known_has_one_all_the_same() -> None:
    def place(row: SessionRow, tie: Relation = Relation.NONE) -> str:
        return str(key_of_member(LinkedSession(row, None, tie), None, "main"))

    assert place(session("s")) == "agent:main:cli:dm:hermes"
    assert place(session("s", source="telegram", user_id="42")) == "agent:main:telegram:dm:42"
    assert place(session("s", source="telegram")) == "agent:main:telegram:dm:hermes"
    assert place(session("s", source="cron")) == "agent:main:cron:dm:hermes"
    assert place(session("s"), Relation.DELEGATE) == "agent:main:subagent:dm:hermes-s"
    assert len(place(session("s", source="x" * 999, user_id=":" * 999))) <= 512


def test_whom_hermes_lets_in_is_let_in_and_everybody_is_not() -> None:
    variables = {
        "TELEGRAM_ALLOWED_USERS": "1, 2,,*",
        "QQ_ALLOWED_USERS": "3",
        "QQ_GROUP_ALLOWED_USERS": "9",
        "DISCORD_ALLOW_ALL_USERS": "true",
        "SLACK_ALLOW_ALL_USERS": "false",
        "GATEWAY_ALLOWED_USERS": "7",
    }
    approved = {"telegram": {"2": {"user_name": "Ann  B", "approved_at": 5.0}}, "../x": {"1": {}}, "matrix": {"": {}}}
    accounts, left = accounts_of(variables, approved)
    assert sorted((each.platform, each.user, each.name) for each in accounts) == [
        ("qqbot", "3", ""),
        ("telegram", "1", ""),
        ("telegram", "2", "Ann B"),
    ]
    assert [each.what for each in left] == [
        "TELEGRAM_ALLOWED_USERS=*",
        "QQ_GROUP_ALLOWED_USERS",
        "DISCORD_ALLOW_ALL_USERS",
        "GATEWAY_ALLOWED_USERS",
        "accounts",
    ]


def test_an_id_that_cannot_be_one_of_ours_is_always_the_same_other() -> None:
    assert our_id("20250101_000000_abcdef") == "20250101_000000_abcdef"
    assert our_id("a b:c") == our_id("a b:c") != our_id("a b:d")
    assert our_id("a b:c").startswith("hermes-")
    assert len(our_id("x" * 999, 3)) < 300
