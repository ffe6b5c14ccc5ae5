"""`everthread gateway install`: the systemd unit."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from everthread.cli.commands.gateway import systemd
from everthread.config.schema import GatewaySettings, Settings

SCRIPT = """#!/bin/sh
echo "$*" >> "$ASKED"
case "$2" in
  is-active) echo "${ACTIVE:-inactive}";;
esac
exit ${CODE:-0}
"""


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "my home"
        self.unit = folder / "config" / "systemd" / "user" / "everthread-gateway.service"
        (folder / "bin").mkdir()
        script = folder / "bin" / "systemctl"
        script.write_text(SCRIPT)
        script.chmod(0o755)

    def asked(self) -> list[str]:
        file = self.folder / "asked"
        return file.read_text().splitlines() if file.exists() else []

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        usual = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "ASKED": str(self.folder / "asked"),
        }
        command = [sys.executable, "-m", "everthread", "--home", str(self.home), "gateway", *arguments]
        env = {**inherited, **usual, **env}
        return subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env, timeout=30, check=False
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_install_writes_and_enables_the_unit(machine: Machine) -> None:
    done = machine.run("install")
    assert done.returncode == 0, done.stderr
    assert "everthread gateway start" in done.stdout
    text = machine.unit.read_text()
    assert machine.unit.stat().st_mode & 0o777 == 0o600
    started = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    words = [sys.executable, "-P", "-m", "everthread", "--home", str(machine.home), "gateway", "run"]
    assert shlex.split(started.removeprefix("ExecStart=")) == words
    for line in (
        "Type=notify",
        "Restart=on-failure",
        "RestartPreventExitStatus=78",
        "TimeoutStopSec=8",
        "WantedBy=default.target",
    ):
        assert line in text.splitlines()
    assert machine.asked()[-2:] == ["--user daemon-reload", "--user enable everthread-gateway.service"]


def test_install_print_writes_nothing(machine: Machine) -> None:
    shown = machine.run("install", "--print")
    assert (shown.returncode, machine.unit.exists(), machine.asked()) == (0, False, [])
    assert shown.stdout.startswith("[Unit]\n")
    told = json.loads(machine.run("install", "--print", "--json").stdout)
    assert (told["unit"], told["written"], told["file"]) == (shown.stdout, False, str(machine.unit))


def test_install_system_prints_the_commands(machine: Machine) -> None:
    shown = machine.run("install", "--system")
    assert shown.returncode == 0
    assert "sudo systemctl enable --now everthread-gateway.service" in shown.stdout
    assert "\nUser=" in shown.stdout
    assert "WantedBy=multi-user.target" in shown.stdout
    assert not machine.unit.exists()


@pytest.mark.parametrize("env", [{"CODE": "1"}, {"PATH": "/nonexistent"}], ids=["no bus", "no systemctl"])
def test_without_systemd_install_fails_in_one_line(machine: Machine, env: dict[str, str]) -> None:
    done = machine.run("install", **env)
    assert done.returncode == 1
    assert "systemd" in done.stderr
    assert "everthread gateway start" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not machine.unit.exists()


def test_the_unit_of_another_home_is_not_replaced(machine: Machine) -> None:
    assert machine.run("install").returncode == 0
    before = machine.unit.read_text()
    machine.home = machine.folder / "other"
    done = machine.run("install")
    assert done.returncode == 1
    assert "my home" in done.stderr
    assert machine.unit.read_text() == before
    done = machine.run("stop", ACTIVE="active")
    assert (done.returncode, "stop everthread-gateway.service" in " ".join(machine.asked())) == (1, False)


def test_stop_uses_systemd_if_it_runs_the_gateway(machine: Machine) -> None:
    assert machine.run("install").returncode == 0
    assert machine.run("stop").returncode == 1, "stop must fail while no gateway runs"
    assert machine.run("stop", ACTIVE="active").returncode == 0
    assert machine.asked()[-1] == "--user stop everthread-gateway.service"


def test_special_characters_of_systemd_are_escaped() -> None:
    home = Path('/srv/50% $off "now"\\x')
    text = systemd.unit(Settings(home, gateway=GatewaySettings(drain_s=30.5)))
    assert '--home "/srv/50%% $$off \\"now\\"\\\\x" gateway run' in text
    assert "TimeoutStopSec=33.5" in text


def test_the_unit_uses_configuration_files_outside_the_home() -> None:
    settings = Settings(Path("/d/everthread"), Path("/c/everthread/config.toml"), Path("/c/everthread/.env"))
    text = systemd.unit(settings)
    assert "--home" not in text
    assert "Environment=XDG_CONFIG_HOME=/c\nEnvironment=XDG_DATA_HOME=/d\n" in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd to ask")
@pytest.mark.parametrize("user", ["", "root"])
def test_systemd_accepts_the_unit(tmp_path: Path, user: str) -> None:
    home = tmp_path / "a home"
    home.mkdir()
    written = tmp_path / systemd.NAME
    for text, is_right in (
        (systemd.unit(Settings(home), user), True),
        (systemd.unit(Settings(home), user).replace("WatchdogSec", "WatchDogs"), False),
    ):
        written.write_text(text)
        verify = ["systemd-analyze", "verify", "--man=no", str(written)]
        found = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False)
        # systemd-analyze may also report problems of other units.
        about_it = [line for line in found.stderr.splitlines() if systemd.NAME in line]
        assert (not about_it) == is_right, found.stderr
