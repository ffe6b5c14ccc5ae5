"""`everthread forget`."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.e2e.used_home import (
    Picky,
    Polite,
    UsedHome,
    assert_one_line,
    everthread,
    titles_in,
)

from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText
from everthread.agent.skills.history import Origin
from everthread.bootstrap.runtime import Runtime
from everthread.cli import main as cli
from everthread.config.schema import Settings
from everthread.domain import titles
from everthread.domain.errors import BadTitle

pytestmark = pytest.mark.usefixtures("compiled_once")


def test_forgetting_a_session_describes_it_and_asks_first(lived: UsedHome) -> None:
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


def test_no_answer_counts_as_no(lived: UsedHome) -> None:
    done = everthread("forget", lived.chat, home=lived.home)
    assert done.returncode == 1
    assert "--yes" in done.stderr
    assert "日本旅行" in titles_in(lived.home)


def test_a_session_is_found_by_id_prefix_and_title(lived: UsedHome) -> None:
    # Ids created at the same time differ only in their last characters.
    assert everthread("forget", lived.chat[:-2], "--yes", home=lived.home).returncode == 0
    assert lived.lisbon in everthread("forget", "trip to lisbon", "--yes", home=lived.home).stdout
    # The title of the branch is derived from its title.
    assert titles_in(lived.home) <= {None}
    assert everthread("forget", lived.branch, "--yes", home=lived.home).returncode == 0


def test_forgetting_describes_the_effect_on_related_sessions(lived: UsedHome) -> None:
    assert "1 session branched or continued from it" in everthread("forget", lived.lisbon, home=lived.home).stdout
    assert f"Its parent session {lived.lisbon} is kept" in everthread("forget", lived.branch, home=lived.home).stdout


def test_forgetting_a_person_deletes_all_their_data_and_nothing_else(lived: UsedHome) -> None:
    done = everthread("forget", "--owner", "local", home=lived.home, answer="y\n")
    assert done.returncode == 0
    assert "2 sessions and 1 note" in done.stdout
    assert titles_in(lived.home) == {"日本旅行"}
    assert_one_line(everthread("forget", "--owner", "local", "--yes", home=lived.home), 1, "local")


def test_forgetting_a_note_shows_it_first(lived: UsedHome) -> None:
    done = everthread("forget", "--note", lived.note, home=lived.home, answer="y\n")
    assert done.returncode == 0
    assert "likes mangoes" in done.stdout
    assert_one_line(everthread("forget", "--note", lived.note, "--yes", home=lived.home), 1, lived.note)


def test_a_forgotten_note_is_removed_from_its_file(lived: UsedHome) -> None:
    note = lived.home / "memory" / "local" / "USER.md"
    note.parent.mkdir(parents=True)
    note.write_text("likes mangoes\n")
    assert everthread("forget", "--note", lived.note, "--yes", home=lived.home).returncode == 0
    assert note.read_text() == ""


def test_the_users_own_files_that_contain_a_forgotten_note_are_named(lived: UsedHome) -> None:
    (lived.home / "AGENTS.md").write_text("The user likes mangoes.")
    done = everthread("forget", "--note", lived.note, "--yes", home=lived.home)
    assert done.returncode == 0
    assert done.stderr == "AGENTS.md is yours and still contains the forgotten words; edit or remove it\n"


def test_with_json_stdout_has_only_the_result(lived: UsedHome) -> None:
    done = everthread("forget", lived.chat, "--json", home=lived.home, answer="y\n")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "forgotten": "session",
        "id": lived.chat,
        "owner": "telegram:42",
        "cannot_forget": [],
        "skills": [],
        "skills_kept": [],
        "not_loaded": ["picky"],
        "quoted": [],
        "quoted_erased": False,
    }
    assert lived.chat in done.stderr


def test_forgetting_a_session_leaves_nothing_of_the_skills_that_it_wrote(lived: UsedHome) -> None:
    folders = SkillFolders(lived.home / "skills")
    folders.write(SkillText("boat", "How we row.", "Own words."))
    folders.write(SkillText("boat", "How we row.", "The secret ferry."), origin=Origin(lived.chat, "t1"))
    folders.write(SkillText("walk", "How we walk.", "The secret path."), origin=Origin(lived.chat, "t1"))
    folders.write(SkillText("walk", "How we walk.", "Past the mill."), origin=Origin("elsewhere", "t2"))
    folders.write(SkillText("rail", "The secret train.", "First."), origin=Origin(lived.chat, "review-1-2"))
    folders.write(SkillText("rail", "How we book trains.", "Ask Ann."), origin=Origin(lived.chat, "review-1-2"))
    folders.write(SkillText("tea", "How to make tea.", "Boil water."), origin=Origin("elsewhere", "review-1-2"))
    done = everthread("forget", lived.chat, "--yes", "--json", home=lived.home)
    assert json.loads(done.stdout)["skills"] == ["rail", "boat"]
    assert json.loads(done.stdout)["skills_kept"] == ["walk"]
    assert "Skills that it wrote, removed with their earlier versions: rail." in done.stderr
    assert "Skills that it changed, restored to their text from before: boat." in done.stderr
    assert "and others changed later, kept without its versions: walk." in done.stderr
    assert "the skill walk was changed later by somebody else" in done.stderr
    assert "Past the mill." in (lived.home / "skills" / "walk" / "SKILL.md").read_text()
    assert not (lived.home / "skills" / "rail").exists()
    assert "Own words." in (lived.home / "skills" / "boat" / "SKILL.md").read_text()
    assert "Boil water." in (lived.home / "skills" / "tea" / "SKILL.md").read_text()
    files = [path for path in (lived.home / "skills").rglob("*") if path.is_file()]
    assert [path for path in files if b"secret" in path.read_bytes()] == [], "also in skills/.old and its log"
    assert {change.skill for change in folders.changes()} == {"boat", "tea", "walk"}


def test_providers_that_cannot_forget_are_listed(lived: UsedHome, capsys: pytest.CaptureFixture[str]) -> None:
    polite = Polite()

    def open_runtime(settings: Settings) -> Runtime:
        return Runtime(settings, providers=[Picky(), polite])

    code = cli.run(open_runtime, ["--home", str(lived.home), "forget", lived.chat, "--yes"])
    assert code == 0
    assert "can't delete data and keep theirs: picky.\n" in capsys.readouterr().out
    assert polite.asked == ["session"], "a provider that can forget must be called within the command"


@pytest.mark.parametrize("name", ["no such session", "01", "notes:local", "", "x" * 100_000, "\u200b", "🧵\n\x1b[31m"])
def test_an_unknown_session_is_one_line_and_exit_code_1(name: str, lived: UsedHome) -> None:
    done = everthread("forget", name, "--yes", home=lived.home)
    assert_one_line(done, 1)
    assert len(done.stderr) < 1000
    assert "\x1b" not in done.stderr
    assert len(titles_in(lived.home)) == 3


def test_an_ambiguous_prefix_is_refused(lived: UsedHome) -> None:
    assert_one_line(everthread("forget", lived.chat[:6], "--yes", home=lived.home), 2, "3 sessions")


def test_a_title_of_two_owners_is_refused(lived: UsedHome) -> None:
    async def name_alike() -> None:
        async with Runtime(Settings(lived.home)) as runtime:
            await runtime.lifecycle.rename(lived.chat, "Trip to Lisbon", owner="telegram:42")

    asyncio.run(name_alike())
    assert_one_line(everthread("forget", "Trip to Lisbon", "--yes", home=lived.home), 2, lived.chat, "telegram:42")


@pytest.mark.parametrize("title", ["", "   ", "\u200b\u2800", "x" * 101, "x" * 10_000_000])
def test_an_empty_or_huge_title_is_refused_and_changes_nothing(title: str, lived: UsedHome) -> None:
    with pytest.raises(BadTitle) as refusal:
        titles.clean(title)
    assert len(str(refusal.value)) < 200

    async def rename() -> None:
        async with Runtime(Settings(lived.home)) as runtime:
            await runtime.lifecycle.rename(lived.chat, title, owner="telegram:42")

    with pytest.raises(BadTitle):
        asyncio.run(rename())
    assert "日本旅行" in titles_in(lived.home)
