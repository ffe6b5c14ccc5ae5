"""`everthread import hermes`: chat bindings, owners and damaged data."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli.commands.import_.test_hermes import bound, exported, said, taken
from tests.e2e.commands import everthread, printed, problems
from tests.hermes_home import START, HermesHome
from tests.runtime import CoreFixture

from everthread.domain.boundary import Boundary, Expire, New, Resume
from everthread.domain.model import SessionKey
from everthread.domain.reset_policy import ResetPolicy

pytestmark = pytest.mark.timeout(60)


CHAT = "agent:main:telegram:dm:42"


@pytest.fixture
def core(tmp_path: Path) -> Iterator[HermesHome]:
    with HermesHome(tmp_path / "hermes") as made:
        yield made


def in_telegram(core: HermesHome, session_id: str, *, at: float = START) -> None:
    core.session(session_id, at=at, source="telegram", user_id="42")
    core.talk(session_id, [f"hello {session_id}"], at=at + 1)


def crossed(home: Path, boundary: Boundary) -> None:
    async def cross() -> None:
        async with CoreFixture(home) as here:
            done = await here.cross(SessionKey.parse(CHAT), boundary, owner="telegram:42")
            assert done.refusal is None

    asyncio.run(cross())


def left(report: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {each["what"]: each["why"] for each in report["not_taken"]}


# --- Chats changed since the first import -----------------------------------------------------------------------------


def test_a_second_import_keeps_a_chat_that_moved_to_another_session(tmp_path: Path, core: HermesHome) -> None:
    home = tmp_path / "home"
    in_telegram(core, "first")
    in_telegram(core, "second", at=START + 50)
    core.route(CHAT, "second")
    assert taken(home, core)["places"] == {CHAT: "second"}
    crossed(home, Resume("first"))
    again = taken(home, core)
    assert (again["places"], bound(home)) == ({}, {CHAT: "first"})
    assert left(again)[CHAT] == "is bound to another session here"


def test_a_second_import_keeps_a_chat_whose_session_ended(tmp_path: Path, core: HermesHome) -> None:
    home = tmp_path / "home"
    in_telegram(core, "first")
    core.route(CHAT, "first")
    assert taken(home, core)["places"] == {CHAT: "first"}
    crossed(home, Expire(ResetPolicy(idle_s=1.0), START + 10**9))
    assert (taken(home, core)["places"], bound(home)) == ({}, {})


def test_a_chat_unchanged_here_follows_the_newer_session_of_hermes(tmp_path: Path, core: HermesHome) -> None:
    home = tmp_path / "home"
    in_telegram(core, "first")
    core.route(CHAT, "first")
    taken(home, core)
    in_telegram(core, "second", at=START + 50)
    core.database.execute("DELETE FROM gateway_routing")
    core.route(CHAT, "second")
    assert taken(home, core)["places"] == {CHAT: "second"}
    crossed(home, New())
    in_telegram(core, "third", at=START + 90)
    core.database.execute("DELETE FROM gateway_routing")
    core.route(CHAT, "third")
    assert left(taken(home, core))[CHAT] == "is bound to another session here"


def test_a_forgotten_session_of_a_chat_does_not_stop_the_import(tmp_path: Path, core: HermesHome) -> None:
    home = tmp_path / "home"
    in_telegram(core, "first")
    core.route(CHAT, "first")
    taken(home, core)
    assert everthread(home, "forget", "first", "--yes").returncode == 0
    in_telegram(core, "second", at=START + 50)
    again = taken(home, core)
    assert (again["sessions"], again["places"]) == (1, {})
    assert left(again)[CHAT] == "its session was forgotten here"
    assert problems(home) == []


def test_the_newer_of_two_entries_for_a_chat_wins(tmp_path: Path, core: HermesHome) -> None:
    in_telegram(core, "new", at=START + 50)
    in_telegram(core, "old")
    origin = {"platform": "telegram", "chat_type": "dm", "chat_id": "42"}
    core.route("agent:main:telegram:dm:42", "new", origin=origin, updated_at="2026-01-02T00:00:00")
    core.route("agent:main:Telegram:dm:42", "old", origin=origin, updated_at="2026-01-01T00:00:00")
    assert taken(tmp_path / "home", core)["places"] == {CHAT: "new"}


def test_the_routing_table_precedes_the_file_unless_unreadable(tmp_path: Path, core: HermesHome) -> None:
    for number in range(3):
        core.session(f"new{number}", source="telegram", user_id=str(number))
        core.session(f"old{number}", source="telegram", user_id=str(number))
    chats = [f"agent:main:telegram:dm:{number}" for number in range(3)]
    core.route(chats[0], "new0", updated_at="2026-01-01T00:00:00")
    core.route(chats[1], "new1")
    core.database.execute("UPDATE gateway_routing SET entry_json = '{\"sess' WHERE session_key = ?", (chats[1],))
    told = {chat: {"session_id": f"old{number}", "platform": "telegram"} for number, chat in enumerate(chats)}
    core.put_json("sessions/sessions.json", {"_README": "a mirror", **told, "agent:main:telegram:dm:3": True})
    report = taken(tmp_path / "home", core)
    assert report["places"] == {chats[0]: "new0", chats[1]: "old1", chats[2]: "old2"}
    [spoiled] = [each for each in report["not_taken"] if each["what"] == "routing entries"]
    assert spoiled["count"] == 1


def test_an_unreadable_import_history_stops_the_import(tmp_path: Path, core: HermesHome) -> None:
    home = tmp_path / "home"
    core.put(".env", "TELEGRAM_ALLOWED_USERS=42\n")
    assert taken(home, core)["guests"] == ["telegram:42"]
    assert everthread(home, "pairing", "revoke", "telegram:42").returncode == 0
    (home / "hermes-import.json").write_text('{"accounts": ["tele')
    done = everthread(home, "import", "hermes", str(core.path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "hermes-import.json" in done.stderr
    assert printed(home, "pairing", "list")["guests"] == []


def test_a_chat_of_another_owner_is_kept_and_reported(tmp_path: Path, core: HermesHome) -> None:
    home = tmp_path / "home"
    in_telegram(core, "first")
    core.route(CHAT, "first")
    assert taken(home, core, "--as-mine")["places"] == {CHAT: "first"}
    in_telegram(core, "second", at=START + 50)
    core.database.execute("DELETE FROM gateway_routing")
    core.route(CHAT, "second")
    again = taken(home, core)
    assert (again["sessions"], again["places"], bound(home)) == (1, {}, {CHAT: "first"})
    assert left(again)[CHAT] == "belongs to me here, but its session belongs to telegram:42"


# --- Owners -----------------------------------------------------------------------------------------------------------


def test_an_invalid_account_name_gets_an_owner_of_its_own(tmp_path: Path, core: HermesHome) -> None:
    home, long = tmp_path / "home", "9" * 125
    core.put_json("pairing/telegram-approved.json", {long: {}, "bob ": {}})
    for number, user in enumerate((long, "bob ", "e" * 400, "\u200b")):
        core.session(f"s{number}", at=START + number, source="telegram", user_id=user)
        core.talk(f"s{number}", ["hello"])
    taken(home, core)
    guests = {guest["account"]: guest["owner"] for guest in printed(home, "pairing", "list")["guests"]}
    assert guests == {f"telegram:{long}": f"telegram:{long}", "telegram:bob ": "telegram:bob "}
    owners = [line["owner"] for line in exported(home)["session"]]
    assert len(set(owners)) == 4
    assert "me" not in owners


def test_members_of_a_group_keep_their_own_sessions(tmp_path: Path, core: HermesHome) -> None:
    for user in ("7", "8"):
        key = f"agent:main:telegram:group:-100:{user}"
        core.session(f"g{user}", source="telegram", user_id=user)
        core.talk(f"g{user}", [f"hello {user}"])
        core.route(key, f"g{user}")
    core.session("topic", source="telegram", user_id="7")
    core.route("agent:main:telegram:thread:-100:5", "topic")
    core.session("chat", source="telegram", user_id="5")
    core.route("agent:main:telegram:dm:5", "chat")
    core.session("aside", source="telegram", user_id="5")
    core.route("agent:main:telegram:dm:5:99", "aside")
    assert taken(tmp_path / "home", core)["places"] == {
        "agent:main:telegram:group:-100::7": "g7",
        "agent:main:telegram:group:-100::8": "g8",
        "agent:main:telegram:thread:-100:5": "topic",
        "agent:main:telegram:dm:5": "chat",
        "agent:main:telegram:dm:5:99": "aside",
    }
    owners = {line["id"]: line["owner"] for line in exported(tmp_path / "home")["session"]}
    assert (owners["g7"], owners["g8"]) == ("telegram:7", "telegram:8")


# --- Damaged data -----------------------------------------------------------------------------------------------------


def test_a_title_or_version_of_the_wrong_type_does_not_stop_the_import(tmp_path: Path, core: HermesHome) -> None:
    home = tmp_path / "home"
    core.session("s", title="x", end_reason="x")
    core.talk("s", ["hello"])
    core.database.execute("UPDATE sessions SET title = CAST(x'ff41' AS TEXT), end_reason = CAST(x'fe' AS TEXT)")
    core.database.execute("UPDATE schema_version SET version = 'newest'")
    report = taken(home, core)
    assert (report["sessions"], report["schema"]) == (1, 0)
    assert said(home, "s") == ["hello"]


def test_a_damaged_row_does_not_stop_the_import_of_others(tmp_path: Path, core: HermesHome) -> None:
    for name in ("good", "bad"):
        core.session(name, source="telegram", user_id="42")
        core.talk(name, [f"hello {name}"])
    spoiled = ", ".join(f"{column} = CAST(x'ff41' AS TEXT)" for column in ("user_id", "chat_id", "session_key"))
    core.database.execute(f"UPDATE sessions SET {spoiled}, started_at = 'long ago' WHERE id = 'bad'")
    core.database.execute("UPDATE messages SET timestamp = x'00', finish_reason = x'fe' WHERE session_id = 'bad'")
    core.route(CHAT, "good")
    core.route("agent:main:telegram:dm:7", "bad")
    core.database.execute(
        "UPDATE gateway_routing SET entry_json = CAST(x'7bff' AS TEXT) WHERE session_key != ?", (CHAT,)
    )
    report = taken(tmp_path / "home", core)
    assert (report["sessions"], report["places"]) == (2, {CHAT: "good"})
    assert said(tmp_path / "home", "good") == ["hello good"]
    assert said(tmp_path / "home", "bad") == ["hello bad"]
    owners = {line["id"]: line["owner"] for line in exported(tmp_path / "home")["session"]}
    assert owners["good"] == "telegram:42"
    assert owners["bad"] not in ("me", "telegram:42")


def test_equal_titles_stay_distinct_and_unknown_roles_are_counted(tmp_path: Path, core: HermesHome) -> None:
    for number, title in enumerate(("Boat", "boat", "Boat")):
        core.session(f"s{number}", at=START + number, title=title)
        core.talk(f"s{number}", ["hello"])
        core.say(f"s{number}", "oracle", "beware")
    report = taken(tmp_path / "home", core)
    assert report["sessions"] == 3
    titles = [line["title"] for line in exported(tmp_path / "home")["session"]]
    assert len({title.casefold() for title in titles}) == 3
    assert all(title.casefold().startswith("boat") for title in titles)
    assert {"what": "messages of the role 'oracle'", "why": "have an unknown role", "count": 3} in report["not_taken"]
    assert taken(tmp_path / "home", core)["same"] == 3


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_database_that_is_not_a_file_is_refused_at_once(tmp_path: Path, make: object) -> None:
    home = tmp_path / "hermes"
    home.mkdir()
    assert callable(make)
    make(home / "state.db")
    done = everthread(tmp_path / "home", "import", "hermes", str(home))
    assert (done.returncode, done.stdout) == (2, "")
    assert "state.db: not a file" in done.stderr
