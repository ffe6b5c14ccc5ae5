"""Approval of a project's skills: it holds for exactly the files that were there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from everthread.domain.errors import BadSkill
from everthread.trust import project_skills
from everthread.trust.decisions import Trust, TrustFile
from everthread.trust.project_skills import ProjectSkills, digests


@pytest.fixture
def skills(tmp_path: Path) -> ProjectSkills:
    folder = tmp_path / "work" / ".everthread" / "skills" / "build"
    (folder / "references").mkdir(parents=True)
    (folder / "SKILL.md").write_text("Run make.")
    (folder / "references" / "targets.md").write_text("all")
    return ProjectSkills(tmp_path / "work", TrustFile(tmp_path / "home" / "trust.json"))


def test_a_decision_is_remembered_for_its_folder(skills: ProjectSkills, tmp_path: Path) -> None:
    assert (skills.exist(), skills.state(), skills.approved_files()) == (True, Trust.NEW, None)
    skills.decide(True)
    assert skills.state() is Trust.APPROVED
    assert sorted(skills.approved_files() or ()) == ["build/SKILL.md", "build/references/targets.md"]
    elsewhere = tmp_path / "copy"
    (tmp_path / "work").rename(elsewhere)
    assert ProjectSkills(elsewhere, skills.trust).state() is Trust.NEW
    skills.decide(None)
    assert skills.trust.read().skills == {}


def test_a_refusal_is_remembered_and_approves_nothing(skills: ProjectSkills) -> None:
    skills.decide(False)
    assert (skills.state(), skills.approved_files(), skills.is_refused()) == (Trust.REFUSED, None, True)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a text": lambda place: (place / "build/SKILL.md").write_text("Run rm."),
    "a reference": lambda place: (place / "build/references/targets.md").write_text("none"),
    "a new skill": lambda place: (place / "more").mkdir() or (place / "more/SKILL.md").write_text("More."),
    "a hidden file": lambda place: (place / "build/.more").write_text("More."),
    "a removed file": lambda place: (place / "build/references/targets.md").unlink(),
}


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_project_cannot_change_its_skills_after_the_decision(
    skills: ProjectSkills, change: Callable[[Path], object], approved: bool
) -> None:
    skills.decide(approved)
    change(skills.folder)
    assert skills.state() is Trust.CHANGED


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_decision_holds_for_the_files_that_were_shown(
    skills: ProjectSkills, change: Callable[[Path], object]
) -> None:
    shown = digests(skills.folder)
    change(skills.folder)
    skills.decide(True, shown)
    assert (skills.state(), skills.approved_files()) == (Trust.CHANGED, shown)


def test_links_and_other_files_are_not_followed(skills: ProjectSkills, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (skills.folder / "build/link").symlink_to(tmp_path / "secret")
    (skills.folder / "out").symlink_to(tmp_path)
    os.mkfifo(skills.folder / "build/pipe")
    assert sorted(digests(skills.folder)) == ["build/SKILL.md", "build/references/targets.md"]


def test_a_project_cannot_make_the_check_endless(skills: ProjectSkills, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("FILES_MAX", "BYTES_MAX", "SEEN_MAX"):
        with monkeypatch.context() as patch:
            patch.setattr(project_skills, limit, 1)
            with pytest.raises(BadSkill, match="the skills are not used"):
                skills.decide(True)
    assert skills.state() is Trust.NEW


def test_a_file_name_that_is_no_text_is_covered(skills: ProjectSkills) -> None:
    (skills.folder / "build" / os.fsdecode(b"odd\xff")).write_text("odd")
    skills.decide(True)
    assert skills.state() is Trust.APPROVED
    (skills.folder / "build" / os.fsdecode(b"odd\xff")).write_text("other")
    assert skills.state() is Trust.CHANGED


def test_a_folder_without_skills_has_none(tmp_path: Path) -> None:
    assert not ProjectSkills(tmp_path, TrustFile(tmp_path / "trust.json")).exist()
