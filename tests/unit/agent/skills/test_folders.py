"""Folders of skills: discovery, limits, reading, writing and undo."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everthread.agent.skills.folders import COUNT_MAX, SkillFolders, SkillSet, check
from everthread.agent.skills.format import (
    FILE_CHARS_MAX,
    SkillText,
    parse,
)
from everthread.agent.skills.history import VERSIONS_MAX
from everthread.domain.errors import AlreadyExists, BadSkill, NotFound
from everthread.domain.rights import OWNER_RIGHTS
from everthread.trust.decisions import TrustFile
from everthread.trust.project_skills import ProjectSkills

GOOD = "---\nname: tea\ndescription: How to make tea.\n---\n\nBoil water.\n"


def put(place: Path, name: str, text: str = "", **files: str) -> Path:
    folder = place / name
    folder.mkdir(parents=True, exist_ok=True)
    said = text or f"---\nname: {name}\ndescription: What {name} is for.\n---\nDo {name}.\n"
    (folder / "SKILL.md").write_text(said, encoding="utf-8")
    for path, content in files.items():
        file = folder / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    return folder


def approved(own: Path, project: Path) -> SkillFolders:
    """Return the skills after the user has approved those of the project."""
    trust = TrustFile(project.parent / "trust" / "trust.json")
    ProjectSkills(project, trust).decide(True)
    return SkillFolders(own, project, trust)


# --- Folders ---------------------------------------------------------------------------------------------------------


def test_skills_come_from_the_home_and_from_the_project(tmp_path: Path) -> None:
    put(tmp_path / "home", "tea")
    put(tmp_path / "work/.everthread/skills", "build")
    shelf = approved(tmp_path / "home", tmp_path / "work").read_all()
    assert [(skill.name, skill.project) for skill in shelf.skills] == [("tea", False), ("build", True)]
    assert shelf.problems == ()
    assert SkillFolders(tmp_path / "nowhere").read_all().skills == ()


def test_a_project_skill_does_not_replace_a_skill_of_the_user(tmp_path: Path) -> None:
    put(tmp_path / "home", "tea")
    put(tmp_path / "work/.everthread/skills", "tea", GOOD.replace("Boil water", "Pour it away"))
    folders = approved(tmp_path / "home", tmp_path / "work")
    assert "Do tea" in folders.text(folders.get("tea"))
    (problem,) = folders.read_all().problems
    assert "is already one of your skills" in problem


def test_a_home_inside_the_working_folder_is_read_once(tmp_path: Path) -> None:
    put(tmp_path / ".everthread/skills", "tea")
    shelf = approved(tmp_path / ".everthread/skills", tmp_path).read_all()
    assert ([skill.project for skill in shelf.skills], shelf.problems) == ([False], ())


def test_a_broken_skill_does_not_affect_others(tmp_path: Path) -> None:
    put(tmp_path, "tea")
    put(tmp_path, "broken", "no front matter")
    put(tmp_path, "named", GOOD)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes/SKILL.md").write_bytes(b"---\nname: bytes\n\xff")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe/SKILL.md")
    (tmp_path / ".hidden").mkdir()
    folders = SkillFolders(tmp_path)
    shelf = folders.read_all()
    assert [skill.name for skill in shelf.skills] == ["tea"]
    said = "\n".join(shelf.problems)
    assert len(shelf.problems) == 5
    assert f"{tmp_path}/broken/SKILL.md:1: does not begin" in said
    assert "empty/SKILL.md:1: no such file" in said
    assert "bytes/SKILL.md:3: not UTF-8 text" in said
    assert "pipe/SKILL.md:1: not a regular file" in said
    assert "its name is 'tea', but its folder is 'named'" in said
    with pytest.raises(NotFound, match="does not begin"):
        folders.get("broken")
    with pytest.raises(NotFound, match="available: tea"):
        folders.get("coffee")


def test_the_number_of_skills_is_limited(tmp_path: Path) -> None:
    for number in range(COUNT_MAX + 5):
        put(tmp_path, f"skill-{number:04}")
    shelf = SkillFolders(tmp_path).read_all()
    assert len(shelf.skills) == COUNT_MAX
    assert "only the first 200 are read" in shelf.problems[0]


@pytest.mark.parametrize(
    "path", ["../secret", "references/../../secret", "/etc/passwd", "link", "round", "references", "a\0b", "none.md"]
)
def test_only_files_inside_the_skill_folder_are_read(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("the secret")
    folder = put(tmp_path / "home", "tea", references__forms="the form")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "round").symlink_to(folder / "round")
    folders = SkillFolders(tmp_path / "home")
    found = folders.get("tea")
    assert folders.text(found, "references/forms") == "the form"
    assert folders.files(found) == ("link", "round", "references/forms")
    with pytest.raises(BadSkill) as raised:
        folders.text(found, path)
    assert "the secret" not in str(raised.value)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_links_of_a_project_that_leave_it_are_not_followed(tmp_path: Path, what: str) -> None:
    outside = put(tmp_path / "outside", "tea")
    place = tmp_path / "work/.everthread/skills"
    if what == "folder":
        place.mkdir(parents=True)
        (place / "tea").symlink_to(outside)
    else:
        (place / "tea").mkdir(parents=True)
        (place / "tea/SKILL.md").symlink_to(outside / "SKILL.md")
    shelf = approved(tmp_path / "home", tmp_path / "work").read_all()
    assert shelf.skills == ()
    assert "is a link out of the project" in shelf.problems[0]


def test_a_cloned_project_cannot_give_the_agent_instructions(tmp_path: Path) -> None:
    put(tmp_path / "home", "tea")
    put(tmp_path / "work/.everthread/skills", "build")
    trust = TrustFile(tmp_path / "trust.json")
    for folders in (
        SkillFolders(tmp_path / "home", tmp_path / "work"),
        SkillFolders(tmp_path / "home", tmp_path / "work", trust),
    ):
        assert [skill.name for skill in folders.read_all().skills] == ["tea"]
        assert "build" not in folders.index(OWNER_RIGHTS)
        with pytest.raises(NotFound):
            folders.get("build")
    (problem,) = folders.read_all().problems
    assert "these skills are not approved" in problem
    assert "everthread skills trust" in problem
    shown = SkillFolders(tmp_path / "home", tmp_path / "work", trust, inspects=True)
    assert "Do build" in shown.text(shown.get("build"))
    ProjectSkills(tmp_path / "work", trust).decide(False)
    assert folders.read_all().problems == ()
    assert [skill.name for skill in folders.read_all().skills] == ["tea"]


def test_a_project_cannot_change_a_skill_after_its_approval(tmp_path: Path) -> None:
    place = tmp_path / "work/.everthread/skills"
    put(place, "build", references__targets="all")
    put(place, "test")
    folders = approved(tmp_path / "home", tmp_path / "work")
    found = folders.get("build")
    assert folders.text(found, "references/targets") == "all"
    put(
        place,
        "build",
        "---\nname: build\ndescription: d\n---\nDo evil.\n",
        references__targets="evil",
        scripts__new="evil",
    )
    put(place, "added")
    for path in ("SKILL.md", "references/targets", "scripts/new"):
        with pytest.raises(BadSkill, match=r"was added or changed since .* everthread skills trust"):
            folders.text(found, path)
    skill_set = folders.read_all()
    assert [skill.name for skill in skill_set.skills] == ["test"]
    assert len(skill_set.problems) == 2


def test_a_project_cannot_swap_its_approved_files(tmp_path: Path) -> None:
    """An approved text under the name of another skill, or behind a link, was not approved there."""
    place = tmp_path / "work/.everthread/skills"
    put(place, "build", references__notes="Do build.")
    folders = approved(tmp_path / "home", tmp_path / "work")
    found = folders.get("build")
    (place / "build/other").write_text("Do build.")
    with pytest.raises(BadSkill, match="was added or changed"):
        folders.text(found, "other")
    (place / "build/link").symlink_to(place / "build/references/notes")
    assert folders.text(found, "link") == "Do build."


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "tea", references__large="x" * (FILE_CHARS_MAX + 1))
    folders = SkillFolders(tmp_path)
    with pytest.raises(BadSkill, match=r"more than 100,000 characters"):
        folders.text(folders.get("tea"), "references/large")


# --- Writing ---------------------------------------------------------------------------------------------------------


def test_writing_replaces_the_file_and_keeps_the_previous_version(tmp_path: Path) -> None:
    folders = SkillFolders(tmp_path / "skills")
    assert folders.write(SkillText("tea", "How to make tea.", "Boil water.")).kept is None
    version = folders.write(SkillText("tea", "How to make tea.", "Boil less water.")).kept
    assert version is not None
    kept = folders.old("tea", version)
    assert parse(kept.read_text(), "f").body == "Boil water."
    found = folders.get("tea")
    assert "Boil less water." in folders.text(found)
    assert {path.name for path in found.folder.iterdir()} == {"SKILL.md"}
    assert (found.folder / "SKILL.md").stat().st_mode & 0o077 == 0
    assert kept.stat().st_mode & 0o077 == 0


def test_only_the_last_versions_are_kept(tmp_path: Path) -> None:
    folders = SkillFolders(tmp_path)
    for number in range(VERSIONS_MAX + 6):
        version = folders.write(SkillText("tea", "How to make tea.", f"Version {number}.")).kept
    assert version is not None
    kept = folders.old("tea", version)
    versions = sorted(int(file.stem) for file in kept.parent.iterdir())
    assert (len(versions), versions[-1]) == (VERSIONS_MAX, VERSIONS_MAX + 5)
    assert f"Version {VERSIONS_MAX + 4}." in kept.read_text()


@pytest.mark.parametrize(
    "skill",
    [
        SkillText("../tea", "x", "x"),
        SkillText("Tea", "x", "x"),
        SkillText("", "x", "x"),
        SkillText("tea", "  ", "x"),
        SkillText("tea", "x" * 2000, "x"),
        SkillText("tea", "x", " "),
        SkillText("tea", "x", "x" * FILE_CHARS_MAX),
    ],
)
def test_an_invalid_skill_is_not_written(tmp_path: Path, skill: SkillText) -> None:
    with pytest.raises(BadSkill):
        SkillFolders(tmp_path / "skills").write(skill)
    assert not list(tmp_path.rglob("*.md"))


def test_a_link_in_the_home_is_not_written_through(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside", "tea", GOOD)
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills/tea").symlink_to(outside)
    folders = SkillFolders(tmp_path / "skills")
    assert folders.get("tea").skill.name == "tea"
    with pytest.raises(BadSkill, match="is a link"):
        folders.write(SkillText("tea", "x", "x"))
    assert (outside / "SKILL.md").read_text() == GOOD


def test_a_new_skill_does_not_overwrite_an_existing_one(tmp_path: Path) -> None:
    folders = SkillFolders(tmp_path)
    put(tmp_path, "tea", GOOD)
    with pytest.raises(AlreadyExists):
        folders.write(SkillText("tea", "x", "x"), new=True)
    assert (tmp_path / "tea/SKILL.md").read_text() == GOOD


def test_a_failed_write_leaves_the_last_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = SkillFolders(tmp_path)
    put(tmp_path, "tea", GOOD)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadSkill, match="No space left"):
        folders.write(SkillText("tea", "x", "x"))
    assert (tmp_path / "tea/SKILL.md").read_text() == GOOD


def test_the_creation_of_a_skill_can_be_undone_and_redone(tmp_path: Path) -> None:
    folders = SkillFolders(tmp_path)
    folders.write(SkillText("tea", "How to make tea.", "Boil water."))
    (tmp_path / "tea/SKILL.md").write_text(GOOD + "By hand.\n")
    by_hand = (tmp_path / "tea/SKILL.md").read_text()
    _, made = folders.undo("tea", 1)
    assert made.action.value == "remove"
    assert folders.read_all() == SkillSet()
    _, made = folders.undo("tea", made.number)
    assert made.action.value == "add"
    assert (tmp_path / "tea/SKILL.md").read_text() == by_hand, "the manual edit is kept"


def test_other_files_in_the_folder_are_not_removed_with_a_skill(tmp_path: Path) -> None:
    folders = SkillFolders(tmp_path)
    folders.write(SkillText("tea", "How to make tea.", "Boil water."))
    put(tmp_path, "tea", scripts__boil="boil")
    folders.undo("tea", 1)
    assert (tmp_path / "tea/scripts/boil").read_text() == "boil"
    assert not (tmp_path / "tea/SKILL.md").exists()


def test_a_version_that_is_no_longer_stored_can_not_be_restored(tmp_path: Path) -> None:
    folders = SkillFolders(tmp_path)
    for body in ("one", "two"):
        folders.write(SkillText("tea", "How to make tea.", body))
    folders.old("tea", 1).unlink()
    with pytest.raises(NotFound, match="is missing"):
        folders.undo("tea", 2)
    assert "two" in folders.text(folders.get("tea"))


def test_check_reports_the_problems_of_a_folder(tmp_path: Path) -> None:
    assert check(put(tmp_path, "tea", GOOD)) == ""
    assert "SKILL.md:1: no such file" in check(tmp_path / "nothing")
