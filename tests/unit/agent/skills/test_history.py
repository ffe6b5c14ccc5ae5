"""The change log of skills."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import (
    SkillText,
)
from everthread.agent.skills.history import LINES_MAX, Origin
from everthread.domain.errors import BadInput, BadSkill, NotFound


def test_every_change_is_logged_and_can_be_undone_and_redone(tmp_path: Path) -> None:
    times = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    folders = SkillFolders(tmp_path / "skills", now=lambda: next(times))
    review = Origin("s1", "review-1-10")
    folders.write(SkillText("tea", "How to make tea.", "Boil water."), origin=review)
    folders.write(SkillText("tea", "How to make good tea.", "Boil less water."))
    second, first = folders.changes()
    assert (first.name, first.action.value, first.at, first.origin) == ("skill/tea:1", "add", 1.0, review)
    assert (first.description, first.before) == ("How to make tea.", "")
    assert (second.name, second.action.value, second.origin) == ("skill/tea:2", "replace", None)
    assert (second.description, second.before) == ("How to make good tea.", "How to make tea.")
    assert (tmp_path / "skills/.old/log").stat().st_mode & 0o077 == 0

    with pytest.raises(BadInput, match="undo skill/tea:2 first"):
        folders.undo("tea", 1)
    with pytest.raises(NotFound):
        folders.undo("tea", 9)
    undone, made = folders.undo("tea", 2)
    assert (undone, made.number, made.action.value) == (second, 3, "replace")
    assert "Boil water." in folders.text(folders.get("tea"))
    folders.undo("tea", 3)
    assert "Boil less water." in folders.text(folders.get("tea"))


def test_damaged_lines_of_the_log_are_skipped_and_its_length_is_limited(tmp_path: Path) -> None:
    folders = SkillFolders(tmp_path)
    folders.write(SkillText("tea", "How to make tea.", "Boil water."))
    log = tmp_path / ".old/log"
    log.write_bytes(b"{}\n\xff\n" + log.read_bytes() * (LINES_MAX + 5))
    folders.write(SkillText("tea", "How to make tea.", "Boil less water."))
    assert len(folders.changes()) == LINES_MAX
    assert len(log.read_bytes().splitlines()) == LINES_MAX
    assert folders.changes()[0].number == 2


def test_a_failed_write_is_not_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = SkillFolders(tmp_path)
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if target.name == "SKILL.md":
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BadSkill, match="No space left"):
        folders.write(SkillText("tea", "How to make tea.", "Boil water."))
    assert folders.changes() == []


GUEST = Origin("theirs", "t1")
OTHER = Origin("elsewhere", "t2")


def write(folders: SkillFolders, text: str, origin: Origin | None = None) -> None:
    folders.write(SkillText("tea", f"About {text}.", f"{text}."), origin=origin)


def bytes_with(folders: SkillFolders, text: str) -> list[Path]:
    files = [path for path in folders.own.rglob("*") if path.is_file()]
    return [path for path in files if text.encode() in path.read_bytes()]


@pytest.mark.parametrize("origin", [None, OTHER])
@pytest.mark.parametrize("first", ["Mine", ""])
def test_forgetting_a_session_does_not_destroy_what_others_wrote_later(
    tmp_path: Path, first: str, origin: Origin | None
) -> None:
    folders = SkillFolders(tmp_path)
    if first:
        write(folders, first)
    write(folders, "Secret", GUEST)
    write(folders, "Secret again", GUEST)
    write(folders, "Careful", origin)
    write(folders, "More careful", origin)
    (problem,) = folders.forget([GUEST.session_id])
    assert "the skill tea was changed later by somebody else" in problem
    assert "More careful." in folders.text(folders.get("tea"))
    assert bytes_with(folders, "Secret") == []
    newest, before, *earlier = folders.changes()
    assert (newest.description, newest.before, newest.origin) == ("About More careful.", "About Careful.", origin)
    assert (before.before, before.action.value) == (("About Mine.", "replace") if first else ("", "add"))
    assert [change.description for change in earlier] == (["About Mine."] if first else [])
    assert folders.forget([GUEST.session_id]) == []
    # The changes of others can still be undone, without the forgotten text.
    folders.undo("tea", newest.number)
    assert "Careful." in folders.text(folders.get("tea"))


def test_forgetting_a_session_takes_its_own_newest_text_of_a_skill_back_to_that_of_others(tmp_path: Path) -> None:
    folders = SkillFolders(tmp_path)
    write(folders, "Secret", GUEST)
    write(folders, "Careful")
    write(folders, "Secret again", GUEST)
    assert len(folders.forget([GUEST.session_id])) == 1
    assert "Careful." in folders.text(folders.get("tea"))
    assert bytes_with(folders, "Secret") == []
    write(folders, "Later")
    folders.undo("tea", folders.changes()[0].number)
    assert "Careful." in folders.text(folders.get("tea"))


def test_a_skill_that_others_removed_does_not_return_when_its_session_is_forgotten(tmp_path: Path) -> None:
    folders = SkillFolders(tmp_path)
    write(folders, "Secret", GUEST)
    folders.undo("tea", 1)
    folders.forget([GUEST.session_id])
    assert not (tmp_path / "tea").exists()
    assert bytes_with(folders, "Secret") == []
    assert folders.changes() == []


def test_an_undone_change_does_not_hide_who_wrote_the_text_that_it_restores(tmp_path: Path) -> None:
    folders = SkillFolders(tmp_path)
    write(folders, "Mine")
    write(folders, "Secret", GUEST)
    write(folders, "Other")
    folders.undo("tea", 3)
    assert "Secret." in folders.text(folders.get("tea"))
    folders.forget([GUEST.session_id])
    assert "Other." in folders.text(folders.get("tea"))
    assert bytes_with(folders, "Secret") == []
