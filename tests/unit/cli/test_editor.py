"""Files are opened in the user's editor."""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread.cli.editor import EditFailed, edit, edit_in_place, free_name
from everthread.domain.errors import StoreUnwritable


@pytest.fixture(autouse=True)
def no_visual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VISUAL", raising=False)


def _use_editor(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    editor = folder / "editor"
    editor.write_text(f"#!/bin/sh\n{script}\n")
    editor.chmod(0o700)
    monkeypatch.setenv("EDITOR", str(editor))


def test_a_missing_file_is_created_for_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use_editor(monkeypatch, tmp_path, 'echo edited > "$1"')
    file = tmp_path / "new" / "notes.md"
    edit(file)
    assert file.read_text() == "edited\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_failed_edit_restores_the_file_and_keeps_the_text_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_editor(monkeypatch, tmp_path, 'echo edited > "$1"; exit 3')
    file = tmp_path / "notes.md"
    file.write_text("before")
    with pytest.raises(EditFailed, match=r"notes\.md\.unsaved"):
        edit_in_place(file)
    assert (file.read_text(), (tmp_path / "notes.md.unsaved").read_text()) == ("before", "edited\n")


def test_an_editor_that_does_not_exist_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "/no/such/editor")
    with pytest.raises(EditFailed, match="set VISUAL or EDITOR"):
        edit(tmp_path / "notes.md")


def test_a_file_below_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnwritable, match="choose another home"):
        edit(tmp_path / "file" / "notes.md")


def test_a_free_name_skips_existing_files(tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    assert free_name(file, ".unsaved").name == "notes.md.unsaved"
    (tmp_path / "notes.md.unsaved").touch()
    (tmp_path / "notes.md.unsaved.2").symlink_to("nowhere")
    assert free_name(file, ".unsaved").name == "notes.md.unsaved.3"
