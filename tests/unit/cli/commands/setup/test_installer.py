"""Installing a folder: completely or not at all, with errors that say what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from everthread.cli.commands.setup.installer import InstallerFailed, file_sizes, install_folder, run_installer
from everthread.domain.errors import DiskFull, StoreUnwritable


def is_installed(folder: Path) -> bool:
    return (folder / "model").exists()


def fill(stage: Path) -> None:
    (stage / "files").mkdir()
    (stage / "files" / "model").write_text("new")


def test_a_folder_is_installed_once_and_replaces_an_incomplete_one(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "models" / "local"
    folder.mkdir(parents=True)
    (folder / "half").touch()
    assert install_folder(folder, "it", is_installed, fill)
    assert [path.name for path in folder.iterdir()] == ["model"]
    assert not install_folder(folder, "it", is_installed, fill)
    assert sorted(path.name for path in folder.parent.iterdir()) == [".local.lock", "local"]


def test_a_failed_installation_keeps_the_old_folder(tmp_path: Path) -> None:
    def fail(stage: Path) -> None:
        fill(stage)
        raise DiskFull("full")

    folder = tmp_path / "models" / "local"
    folder.mkdir(parents=True)
    (folder / "old").touch()
    with pytest.raises(DiskFull):
        install_folder(folder, "it", is_installed, fail)
    assert [path.name for path in folder.iterdir()] == ["old"]
    assert not (folder.parent / ".local.part").exists()


def test_an_unusable_home_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnwritable, match="choose another home"):
        install_folder(tmp_path / "file" / "models" / "local", "it", is_installed, fill)


def run(tmp_path: Path, code: str, poll_s: float = 5.0, *polls: Exception) -> None:
    def poll() -> None:
        raise polls[0]

    (tmp_path / "tmp").mkdir()
    run_installer((sys.executable, "-c", code), tmp_path, poll_s, poll)


def test_the_temporary_folder_is_on_the_disk_of_the_home(tmp_path: Path) -> None:
    run(tmp_path, "import pathlib, tempfile; pathlib.Path(tempfile.gettempdir(), 'here').touch()")
    assert (tmp_path / "tmp" / "here").exists()


def test_the_line_with_the_error_is_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(InstallerFailed, match=r"^\(exit code 3\): ERROR: no wheel$") as failed:
        run(tmp_path, "print('ERROR: no wheel'); print('see the manual'); raise SystemExit(3)")
    assert "see the manual" in failed.value.output


def test_a_full_disk_is_recognized_by_the_output(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="free some space"):
        run(tmp_path, "raise SystemExit('OSError: [Errno 28] No space left on device')")


def test_a_command_is_killed_when_the_poll_raises(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        run(tmp_path, "import time; time.sleep(600)", 0.01, TimeoutError())


def test_file_sizes_are_filtered_by_name(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.whl").write_bytes(b"123")
    (tmp_path / "b.txt").write_bytes(b"1")
    assert sorted(file_sizes(tmp_path)) == [("a.whl", 3), ("b.txt", 1)]
    assert list(file_sizes(tmp_path, "*.whl")) == [("a.whl", 3)]
