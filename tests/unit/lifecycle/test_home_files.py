from pathlib import Path

import pytest

from everthread.lifecycle.home_files import HomeFiles, entry_for
from everthread.log_erasure import LineFilter
from everthread.store.text_registry import FileMethod

ME, YOU = "me", "you"
FACT = "the gate code is 4711"


@pytest.fixture
def files(tmp_path: Path) -> HomeFiles:
    return HomeFiles(tmp_path, ME)


def write(files: HomeFiles, path: str, text: str = f"so {FACT}.") -> Path:
    file = files.home / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_only_the_owners_skills_are_changed(files: HomeFiles) -> None:
    skill = write(files, "skills/a/SKILL.md")
    assert files.erase(YOU, [FACT], LineFilter()) == []
    assert skill.read_text() == f"so {FACT}."
    assert files.erase(ME, [FACT], LineFilter()) == []
    assert skill.read_text() == "so [forgotten]."


def test_files_with_longer_words_are_neither_changed_nor_reported(files: HomeFiles) -> None:
    skill, rules = write(files, "skills/a/SKILL.md", "the team\xe9 and tea"), write(files, "AGENTS.md", "A team.")
    skill.write_bytes(skill.read_bytes() + b" \xff")
    assert files.erase(ME, ["tea"], LineFilter()) == []
    assert (skill.read_bytes(), rules.read_text()) == ("the team\xe9 and [forgotten]".encode() + b" \xff", "A team.")
    write(files, "media/team.txt", "steam")
    assert files.attachments_with(["tea"], ["team.txt"]) == ()
    assert files.find("tea") == ()
    assert files.find("team") == ("AGENTS.md", "media/team.txt")


def test_note_files_are_left_to_their_synchronisation(files: HomeFiles) -> None:
    """Only the synchronisation holds the write lock, and only it knows an edit from an erasure."""
    paths = ("memory/USER.md", "memory/MEMORY.md", "memory/you/USER.md", "memory/USER.md.0a1b2c3d.new")
    notes = [write(files, path) for path in paths]
    for owner in (ME, YOU):
        assert files.replace(owner, [FACT]) == []
        assert files.erase(owner, [FACT], LineFilter()) == []
    assert [file.read_text() for file in notes] == [f"so {FACT}."] * len(paths)


def test_words_are_replaced_without_changing_the_logs(files: HomeFiles) -> None:
    log, skill = write(files, "logs/everthread.log"), write(files, "skills/a/SKILL.md")
    assert files.replace(ME, [FACT]) == []
    assert (log.read_text(), skill.read_text()) == (f"so {FACT}.", "so [forgotten].")


def test_skills_whose_lock_can_not_be_taken_are_reported_and_the_other_files_erased(files: HomeFiles) -> None:
    (files.home / "skills" / ".old" / "lock").mkdir(parents=True)
    skill, log = write(files, "skills/a/SKILL.md"), write(files, "logs/everthread.log")
    write(files, "skills/b/SKILL.md", "something else")
    problem = "skills/a/SKILL.md may still contain forgotten words (Is a directory); remove it"
    assert files.erase(ME, [FACT], LineFilter()) == [problem]
    assert (skill.read_text(), log.read_text().strip()) == (f"so {FACT}.", "")
    assert files.erase(YOU, [FACT], LineFilter()) == []


def test_a_file_of_the_user_is_reported_and_not_changed(files: HomeFiles) -> None:
    rules = write(files, "AGENTS.md")
    write(files, "SOUL.md", "be kind")
    assert files.erase(ME, [FACT], LineFilter()) == [
        "AGENTS.md is yours and still contains the forgotten words; edit or remove it"
    ]
    assert rules.read_text() == f"so {FACT}."
    assert files.erase(ME, ["something else"], LineFilter()) == []


def test_every_request_removes_lines_that_may_quote_anybody(files: HomeFiles) -> None:
    current, old, output = (
        write(files, f"logs/{name}") for name in ("everthread.log", "everthread.log.2", "gateway.out")
    )
    assert files.erase(ME, (), LineFilter()) == []
    assert [file.read_text().strip() for file in (current, old, output)] == ["", "", ""]


def test_a_file_that_can_not_be_changed_is_reported_and_the_others_are_changed(files: HomeFiles) -> None:
    write(files, "skills/a/SKILL.md")
    (files.home / "skills" / "a" / "SKILL.md.new").mkdir()
    other = write(files, "skills/b/SKILL.md")
    [problem] = files.erase(ME, [FACT], LineFilter())
    assert problem == "skills/a/SKILL.md may still contain forgotten words (Is a directory); remove it"
    assert other.read_text() == "so [forgotten]."


def test_a_link_is_not_followed(files: HomeFiles, tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("elsewhere") / "SKILL.md"
    target.write_text(FACT)
    (files.home / "skills" / "a").mkdir(parents=True)
    (files.home / "skills" / "a" / "SKILL.md").symlink_to(target)
    files.erase(ME, [FACT], LineFilter())
    assert target.read_text() == FACT


def test_a_changed_file_keeps_its_mode(files: HomeFiles) -> None:
    skill = write(files, "skills/a/SKILL.md")
    skill.chmod(0o600)
    files.erase(ME, [FACT], LineFilter())
    assert skill.read_text() == "so [forgotten]."
    assert skill.stat().st_mode & 0o777 == 0o600


def test_words_are_found_in_contents_and_names(files: HomeFiles) -> None:
    write(files, "media/telegram/1-0-the_gate_code_is_4711.txt", "")
    write(files, "files/a.json", '"the gate code is 4711"')
    write(files, "files/b.txt", "the gate")
    assert files.find(FACT) == ("files/a.json", "media/telegram/1-0-the_gate_code_is_4711.txt")
    assert files.attachments_with([FACT], ["telegram/none.txt"]) == ()


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("skills/.old/lock", FileMethod.NO_WORDS),
        ("skills/.old/tea/1.md", FileMethod.REPLACE),
        ("memory/telegram%3A42/USER.md", FileMethod.SYNCHRONISE),
        ("memory/MEMORY.md.0a1b2c3d.new", FileMethod.SYNCHRONISE),
        ("memory/diary.md", FileMethod.KEEP),
        ("logs/everthread.log.3", FileMethod.REMOVE_LINES),
        ("providers/mem0/a/b.db", FileMethod.BY_PROVIDER),
        ("notes.txt", None),
        ("memory/other.txt", None),
    ],
)
def test_the_first_pattern_that_matches_decides(path: str, method: FileMethod | None) -> None:
    found = entry_for(path)
    assert (found.method if found else None) == method
