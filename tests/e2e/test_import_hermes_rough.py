"""`everthread import hermes` where things have moved on here, or are not as Hermes writes them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.commands import everthread, printed, problems
from tests.e2e.test_import_hermes import bound, exported, said, taken
from tests.hermes_home import START, HermesHouse
from tests.runtime import House

from everthread.domain.boundary import Boundary, Expire, New, Resume
from everthread.domain.model import SessionKey
from everthread.domain.reset_policy import ResetPolicy

pytestmark = pytest.mark.timeout(60)

CHAT = "agent:main:telegram:dm:42"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[HermesHouse]:
    with HermesHouse(tmp_path / "hermes") as made:
        yield made


def in_telegram(house: HermesHouse, session_id: str, *, at: float = START) -> None:
    house.session(session_id, at=at, source="telegram", user_id="42")
    house.talk(session_id, [f"hello {session_id}"], at=at + 1)


def crossed(home: Path, boundary: Boundary) -> None:
    async def cross() -> None:
        async with House(home) as here:
            done = await here.cross(SessionKey.parse(CHAT), boundary, owner="telegram:42")
            assert done.refusal is None

    asyncio.run(cross())


def left(report: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {each["what"]: each["why"] for each in report["not_taken"]}


# --- Where things have moved on ---------------------------------------------------------------------------------------


def test_who_goes_on_with_another_conversation_here_is_left_there_by_a_second_import(
    tmp_path: Path, house: HermesHouse
) -> None:
    home = tmp_path / "home"
    in_telegram(house, "first")
    in_telegram(house, "second", at=START + 50)
    house.route(CHAT, "second")
    assert taken(home, house)["places"] == {CHAT: "second"}
    crossed(home, Resume("first"))
    again = taken(home, house)
    assert (again["places"], bound(home)) == ({}, {CHAT: "first"})
    assert left(again)[CHAT] == "is bound to another session here"


def test_a_chat_whose_conversation_has_ended_here_is_not_put_back_by_a_second_import(
    tmp_path: Path, house: HermesHouse
) -> None:
    home = tmp_path / "home"
    in_telegram(house, "first")
    house.route(CHAT, "first")
    assert taken(home, house)["places"] == {CHAT: "first"}
    crossed(home, Expire(ResetPolicy(idle_s=1.0), START + 10**9))
    assert (taken(home, house)["places"], bound(home)) == ({}, {})


def test_a_chat_that_was_left_here_goes_on_where_hermes_has_gone_on_since(tmp_path: Path, house: HermesHouse) -> None:
    home = tmp_path / "home"
    in_telegram(house, "first")
    house.route(CHAT, "first")
    taken(home, house)
    in_telegram(house, "second", at=START + 50)
    house.database.execute("DELETE FROM gateway_routing")
    house.route(CHAT, "second")
    assert taken(home, house)["places"] == {CHAT: "second"}
    crossed(home, New())
    in_telegram(house, "third", at=START + 90)
    house.database.execute("DELETE FROM gateway_routing")
    house.route(CHAT, "third")
    assert left(taken(home, house))[CHAT] == "is bound to another session here"


def test_a_chat_whose_conversation_was_forgotten_here_does_not_end_the_import(
    tmp_path: Path, house: HermesHouse
) -> None:
    home = tmp_path / "home"
    in_telegram(house, "first")
    house.route(CHAT, "first")
    taken(home, house)
    assert everthread(home, "forget", "first", "--yes").returncode == 0
    in_telegram(house, "second", at=START + 50)
    again = taken(home, house)
    assert (again["sessions"], again["places"]) == (1, {})
    assert left(again)[CHAT] == "its session was forgotten here"
    assert problems(home) == []


def test_the_newest_of_two_entries_for_one_chat_counts(tmp_path: Path, house: HermesHouse) -> None:
    in_telegram(house, "new", at=START + 50)
    in_telegram(house, "old")
    origin = {"platform": "telegram", "chat_type": "dm", "chat_id": "42"}
    house.route("agent:main:telegram:dm:42", "new", origin=origin, updated_at="2026-01-02T00:00:00")
    house.route("agent:main:Telegram:dm:42", "old", origin=origin, updated_at="2026-01-01T00:00:00")
    assert taken(tmp_path / "home", house)["places"] == {CHAT: "new"}


def test_the_table_goes_before_the_file_unless_it_cannot_be_understood(tmp_path: Path, house: HermesHouse) -> None:
    for number in range(3):
        house.session(f"new{number}", source="telegram", user_id=str(number))
        house.session(f"old{number}", source="telegram", user_id=str(number))
    chats = [f"agent:main:telegram:dm:{number}" for number in range(3)]
    house.route(chats[0], "new0", updated_at="2026-01-01T00:00:00")
    house.route(chats[1], "new1")
    house.database.execute("UPDATE gateway_routing SET entry_json = '{\"sess' WHERE session_key = ?", (chats[1],))
    told = {chat: {"session_id": f"old{number}", "platform": "telegram"} for number, chat in enumerate(chats)}
    house.put_json("sessions/sessions.json", {"_README": "a mirror", **told, "agent:main:telegram:dm:3": True})
    report = taken(tmp_path / "home", house)
    assert report["places"] == {chats[0]: "new0", chats[1]: "old1", chats[2]: "old2"}
    [spoiled] = [each for each in report["not_taken"] if each["what"] == "routing entries"]
    assert spoiled["count"] == 1


def test_what_earlier_imports_brought_must_be_known(tmp_path: Path, house: HermesHouse) -> None:
    home = tmp_path / "home"
    house.put(".env", "TELEGRAM_ALLOWED_USERS=42\n")
    assert taken(home, house)["guests"] == ["telegram:42"]
    assert everthread(home, "pairing", "revoke", "telegram:42").returncode == 0
    (home / "hermes-import.json").write_text('{"accounts": ["tele')
    done = everthread(home, "import", "hermes", str(house.path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "hermes-import.json" in done.stderr
    assert printed(home, "pairing", "list")["guests"] == []


def test_a_chat_that_is_anothers_here_is_left_as_it_is_and_told(tmp_path: Path, house: HermesHouse) -> None:
    home = tmp_path / "home"
    in_telegram(house, "first")
    house.route(CHAT, "first")
    assert taken(home, house, "--as-mine")["places"] == {CHAT: "first"}
    in_telegram(house, "second", at=START + 50)
    house.database.execute("DELETE FROM gateway_routing")
    house.route(CHAT, "second")
    again = taken(home, house)
    assert (again["sessions"], again["places"], bound(home)) == (1, {}, {CHAT: "first"})
    assert left(again)[CHAT] == "belongs to me here, but its session belongs to telegram:42"


# --- Whose it is ------------------------------------------------------------------------------------------------------


def test_an_account_that_is_no_name_is_nobody_else_least_of_all_the_owner(tmp_path: Path, house: HermesHouse) -> None:
    home, long = tmp_path / "home", "9" * 125
    house.put_json("pairing/telegram-approved.json", {long: {}, "bob ": {}})
    for number, user in enumerate((long, "bob ", "e" * 400, "\u200b")):
        house.session(f"s{number}", at=START + number, source="telegram", user_id=user)
        house.talk(f"s{number}", ["hello"])
    taken(home, house)
    guests = {guest["account"]: guest["owner"] for guest in printed(home, "pairing", "list")["guests"]}
    assert guests == {f"telegram:{long}": f"telegram:{long}", "telegram:bob ": "telegram:bob "}
    owners = [line["owner"] for line in exported(home)["session"]]
    assert len(set(owners)) == 4
    assert "me" not in owners


def test_each_in_a_group_keeps_their_own_conversation_though_only_the_key_tells(
    tmp_path: Path, house: HermesHouse
) -> None:
    for user in ("7", "8"):
        key = f"agent:main:telegram:group:-100:{user}"
        house.session(f"g{user}", source="telegram", user_id=user)
        house.talk(f"g{user}", [f"hello {user}"])
        house.route(key, f"g{user}")
    house.session("topic", source="telegram", user_id="7")
    house.route("agent:main:telegram:thread:-100:5", "topic")
    house.session("chat", source="telegram", user_id="5")
    house.route("agent:main:telegram:dm:5", "chat")
    house.session("aside", source="telegram", user_id="5")
    house.route("agent:main:telegram:dm:5:99", "aside")
    assert taken(tmp_path / "home", house)["places"] == {
        "agent:main:telegram:group:-100::7": "g7",
        "agent:main:telegram:group:-100::8": "g8",
        "agent:main:telegram:thread:-100:5": "topic",
        "agent:main:telegram:dm:5": "chat",
        "agent:main:telegram:dm:5:99": "aside",
    }
    owners = {line["id"]: line["owner"] for line in exported(tmp_path / "home")["session"]}
    assert (owners["g7"], owners["g8"]) == ("telegram:7", "telegram:8")


# --- What Hermes does not write ---------------------------------------------------------------------------------------


def test_a_title_that_is_no_text_and_a_version_that_is_no_number_keep_nothing_from_coming(
    tmp_path: Path, house: HermesHouse
) -> None:
    home = tmp_path / "home"
    house.session("s", title="x", end_reason="x")
    house.talk("s", ["hello"])
    house.database.execute("UPDATE sessions SET title = CAST(x'ff41' AS TEXT), end_reason = CAST(x'fe' AS TEXT)")
    house.database.execute("UPDATE schema_version SET version = 'newest'")
    report = taken(home, house)
    assert (report["sessions"], report["schema"]) == (1, 0)
    assert said(home, "s") == ["hello"]


def test_a_row_that_is_damaged_keeps_no_other_from_coming(tmp_path: Path, house: HermesHouse) -> None:
    for name in ("good", "bad"):
        house.session(name, source="telegram", user_id="42")
        house.talk(name, [f"hello {name}"])
    spoiled = ", ".join(f"{column} = CAST(x'ff41' AS TEXT)" for column in ("user_id", "chat_id", "session_key"))
    house.database.execute(f"UPDATE sessions SET {spoiled}, started_at = 'long ago' WHERE id = 'bad'")
    house.database.execute("UPDATE messages SET timestamp = x'00', finish_reason = x'fe' WHERE session_id = 'bad'")
    house.route(CHAT, "good")
    house.route("agent:main:telegram:dm:7", "bad")
    house.database.execute(
        "UPDATE gateway_routing SET entry_json = CAST(x'7bff' AS TEXT) WHERE session_key != ?", (CHAT,)
    )
    report = taken(tmp_path / "home", house)
    assert (report["sessions"], report["places"]) == (2, {CHAT: "good"})
    assert said(tmp_path / "home", "good") == ["hello good"]
    assert said(tmp_path / "home", "bad") == ["hello bad"]
    owners = {line["id"]: line["owner"] for line in exported(tmp_path / "home")["session"]}
    assert owners["good"] == "telegram:42"
    assert owners["bad"] not in ("me", "telegram:42")


def test_titles_that_are_alike_stay_apart_and_roles_that_mean_nothing_are_counted(
    tmp_path: Path, house: HermesHouse
) -> None:
    for number, title in enumerate(("Boat", "boat", "Boat")):
        house.session(f"s{number}", at=START + number, title=title)
        house.talk(f"s{number}", ["hello"])
        house.say(f"s{number}", "oracle", "beware")
    report = taken(tmp_path / "home", house)
    assert report["sessions"] == 3
    titles = [line["title"] for line in exported(tmp_path / "home")["session"]]
    assert len({title.casefold() for title in titles}) == 3
    assert all(title.casefold().startswith("boat") for title in titles)
    assert {"what": "messages of the role 'oracle'", "why": "have an unknown role", "count": 3} in report["not_taken"]
    assert taken(tmp_path / "home", house)["same"] == 3


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_database_that_is_no_file_is_refused_at_once(tmp_path: Path, make: object) -> None:
    home = tmp_path / "hermes"
    home.mkdir()
    assert callable(make)
    make(home / "state.db")
    done = everthread(tmp_path / "home", "import", "hermes", str(home))
    assert (done.returncode, done.stdout) == (2, "")
    assert "state.db: is no file" in done.stderr
