"""`everthread skills`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText

# --- The command -----------------------------------------------------------------------------------------------------


class Command:
    def __init__(self, folder: Path) -> None:
        self.home, self.work = folder / "home", folder / "work"
        self.work.mkdir()

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "EVERTHREAD_HOME": str(self.home)}
        return subprocess.run(
            [sys.executable, "-m", "everthread", "skills", *arguments],
            cwd=self.work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def everthread(tmp_path: Path) -> Command:
    return Command(tmp_path)


def test_a_skill_is_created_listed_shown_and_checked(everthread: Command) -> None:
    assert everthread("list").stdout == "No skills yet. Create one with everthread skills new NAME.\n"
    assert everthread("validate").stdout == "No skills yet.\n"
    begun = everthread("new", "tea", "-d", "How to make tea.")
    assert (begun.returncode, begun.stderr) == (0, "")
    assert f"Created {everthread.home}/skills/tea/SKILL.md" in begun.stdout
    SkillFolders(everthread.work / ".everthread/skills").write(SkillText("build", "How to build.", "Run make."))
    listed = json.loads(everthread("list", "--json").stdout)
    assert [(skill["name"], skill["from"]) for skill in listed["skills"]] == [("tea", "home"), ("build", "project")]
    lines = everthread("list").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["NAME", "FROM"], ["tea", "you"], ["build", "project"]]
    assert "description: " in everthread("show", "tea").stdout
    assert json.loads(everthread("show", "build", "--json").stdout)["text"].endswith("Run make.\n")
    assert everthread("validate").stdout == "2 skills checked, no problems.\n"
    assert json.loads(everthread("validate", "build", "--json").stdout) == {"ok": True, "checked": 1, "problems": []}


def test_problems_are_reported_with_their_line_and_an_exit_code(everthread: Command) -> None:
    (everthread.home / "skills/tea").mkdir(parents=True)
    file = everthread.home / "skills/tea/SKILL.md"
    file.write_text("---\nname: tea\n---\nBoil water.\n")
    problem = f"{file}:1: has no description: in its front matter"
    for arguments in (["validate"], ["validate", "tea"], ["validate", str(file.parent)]):
        wrong = everthread(*arguments)
        assert (wrong.returncode, wrong.stderr, wrong.stdout) == (1, problem + "\n", "")
    told = everthread("validate", "--json")
    assert (told.returncode, json.loads(told.stdout)) == (1, {"ok": False, "checked": 1, "problems": [problem]})
    assert f"unusable: {problem}" in everthread("list").stderr
    shown = everthread("show", "tea")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert problem in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("show", "coffee"), 1, "there is no skill 'coffee'"),
        (("validate", "coffee"), 1, "there is no skill 'coffee'"),
        (("new", "Tea Time"), 2, "is not a valid skill name"),
        (("new", "../tea"), 2, "is not a valid skill name"),
        (("show", "tea", "../../config.toml"), 2, "is not inside the skill"),
        (("new", "tea"), 1, "already exists"),
        (("new",), 2, "NAME"),
    ],
)
def test_invalid_requests_are_refused_in_one_line(
    everthread: Command, arguments: tuple[str, ...], code: int, said: str
) -> None:
    SkillFolders(everthread.home / "skills").write(SkillText("tea", "How to make tea.", "Boil water."))
    done = everthread(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
