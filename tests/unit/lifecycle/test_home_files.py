from pathlib import Path

import pytest

from everthread.lifecycle.home_files import HomeFiles, declaration
from everthread.store.text_registry import FileMethod

ME, YOU = "me", "you"
FACT = "the gate code is 4711"


@pytest.fixture
def files(tmp_path: Path) -> HomeFiles:
    return HomeFiles(tmp_path, ME, lambda owner: tmp_path / "memory" / ("" if owner == ME else owner))


def write(files: HomeFiles, path: str, text: str = f"so {FACT}.") -> Path:
    file = files.home / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_only_the_owners_note_files_and_skills_are_changed(files: HomeFiles) -> None:
    mine, yours, skill = (write(files, path) for path in ("memory/USER.md", "memory/you/USER.md", "skills/a/SKILL.md"))
    assert files.erase(YOU, [FACT]) == []
    assert [file.read_text() for file in (mine, yours, skill)] == [f"so {FACT}.", "so [forgotten].", f"so {FACT}."]
    assert files.erase(ME, [FACT]) == []
    assert [file.read_text() for file in (mine, skill)] == ["so [forgotten]."] * 2


def test_a_file_of_the_user_is_reported_and_not_changed(files: HomeFiles) -> None:
    rules = write(files, "AGENTS.md")
    write(files, "SOUL.md", "be kind")
    assert files.erase(ME, [FACT]) == ["AGENTS.md is yours and still contains the forgotten words; edit or remove it"]
    assert rules.read_text() == f"so {FACT}."
    assert files.erase(ME, ["something else"]) == []


def test_every_request_empties_the_logs(files: HomeFiles) -> None:
    current, old, output = (
        write(files, f"logs/{name}") for name in ("everthread.log", "everthread.log.2", "gateway.out")
    )
    assert files.erase(ME, ()) == []
    assert (current.read_text(), old.exists(), output.read_text()) == ("", False, "")


def test_a_file_that_can_not_be_changed_is_reported_and_the_others_are_changed(files: HomeFiles) -> None:
    write(files, "memory/MEMORY.md")
    (files.home / "memory" / "MEMORY.md.new").mkdir()
    notes = write(files, "memory/USER.md")
    [problem] = files.erase(ME, [FACT])
    assert problem == "memory/MEMORY.md may still contain forgotten words (Is a directory); remove it"
    assert notes.read_text() == "so [forgotten]."


def test_a_link_is_not_followed(files: HomeFiles, tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("elsewhere") / "SKILL.md"
    target.write_text(FACT)
    (files.home / "skills" / "a").mkdir(parents=True)
    (files.home / "skills" / "a" / "SKILL.md").symlink_to(target)
    files.erase(ME, [FACT])
    assert target.read_text() == FACT


def test_a_changed_file_keeps_its_mode(files: HomeFiles) -> None:
    notes = write(files, "memory/USER.md")
    notes.chmod(0o600)
    files.erase(ME, [FACT])
    assert notes.stat().st_mode & 0o777 == 0o600


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
        ("memory/telegram%3A42/USER.md", FileMethod.REPLACE),
        ("logs/everthread.log.3", FileMethod.EMPTY),
        ("providers/mem0/a/b.db", FileMethod.BY_PROVIDER),
        ("notes.txt", None),
        ("memory/other.txt", None),
    ],
)
def test_the_first_pattern_that_matches_decides(path: str, method: FileMethod | None) -> None:
    found = declaration(path)
    assert (found.method if found else None) == method
