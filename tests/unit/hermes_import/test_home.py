"""The files of a Hermes home."""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread.domain.errors import BadInput, NotFound
from everthread.domain.model import NoteTarget
from everthread.hermes_import.home import HermesHome


def test_a_folder_without_data_of_hermes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"state\.db"):
        HermesHome(tmp_path)
    with pytest.raises(NotFound):
        HermesHome(tmp_path / "none")


def test_notes_accounts_and_skills_are_read(tmp_path: Path) -> None:
    (tmp_path / "memories").mkdir()
    (tmp_path / "memories/USER.md").write_text("likes tea")
    (tmp_path / ".env").write_text("SECRET=x\nTELEGRAM_ALLOWED_USERS=42\n")
    for name in ("work/tea", ".hidden/x"):
        (tmp_path / "skills" / name).mkdir(parents=True)
        (tmp_path / "skills" / name / "SKILL.md").touch()
    (tmp_path / "skills/.bundled_manifest").write_text("tea: 1\n")
    home = HermesHome(tmp_path)
    assert (home.notes(NoteTarget.USER), home.notes(NoteTarget.MEMORY)) == ("likes tea", "")
    assert home.access_variables() == {"TELEGRAM_ALLOWED_USERS": "42"}
    assert [(skill.folder.name, skill.bundled) for skill in home.skills()] == [("tea", True)]
    assert home.existing("memories", "skills", "cron") == ["memories", "skills"]


def test_invalid_json_is_refused_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions/sessions.json").write_text("{")
    with pytest.raises(BadInput, match=r"sessions\.json"):
        HermesHome(tmp_path).routing()
