"""`everthread import hermes`: a complete import, repeated imports, dry runs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.commands import everthread, printed, problems, refused
from tests.hermes_home import START, HermesHome

# Each test starts many processes.
pytestmark = pytest.mark.timeout(60)


SUMMARY = "[CONTEXT COMPACTION — REFERENCE ONLY] Earlier: they like mangoes."


SKILL = "---\nname: tea\ndescription: How tea is made.\n---\n\nBoil water.\n"


@pytest.fixture
def core(tmp_path: Path) -> Iterator[HermesHome]:
    with HermesHome(tmp_path / "hermes") as made:
        yield made


def taken(home: Path, core: HermesHome, *more: str) -> Any:
    return printed(home, "import", "hermes", str(core.path), *more)


def look(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def exported(home: Path) -> dict[str, list[dict[str, Any]]]:
    """Export the home and return the lines grouped by type."""
    done = everthread(home, "sessions", "export", "--all", "--notes")
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for line in map(json.loads, done.stdout.splitlines()):
        found.setdefault(line["type"], []).append(line)
    return found


def said(home: Path, session_id: str) -> list[str]:
    """Return the user messages of a session as `sessions show` prints them."""
    shown = printed(home, "sessions", "show", session_id)
    return [
        message["content"] for turn in shown["transcript"] for message in turn["messages"] if message["role"] == "user"
    ]


def odd(core: HermesHome) -> None:
    """Fill the Hermes home with sessions of every kind, including damaged ones."""
    core.session("20250101_000000_aaaaaa", title="Fruit", ended_at=START + 100, end_reason="branched")
    core.talk("20250101_000000_aaaaaa", ["a", "b"])
    core.session(
        "20250101_000001_bbbbbb",
        at=START + 100,
        parent_session_id="20250101_000000_aaaaaa",
        model_config={"_branched_from": "20250101_000000_aaaaaa"},
        title="Fruit #2",
    )
    core.talk("20250101_000001_bbbbbb", ["a", "b", "c"], at=START + 101, active=0, compacted=1)
    core.say("20250101_000001_bbbbbb", "user", "a", at=START + 200)
    core.say("20250101_000001_bbbbbb", "assistant", SUMMARY, at=START + 200)
    core.talk("20250101_000001_bbbbbb", ["c", "d"], at=START + 200)
    call = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    core.session("tools", at=START + 300)
    core.say("tools", "user", '\0json:[{"type": "text", "text": "Look!"}, {"type": "image_url"}]')
    core.say("tools", "assistant", None, tool_calls=json.dumps(call), reasoning_content="I should look.")
    core.say("tools", "tool", "seen", tool_call_id="c1", tool_name="look")
    core.say("tools", "session_meta", "{}")
    core.say("tools", "assistant", b"I saw \xff it.")
    core.session(
        "helper", at=START + 301, parent_session_id="tools", model_config={"_delegate_from": "tools"}, source="cli"
    )
    core.talk("helper", ["Do it."])
    core.session("orphan", at=START + 302, parent_session_id="gone")
    core.session("one", at=START + 303, parent_session_id="two")
    core.session("two", at=START + 304, parent_session_id="one")
    core.session("nothing: said", at=START + 305, title="\u200b", model_config="{broken")
    core.say("nobody", "user", "lost")


def test_everything_is_imported_and_a_second_import_adds_nothing(tmp_path: Path, core: HermesHome) -> None:
    odd(core)
    home = tmp_path / "home"
    before = look(core.path)
    first = taken(home, core)
    assert (first["sessions"], first["schema"], first["left_out"]) == (9, 22, {})
    left = {each["what"]: each["count"] for each in first["not_taken"]}
    assert left == {
        "the parent of orphan": 1,
        "the parent of one": 1,
        "messages of the role 'session_meta'": 1,
        "messages": 1,
    }
    assert said(home, "20250101_000001_bbbbbb.2") == ["c", "d"]
    assert said(home, "20250101_000001_bbbbbb") == ["a", "b", "c"]
    found = exported(home)
    lines = {line["id"]: line for line in found["session"]}
    assert lines["20250101_000001_bbbbbb"]["base"] == {"turn": 2}
    assert "mangoes" in lines["20250101_000001_bbbbbb.2"]["summary"]
    assert lines["20250101_000001_bbbbbb.2"]["cause"] == "compression"
    assert (lines["helper"]["kind"], lines["helper"]["parent"]) == ("subagent", "tools")
    [turn] = [turn for turn in found["turn"] if turn["session"] == "tools"]
    asked, thinking, seen, answer = turn["messages"]
    assert asked["content"] == "Look!\n[image]"
    assert (thinking["tool_calls"][0]["name"], thinking["reasoning"]) == ("look", "I should look.")
    assert (seen["tool_call_id"], seen["name"]) == ("c1", "look")
    assert answer["content"] == "I saw \ufffd it."
    assert problems(home) == []

    again = taken(home, core)
    assert (again["sessions"], again["turns"], again["messages"], again["same"]) == (0, 0, 0, 9)
    assert exported(home)["turn"] == found["turn"]
    assert look(core.path) == before


def test_only_new_messages_of_a_known_session_are_added(tmp_path: Path, core: HermesHome) -> None:
    home = tmp_path / "home"
    core.session("s")
    core.talk("s", ["a", "b"])
    assert taken(home, core)["turns"] == 2
    core.database.execute("UPDATE messages SET active = 0 WHERE id > 2")
    core.talk("s", ["c"], at=START + 10)
    more = taken(home, core)
    assert (more["sessions"], more["turns"], more["messages"]) == (1, 1, 2)
    assert said(home, "s") == ["a", "c"]
    core.database.execute("UPDATE messages SET active = 0, compacted = 1 WHERE active = 1")
    core.say("s", "user", "a", at=START + 20)
    core.say("s", "assistant", SUMMARY, at=START + 20)
    core.talk("s", ["c", "d"], at=START + 21)
    third = taken(home, core)
    assert (third["sessions"], third["left_out"]) == (1, {})
    assert said(home, "s.2")[-1] == "d"
    assert problems(home) == []


def test_changed_earlier_messages_are_reported_and_not_imported(tmp_path: Path, core: HermesHome) -> None:
    home = tmp_path / "home"
    core.session("s")
    core.talk("s", ["a", "b"])
    taken(home, core)
    core.database.execute("DELETE FROM messages")
    core.talk("s", ["z", "y", "x"])
    assert "has other turns here" in taken(home, core)["left_out"]["s"]
    assert said(home, "s") == ["a", "b"]


@pytest.mark.parametrize("schema", [16, 22])
@pytest.mark.parametrize("flag", ["expiry_finalized", "memory_flushed"])
def test_chats_continue_their_session_unless_it_expired(tmp_path: Path, schema: int, flag: str) -> None:
    """S20: both spellings of the flag, in the file and in the table."""
    home = tmp_path / "home"
    with HermesHome(tmp_path / "hermes", schema) as core:
        for chat in ("42", "43"):
            core.session(f"s{chat}", source="telegram", user_id=chat)
            core.talk(f"s{chat}", ["hello"])
            core.route(f"agent:main:telegram:dm:{chat}", f"s{chat}", **{flag: chat == "43"})
        core.route("agent:main:telegram:dm:44", "gone")
        first = taken(home, core)
        assert first["places"] == {"agent:main:telegram:dm:42": "s42"}
        left = {each["what"]: each["why"] for each in first["not_taken"]}
        assert "expired" in left["agent:main:telegram:dm:43"]
        assert "not imported" in left["agent:main:telegram:dm:44"]
        assert {line["owner"] for line in exported(home)["session"]} == {"telegram:42", "telegram:43"}
        assert bound(home) == {"agent:main:telegram:dm:42": "s42"}

        core.talk("s42", ["more"], at=START + 10)
        second = taken(home, core)
        assert (second["turns"], second["left_out"], second["places"]) == (1, {}, {})
        assert said(home, "s42") == ["hello", "more"]

        core.session("s45", at=START + 20, source="telegram", user_id="42")
        core.talk("s45", ["anew"], at=START + 21)
        if core.new:
            core.database.execute("DELETE FROM gateway_routing")
        core.route("agent:main:telegram:dm:42", "s45")
        assert taken(home, core)["places"] == {"agent:main:telegram:dm:42": "s45"}
        assert bound(home) == {"agent:main:telegram:dm:42": "s45"}
        assert problems(home) == []


def bound(home: Path) -> dict[str, str]:
    database = sqlite3.connect(home / "everthread.db")
    try:
        rows = database.execute("SELECT key, session_id FROM bindings WHERE session_id IS NOT NULL")
        return {key: session for key, session in rows if "telegram" in key}
    finally:
        database.close()


def test_as_mine_assigns_everything_to_the_owner(tmp_path: Path, core: HermesHome) -> None:
    home = tmp_path / "home"
    core.session("s", source="telegram", user_id="42")
    core.talk("s", ["hello"])
    core.put(".env", "TELEGRAM_ALLOWED_USERS=42\n")
    taken(home, core, "--as-mine")
    assert [line["owner"] for line in exported(home)["session"]] == ["me"]
    assert [guest["owner"] for guest in printed(home, "pairing", "list")["guests"]] == ["me"]
    # A second import without the option keeps the owner.
    assert taken(home, core)["same"] == 1


def test_notes_skills_and_guests_removed_here_are_not_imported_again(tmp_path: Path, core: HermesHome) -> None:
    home = tmp_path / "home"
    core.put("memories/MEMORY.md", "The printer is on the second floor.\n§\nUse tabs.")
    core.put("memories/USER.md", "They like mangoes.")
    core.put("skills/kitchen/tea/SKILL.md", SKILL)
    core.put("skills/kitchen/tea/references/leaves.md", "Green.")
    core.put("skills/broken/SKILL.md", "no front matter")
    core.put("skills/bundled/SKILL.md", SKILL.replace("tea", "bundled"))
    core.put("skills/.bundled_manifest", "bundled:0123\n")
    (core.path / "skills/kitchen/tea/passwords").symlink_to("/etc/passwd")
    core.put(".env", "TELEGRAM_ALLOWED_USERS=42,43\nTELEGRAM_BOT_TOKEN=123:secret\nDISCORD_ALLOW_ALL_USERS=true\n")
    core.put_json("pairing/telegram-approved.json", {"44": {"user_name": "Ann", "approved_at": START}})
    first = taken(home, core)
    assert (first["notes"], first["skills"]) == (3, ["tea"])
    assert sorted(first["guests"]) == ["telegram:42", "telegram:43", "telegram:44"]
    left = {each["what"]: each["why"] for each in first["not_taken"]}
    assert "---" in left["skill broken"]
    assert "bundled with Hermes" in left["skills"]
    assert "everybody" in left["DISCORD_ALLOW_ALL_USERS"]
    assert "files of skill tea" in left
    assert (home / "memory/USER.md").read_text() == "They like mangoes.\n"
    assert (home / "skills/tea/references/leaves.md").read_text() == "Green."
    assert not (home / "skills/tea/passwords").exists()
    notes = printed(home, "memory", "list")
    assert all(note["id"].startswith("hermes-") for note in (*notes["memory"]["notes"], *notes["user"]["notes"]))
    assert "secret" not in json.dumps(first)
    assert all(b"123:secret" not in file.read_bytes() for file in home.rglob("*") if file.is_file())

    (home / "memory/USER.md").write_text("They like plums.\n")
    assert everthread(home, "pairing", "revoke", "telegram:43").returncode == 0
    for file in sorted((home / "skills/tea").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    (home / "skills/tea").rmdir()
    assert everthread(home, "memory", "list").returncode == 0
    again = taken(home, core)
    assert (again["notes"], again["skills"], again["guests"]) == (0, [], [])
    assert (home / "memory/USER.md").read_text() == "They like plums.\n"
    core.put("memories/USER.md", "They like mangoes.\n§\nThey have a cat.")
    assert taken(home, core)["notes"] == 1


def test_forgotten_data_stays_forgotten(tmp_path: Path, core: HermesHome) -> None:
    home = tmp_path / "home"
    core.session("s")
    core.talk("s", ["a"])
    taken(home, core)
    assert everthread(home, "forget", "s", "--yes").returncode == 0
    core.talk("s", ["b"], at=START + 9)
    assert "forgotten" in taken(home, core)["left_out"]["s"]


def test_a_dry_run_prints_the_same_and_changes_nothing(tmp_path: Path, core: HermesHome) -> None:
    odd(core)
    core.put("memories/MEMORY.md", "Use tabs.")
    home = tmp_path / "home"
    told = taken(home, core, "--dry-run")
    assert told["dry_run"]
    assert not home.exists() or not any(home.iterdir())
    done = taken(home, core)
    assert told | {"dry_run": False} == done
    nothing = taken(home, core, "--dry-run")
    assert (nothing["sessions"], nothing["same"], nothing["notes"]) == (0, 9, 0)


def test_the_result_is_printed_as_text(tmp_path: Path, core: HermesHome) -> None:
    odd(core)
    done = everthread(tmp_path / "home", "import", "hermes", str(core.path))
    assert done.returncode == 0, done.stderr
    assert "Imported 14 messages in 6 turns of 9 sessions" in done.stdout
    assert "the parent of orphan: its parent is no longer in the database" in done.stdout
    assert done.stderr == ""


def test_the_home_is_found_by_its_variable(tmp_path: Path, core: HermesHome, monkeypatch: pytest.MonkeyPatch) -> None:
    core.session("s")
    core.talk("s", ["a"])
    monkeypatch.setenv("HERMES_HOME", str(core.path))
    assert printed(tmp_path / "home", "import", "hermes")["turns"] == 1


def test_a_folder_that_is_not_a_hermes_home_is_refused(tmp_path: Path) -> None:
    home, place = tmp_path / "home", tmp_path / "place"
    refused(everthread(home, "import", "hermes", str(place)), 1, "no such folder")
    place.mkdir()
    refused(everthread(home, "import", "hermes", str(place)), 2, "not a home of Hermes")
    (place / "state.db").write_bytes(b"no database at all" * 1000)
    done = everthread(home, "import", "hermes", str(place))
    refused(done, done.returncode, "state.db")
    assert done.returncode != 0
    (place / "state.db").unlink()
    database = sqlite3.connect(place / "state.db")
    database.execute("CREATE TABLE messages (id, session_id)")
    database.close()
    refused(everthread(home, "import", "hermes", str(place)), 2, "table messages")
