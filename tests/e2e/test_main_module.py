"""`python -m everthread` imports nothing from the current folder, whatever somebody has put there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLANTED = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n"
MODULES = (
    "__future__",
    "typing",
    "click",
    "msgspec",
    "pluggy",
    "apsw",
    "json",
    "asyncio",
    "logging",
    "everthread_plugin",
    "pip",
    "venv",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder, such as a cloned project, with modules and a plugin that nobody installed."""
    project = tmp_path / "project"
    project.mkdir()
    for name in MODULES:
        (project / f"{name}.py").write_text(PLANTED)
    package = project / "everthread_plugin-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: everthread-plugin\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[everthread.plugins]\nplanted = everthread_plugin\n")
    return project


def run(folder: Path, *arguments: str, command: tuple[str, ...] = ("-m", "everthread")) -> str:
    home = folder.parent / "home"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, *command, "--home", str(home), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def ran(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.ran"))


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("sessions", "list"), ("doctor", "--offline"), ("-p", "hello"), ("cron", "list")],
    ids=" ".join,
)
def test_a_cloned_project_cannot_run_code_by_the_names_of_its_modules(folder: Path, arguments: tuple[str, ...]) -> None:
    (folder.parent / "home").mkdir()
    (folder.parent / "home" / "config.toml").write_text('[plugins]\nallow = ["planted"]\n')
    run(folder, *arguments)
    assert ran(folder) == []


def test_a_cloned_project_cannot_replace_pip_in_setup_local(folder: Path) -> None:
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        said = run(folder, "setup", "local")
    assert "package index is unreachable" in said
    assert ran(folder) == []


def test_the_planted_modules_do_run_from_an_unprotected_program(folder: Path) -> None:
    """The opposite: without the protection, the same folder takes over. So the tests above prove something."""
    run(folder, command=("-c", "import typing, click"))
    assert ran(folder) == ["click.ran", "typing.ran"]


def test_the_program_can_be_started_from_the_folder_of_its_sources() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "everthread", "--version"], cwd=ROOT / "src", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_child_process_with_a_module_leaves_the_current_folder_out() -> None:
    """A child that is started with `-m` needs `-P` before it."""
    found: list[str] = []
    for path in (ROOT / "src").rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if re.search(r"""(?:executable|python), ['"]-m['"]""", line):
                found.append(f"{path.relative_to(ROOT)}:{number}")
    assert found == []
