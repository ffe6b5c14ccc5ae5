"""`everthread gateway start`, `stop` and `restart`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.gateway_process_fixture import GatewayProcessFixture


def test_stop_signals_no_process_of_another_container(core: GatewayProcessFixture) -> None:
    first = core.run()
    file = core.home / "gateway.lock"
    said = json.loads(file.read_bytes())
    with file.open("r+") as opened:
        opened.write(json.dumps({**said, "namespace": "pid:[1]"}))
    stopped = core.ask("stop")
    assert stopped.returncode == 75
    assert "another container" in stopped.stderr
    assert first.poll() is None


def test_stop_stops_a_gateway_started_elsewhere(core: GatewayProcessFixture) -> None:
    process = core.run()
    stopped = core.ask("stop", "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)) == (0, {"running": False, "pid": process.pid})
    assert process.wait(5) == 0
    again = core.ask("stop")
    assert again.returncode == 1
    assert "no gateway is running for this home" in again.stderr


def is_at_work(pid: int, home: Path) -> bool:
    """Check that the process `pid` is the gateway of this home, not a reused pid or a zombie."""
    try:
        return str(home).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_start_restart_and_stop_without_systemd(tmp_path: Path, url: str) -> None:
    core = GatewayProcessFixture(tmp_path / "home", url)
    config = core.home / "config.toml"
    config.write_text(config.read_text().replace("[platforms.post]\nallow_all = true\n", ""))
    pids: list[int] = []
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    try:
        for verb in ("start", "restart"):
            done = core.ask(verb, "--json", env=env)
            assert done.returncode == 0, done.stderr
            pids.append(json.loads(done.stdout)["pid"])
            assert is_at_work(pids[-1], core.home)
        assert pids[0] != pids[1]
        assert core.ask("start", env=env).returncode == 75
        assert core.ask("stop", env=env).returncode == 0
        assert not is_at_work(pids[0], core.home)
        assert (core.home / "logs" / "gateway.out").stat().st_mode & 0o777 == 0o600
    finally:
        core.ask("stop", env=env)


def test_a_failed_start_prints_the_reason_and_its_exit_code(core: GatewayProcessFixture) -> None:
    """The platform kind is unknown to the started gateway."""
    done = core.ask("start")
    assert done.returncode == 78
    assert "unknown kind of platform 'post'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert core.ask("status").returncode == 1
