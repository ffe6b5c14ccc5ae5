"""Commands that list, repair and forget, as real processes on a home with some history."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from tests.e2e.used_home import (
    Lived,
    Picky,
    Polite,
    assert_one_line,
    everthread,
    printed,
    titles_in,
)

from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText
from everthread.agent.skills.history import Origin
from everthread.bootstrap.runtime import Runtime
from everthread.cli import main as cli
from everthread.config.settings import Settings
from everthread.domain import titles
from everthread.domain.errors import BadTitle

pytestmark = pytest.mark.usefixtures("compiled_once")


def test_sessions_list_shows_every_owners_conversations(lived: Lived) -> None:
    found = printed("sessions", "list", home=lived.home)
    assert [session["id"] for session in found] == [lived.chat, lived.branch, lived.lisbon]
    lisbon = found[-1]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", lisbon.pop("last_active"))
    assert lisbon.pop("opened")
    assert lisbon == {
        "id": lived.lisbon,
        "title": "Trip to Lisbon",
        "state": "open",
        "end_reason": None,
        "turns": 2,
        "key": "agent:main:cli:dm:1",
        "owner": "local",
        "kind": "chat",
        "cause": "new_session",
        "parent": None,
    }


def test_sessions_list_is_a_plain_table_for_people(lived: Lived) -> None:
    heading, *lines = everthread("sessions", "list", home=lived.home).stdout.splitlines()
    assert heading.split("  ")[0] == "ID"
    assert len(lines) == 3
    assert re.match(
        rf"{lived.lisbon}  Trip to Lisbon +open +2 +\d{{4}}-\d\d-\d\d \d\d:\d\d +agent:main:cli:dm:1$", lines[2]
    )
    # Characters of double width push nothing out of line.
    assert lines[0].index("open") + len("日本旅行") == lines[2].index("open")


def test_limit_limits(lived: Lived) -> None:
    assert len(printed("sessions", "list", "--limit", "1", home=lived.home)) == 1
    assert len(printed("boundaries", "--limit", "2", home=lived.home)) == 2


def test_boundaries_are_the_audit_trail_newest_first(lived: Lived) -> None:
    found = printed("boundaries", home=lived.home)
    assert [row["boundary"] for row in found if row["boundary"] != "suspend"] == ["new", "branch", "new"]
    branch = next(row for row in found if row["boundary"] == "branch")
    assert (branch["from"], branch["to"], branch["by"]) == (lived.lisbon, lived.branch, "user")
    assert branch["key"] == "agent:main:cli:dm:1"
    table = everthread("boundaries", home=lived.home).stdout
    assert re.search(rf"branch +{lived.lisbon} +{lived.branch} +user", table)


def test_journal_status_shows_what_is_parked_and_why(lived: Lived) -> None:
    [picky] = printed("journal", "status", home=lived.home)
    assert (picky["provider"], picky["waiting_entries"], picky["parked"]) == ("picky", 0, 1)
    assert [entry["session"] for entry in picky["parked_entries"]] == [lived.lisbon]
    table = everthread("journal", "status", home=lived.home).stdout
    assert "not that" in table
    assert "\x1b" not in table, "a provider's words must not reach the terminal's controls"


def test_retry_sets_parked_entries_going(lived: Lived) -> None:
    assert printed("journal", "retry", "picky", home=lived.home) == {
        "provider": "picky",
        "session": None,
        "entries": 1,
    }
    [picky] = printed("journal", "status", home=lived.home)
    assert (picky["waiting_entries"], picky["parked"]) == (1, 0)
    assert "Nothing is parked" in everthread("journal", "retry", "picky", home=lived.home).stdout


def test_retry_may_be_of_one_session(lived: Lived) -> None:
    assert printed("journal", "retry", "picky", lived.chat, home=lived.home)["entries"] == 0
    done = printed("journal", "retry", "picky", lived.lisbon, home=lived.home)
    assert (done["session"], done["entries"]) == (lived.lisbon, 1)


def test_replay_sets_a_session_back_or_all(lived: Lived) -> None:
    one = printed("journal", "replay", "picky", "日本旅行", home=lived.home)
    assert (one["session"], one["sessions"]) == (lived.chat, 1)
    assert printed("journal", "status", home=lived.home)[0]["waiting_sessions"] == 1
    assert printed("journal", "replay", "picky", home=lived.home)["sessions"] > 1


def test_an_unknown_provider_is_refused_with_the_known_ones(lived: Lived) -> None:
    assert_one_line(everthread("journal", "retry", "nobody", home=lived.home), 1, "nobody", "picky")
    assert_one_line(everthread("journal", "replay", "picky", "no such", home=lived.home), 1, "no such")


def test_forgetting_a_session_asks_first_and_says_what(lived: Lived) -> None:
    done = everthread("forget", "日本旅行", home=lived.home, answer="n\n")
    assert done.returncode == 1
    assert "日本旅行" in done.stdout
    assert lived.chat in done.stdout
    assert "1 turn," in done.stdout
    assert "Nothing was forgotten" in done.stdout
    assert "日本旅行" in titles_in(lived.home)

    done = everthread("forget", "日本旅行", home=lived.home, answer="y\n")
    assert done.returncode == 0
    assert "日本旅行" not in titles_in(lived.home)
    assert b"konnichiwa" not in (lived.home / "everthread.db").read_bytes()


def test_no_answer_is_a_no(lived: Lived) -> None:
    done = everthread("forget", lived.chat, home=lived.home)
    assert done.returncode == 1
    assert "--yes" in done.stderr
    assert "日本旅行" in titles_in(lived.home)


def test_a_session_is_found_by_id_by_its_beginning_and_by_title(lived: Lived) -> None:
    # Ids made within moments of each other differ in their last parts only.
    assert everthread("forget", lived.chat[:-2], "--yes", home=lived.home).returncode == 0
    assert lived.lisbon in everthread("forget", "trip to lisbon", "--yes", home=lived.home).stdout
    # Its branch was called after it.
    assert titles_in(lived.home) <= {None}
    assert everthread("forget", lived.branch, "--yes", home=lived.home).returncode == 0


def test_forgetting_says_what_becomes_of_relatives(lived: Lived) -> None:
    assert "1 session branched or continued from it" in everthread("forget", lived.lisbon, home=lived.home).stdout
    assert f"Its parent session {lived.lisbon} is kept" in everthread("forget", lived.branch, home=lived.home).stdout


def test_forgetting_a_person_takes_everything_of_theirs_and_nothing_else(lived: Lived) -> None:
    done = everthread("forget", "--owner", "local", home=lived.home, answer="y\n")
    assert done.returncode == 0
    assert "2 sessions and 1 note" in done.stdout
    assert titles_in(lived.home) == {"日本旅行"}
    assert_one_line(everthread("forget", "--owner", "local", "--yes", home=lived.home), 1, "local")


def test_forgetting_a_fact_shows_it_first(lived: Lived) -> None:
    done = everthread("forget", "--note", lived.note, home=lived.home, answer="y\n")
    assert done.returncode == 0
    assert "likes mangoes" in done.stdout
    assert_one_line(everthread("forget", "--note", lived.note, "--yes", home=lived.home), 1, lived.note)


def test_a_forgotten_fact_leaves_the_file_of_notes(lived: Lived) -> None:
    note = lived.home / "memory" / "local" / "USER.md"
    note.parent.mkdir(parents=True)
    note.write_text("likes mangoes\n")
    assert everthread("forget", "--note", lived.note, "--yes", home=lived.home).returncode == 0
    assert note.read_text() == ""


def test_forget_as_json_keeps_stdout_for_programs(lived: Lived) -> None:
    done = everthread("forget", lived.chat, "--json", home=lived.home, answer="y\n")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "forgotten": "session",
        "id": lived.chat,
        "owner": "telegram:42",
        "cannot_forget": [],
        "skills": [],
        "not_loaded": ["picky"],
    }
    assert lived.chat in done.stderr


def test_skills_that_were_drawn_from_what_is_forgotten_are_named(lived: Lived) -> None:
    folders = SkillFolders(lived.home / "skills")
    folders.write(SkillText("rail", "How we book trains.", "Ask Ann."), origin=Origin(lived.chat, "review-1-2"))
    folders.write(SkillText("tea", "How to make tea.", "Boil water."), origin=Origin("elsewhere", "review-1-2"))
    done = everthread("forget", lived.chat, "--yes", "--json", home=lived.home)
    assert json.loads(done.stdout)["skills"] == ["rail"]
    assert "These skills were derived from it and are kept: rail." in done.stderr
    assert folders.get("rail")


def test_providers_that_cannot_forget_are_named(lived: Lived, capsys: pytest.CaptureFixture[str]) -> None:
    polite = Polite()

    def open_runtime(settings: Settings) -> Runtime:
        return Runtime(settings, providers=[Picky(), polite])

    code = cli.run(open_runtime, ["--home", str(lived.home), "forget", lived.chat, "--yes"])
    assert code == 0
    assert "can't delete data and keep theirs: picky.\n" in capsys.readouterr().out
    assert polite.asked == ["session"], "one that can is told within the time a command has"


@pytest.mark.parametrize("name", ["no such session", "01", "notes:local", "", "x" * 100_000, "\u200b", "🧵\n\x1b[31m"])
def test_an_unknown_session_is_one_line_and_1(name: str, lived: Lived) -> None:
    done = everthread("forget", name, "--yes", home=lived.home)
    assert_one_line(done, 1)
    assert len(done.stderr) < 1000
    assert "\x1b" not in done.stderr
    assert len(titles_in(lived.home)) == 3


def test_a_beginning_that_fits_several_sessions_is_refused(lived: Lived) -> None:
    assert_one_line(everthread("forget", lived.chat[:6], "--yes", home=lived.home), 2, "3 sessions")


def test_a_title_that_two_owners_use_is_refused(lived: Lived) -> None:
    async def name_alike() -> None:
        async with Runtime(Settings(lived.home)) as runtime:
            await runtime.lifecycle.rename(lived.chat, "Trip to Lisbon", owner="telegram:42")

    asyncio.run(name_alike())
    assert_one_line(everthread("forget", "Trip to Lisbon", "--yes", home=lived.home), 2, lived.chat, "telegram:42")


@pytest.mark.parametrize("title", ["", "   ", "\u200b\u2800", "x" * 101, "x" * 10_000_000])
def test_an_empty_or_huge_title_is_refused_and_changes_nothing(title: str, lived: Lived) -> None:
    with pytest.raises(BadTitle) as refusal:
        titles.clean(title)
    assert len(str(refusal.value)) < 200

    async def rename() -> None:
        async with Runtime(Settings(lived.home)) as runtime:
            await runtime.lifecycle.rename(lived.chat, title, owner="telegram:42")

    with pytest.raises(BadTitle):
        asyncio.run(rename())
    assert "日本旅行" in titles_in(lived.home)
