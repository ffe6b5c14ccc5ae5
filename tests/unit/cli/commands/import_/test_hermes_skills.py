"""Import of the skills of a Hermes home."""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread.agent.skills.folders import SkillFolders
from everthread.cli.commands.import_ import hermes_skills
from everthread.cli.commands.import_.hermes_skills import import_skills
from everthread.hermes_import.home import HermesHome


@pytest.fixture
def hermes(tmp_path: Path) -> HermesHome:
    (tmp_path / "hermes" / "memories").mkdir(parents=True)
    return HermesHome(tmp_path / "hermes")


@pytest.fixture
def folders(tmp_path: Path) -> SkillFolders:
    return SkillFolders(tmp_path / "home" / "skills")


def add_skill(hermes: HermesHome, name: str) -> Path:
    folder = hermes.path / "skills" / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: How to do it.\n---\n\nDo it.\n")
    return folder


def test_a_skill_is_copied_with_its_files(hermes: HermesHome, folders: SkillFolders, tmp_path: Path) -> None:
    folder = add_skill(hermes, "tea")
    (folder / "scripts").mkdir()
    (folder / "scripts" / "boil.sh").write_text("boil")
    (tmp_path / "private").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "private")
    imported = import_skills(hermes, folders, (), dry_run=False)
    assert imported.names == ["tea"]
    assert folders.text(folders.get("tea"), "scripts/boil.sh") == "boil"
    assert not (folders.own / "tea" / "link").exists()


def test_a_dry_run_copies_nothing(hermes: HermesHome, folders: SkillFolders) -> None:
    add_skill(hermes, "tea")
    assert import_skills(hermes, folders, (), dry_run=True).names == ["tea"]
    assert not folders.own.exists()


def test_bundled_existing_and_imported_skills_are_skipped(hermes: HermesHome, folders: SkillFolders) -> None:
    for name in ("bundled", "tea", "coffee"):
        add_skill(hermes, name)
    (hermes.path / "skills" / ".bundled_manifest").write_text("bundled: 1\n")
    (folders.own / "tea").mkdir(parents=True)
    imported = import_skills(hermes, folders, ("coffee",), dry_run=False)
    assert imported.names == []
    assert [(each.what, each.why) for each in imported.skipped] == [
        ("skill tea", "a skill of that name exists here"),
        ("skills", "are bundled with Hermes; copy the ones you changed by hand"),
    ]


def test_files_above_the_limits_are_counted(
    hermes: HermesHome, folders: SkillFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hermes_skills, "FILES_MAX", 2)
    folder = add_skill(hermes, "tea")
    for number in range(4):
        (folder / f"{number}.txt").touch()
    (skipped,) = import_skills(hermes, folders, (), dry_run=False).skipped
    assert (skipped.what, skipped.count) == ("files of skill tea", 2)
