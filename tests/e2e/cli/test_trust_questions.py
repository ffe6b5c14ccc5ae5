"""Approval of plugins and project skills: asked once in a terminal, and never assumed without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.chat_home import Terminal
from tests.terminal_screen import CTRL_D

from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

PLUGIN = "import pathlib\n\npathlib.Path(__file__).with_suffix('.ran').touch()\n"


class Machine:
    """A home with a model, a cloned project with a skill, and a package with a plugin."""

    def __init__(self, folder: Path, base_url: str) -> None:
        self.home, self.work, self.site = folder / "home", folder / "work", folder / "site"
        for each in (self.home, self.work, self.site):
            each.mkdir(mode=0o700)
        (self.home / "config.toml").write_text(f'model = "mine/one"\n[providers.mine]\nbase_url = "{base_url}"\n')

    def add_skill(self, body: str = "Run make.") -> None:
        SkillFolders(self.work / ".everthread/skills").write(SkillText("build", "How to \x1b[2Jbuild.", body))

    def install(self, version: str = "1.0") -> None:
        for old in self.site.glob("*.dist-info/*"):
            old.unlink()
        for old in self.site.glob("*.dist-info"):
            old.rmdir()
        info = self.site / f"diary-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: diary\nVersion: {version}\n")
        (info / "entry_points.txt").write_text("[everthread.plugins]\ndiary = diary\n")
        (self.site / "diary.py").write_text(PLUGIN)

    @property
    def plugin_ran(self) -> bool:
        return (self.site / "diary.ran").exists()

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERTHREAD_")}
        return kept | {"TERM": "dumb", "PYTHONPATH": str(self.site)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "everthread", "--home", str(self.home), *arguments]
        done = subprocess.run(
            command,
            cwd=self.work,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=18,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done

    @contextmanager
    def chat(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
        with monkeypatch.context() as patch:
            patch.chdir(self.work)
            patch.setenv("PYTHONPATH", str(self.site))
            terminal = Terminal([sys.executable, "-m", "everthread", "--home", str(self.home)])
        try:
            yield terminal
        finally:
            terminal.close()


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(lambda request: Say("ok")).in_thread() as server:
        yield server


@pytest.fixture
def machine(tmp_path: Path, model: ModelServer) -> Machine:
    return Machine(tmp_path, model.base_url)


def prompt(model: ModelServer) -> bytes:
    """Return the last request of a conversation. Others ask for a title."""
    return [body for body in model.requests if b"Name th" not in body][-1]


def leave(terminal: Terminal) -> None:
    terminal.expect("> ")
    terminal.type(CTRL_D)
    assert terminal.ended() == 0


def test_a_plugin_is_loaded_only_after_the_user_has_agreed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.install()
    with machine.chat(monkeypatch) as terminal:
        terminal.expect("The installed package diary 1.0 has a plugin for Everthread, not approved yet:")
        terminal.expect(f"file  {machine.site}/diary.py")
        terminal.expect(r"Load it\? \[y/N\]")
        assert not machine.plugin_ran
        terminal.type("y\n")
        leave(terminal)
    assert machine.plugin_ran
    with machine.chat(monkeypatch) as terminal:
        leave(terminal)
    assert "Load it?" not in terminal.seen
    machine.install("1.1")
    with machine.chat(monkeypatch) as terminal:
        terminal.expect("diary 1.1 has a plugin for Everthread, changed since it was approved or refused")
        terminal.type("n\n")
        leave(terminal)
    assert json.loads(machine.run("plugins", "list", "--json").stdout)["plugins"][0]["state"] == "refused"


def test_an_installed_package_cannot_run_its_plugin_without_an_answer(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install()
    with machine.chat(monkeypatch) as terminal:
        terminal.expect("Load it")
        terminal.type("\n")
        leave(terminal)
    with machine.chat(monkeypatch) as terminal:
        leave(terminal)
    assert "Load it" not in terminal.seen
    done = machine.run("-p", "hello")
    assert (done.stdout, "not loaded" in done.stderr) == ("ok\n", False)
    assert not machine.plugin_ran


def test_a_package_cannot_run_its_plugin_where_nobody_can_be_asked(machine: Machine) -> None:
    machine.install()
    done = machine.run("-p", "hello")
    assert done.stdout == "ok\n"
    expected = (
        "plugin diary of diary 1.0 is not loaded: not approved yet. To change that: everthread plugins allow diary, or "
        'in config.toml: [plugins] allow = ["diary"]'
    )
    assert expected in done.stderr
    for verb in (
        ("sessions", "list"),
        ("memory", "list"),
        ("setup", "local", "--help"),
        ("plugins", "list"),
        ("doctor",),
    ):
        machine.run(*verb)
    assert not machine.plugin_ran
    with (machine.home / "config.toml").open("a") as file:
        file.write('[plugins]\nallow = ["diary"]\n')
    assert "diary" not in machine.run("-p", "hello").stderr
    assert machine.plugin_ran


def test_a_plugin_is_approved_and_refused_by_a_command(machine: Machine) -> None:
    machine.install()
    listed = machine.run("plugins", "list").stdout.splitlines()
    assert [line.split()[:4] for line in listed] == [
        ["NAME", "STATE", "PACKAGE", "FILE"],
        ["diary", "not", "approved", "yet"],
    ]
    assert machine.run("plugins", "allow", "diary").stdout == "Approved the plugin diary of diary 1.0.\n"
    assert "diary" not in machine.run("-p", "hello").stderr
    assert machine.plugin_ran
    refused = json.loads(machine.run("plugins", "refuse", "diary", "--json").stdout)
    assert (refused["name"], refused["state"]) == ("diary", "refused")
    unknown = machine.run("plugins", "allow", "nowhere")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no installed package has a plugin 'nowhere'" in unknown.stderr
    with (machine.home / "config.toml").open("a") as file:
        file.write('[plugins]\nallow = ["diary"]\n')
    kept = machine.run("plugins", "refuse", "diary")
    assert (kept.returncode, "remove it there" in kept.stderr) == (2, True)


def test_doctor_lists_what_an_existing_configuration_loses(machine: Machine) -> None:
    machine.install()
    machine.add_skill()
    checks = {each["check"]: each for each in json.loads(machine.run("doctor", "--offline", "--json").stdout)["checks"]}
    assert (checks["plugins"]["well"], checks["skills"]["well"]) == (False, False)
    assert "plugin diary of diary 1.0 is not loaded" in checks["plugins"]["says"]
    assert "everthread plugins allow diary" in checks["plugins"]["fix"]
    assert f"{machine.work}/.everthread/skills are not used: not approved yet" in checks["skills"]["says"]
    assert "everthread skills trust" in checks["skills"]["fix"]
    machine.run("plugins", "allow", "diary")
    machine.run("skills", "trust")
    checks = {each["check"]: each for each in json.loads(machine.run("doctor", "--offline", "--json").stdout)["checks"]}
    assert (checks["plugins"]["well"], checks["skills"]["well"]) == (True, True)
    (machine.home / "trust.json").chmod(0o666)
    checks = {each["check"]: each for each in json.loads(machine.run("doctor", "--offline", "--json").stdout)["checks"]}
    assert "others can write to it; nothing is approved" in checks["plugins"]["says"]
    assert checks["plugins"]["fix"].startswith("Run: chmod 600 ")


def test_a_cloned_project_cannot_instruct_the_agent_where_nobody_can_be_asked(
    machine: Machine, model: ModelServer
) -> None:
    machine.add_skill()
    done = machine.run("-p", "hello")
    assert done.stdout == "ok\n"
    assert "these skills are not approved, so they are not used" in done.stderr
    assert not any(b"build" in body for body in model.requests)
    shown = machine.run("skills", "list")
    assert "The project's skills are not used: not approved yet." in shown.stderr
    assert machine.run("skills", "trust").stdout == f"Approved 1 skill in {machine.work}/.everthread/skills: build\n"
    assert machine.run("-p", "hello").stderr == ""
    assert b"build (project)" in prompt(model)
    machine.add_skill("Run evil.")
    changed = machine.run("-p", "hello")
    assert "was added or changed since the project's skills were approved" in changed.stderr
    assert b"build (project)" not in prompt(model)
    assert json.loads(machine.run("skills", "list", "--json").stdout)["project"] == "changed"
    assert "Forgot the decision" in machine.run("skills", "trust", "--revoke").stdout


def test_a_chat_asks_about_a_folder_once_and_again_after_a_change(
    machine: Machine, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.add_skill()
    with machine.chat(monkeypatch) as terminal:
        terminal.expect(f"This folder has skills, not approved yet: {machine.work}/.everthread/skills")
        terminal.expect(r"build: How to \[2Jbuild\.")
        terminal.expect(r"Use them\? \[y/N\]")
        terminal.type("n\n")
        leave(terminal)
    assert "\x1b[2J" not in terminal.seen
    with machine.chat(monkeypatch) as terminal:
        leave(terminal)
    assert "Use them" not in terminal.seen
    assert machine.run("-p", "hello").stderr == ""
    assert not any(b"build" in body for body in model.requests)
    machine.add_skill("Run make twice.")
    with machine.chat(monkeypatch) as terminal:
        terminal.expect("changed since it was approved or refused")
        terminal.type("y\n")
        leave(terminal)
    machine.run("-p", "hello")
    assert b"build (project)" in prompt(model)


def test_a_folder_that_changes_while_the_question_is_open_is_not_approved_as_changed(
    machine: Machine, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.add_skill()
    place = machine.work / ".everthread" / "skills"
    (place / "build" / "run.md").write_text("Run it.")
    (place / "notes.md").write_text("No skill.")
    with machine.chat(monkeypatch) as terminal:
        # Two more: the lock and the log of the helper that wrote the skill.
        terminal.expect("and 4 other files")
        terminal.expect(r"Use them\? \[y/N\]")
        machine.add_skill("Run evil.")
        terminal.type("y\n")
        leave(terminal)
    changed = machine.run("-p", "hello")
    assert "was added or changed since the project's skills were approved" in changed.stderr
    assert b"build (project)" not in prompt(model)


def test_a_folder_without_skills_cannot_be_approved(machine: Machine) -> None:
    done = machine.run("skills", "trust")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there are no skills in .everthread/skills of this folder" in done.stderr
