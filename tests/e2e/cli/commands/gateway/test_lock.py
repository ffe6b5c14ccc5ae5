"""One gateway per home, as processes. The lock itself is tested in tests/unit."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.e2e.gateway_process_fixture import GatewayProcessFixture

# --- One gateway per home (S27) --------------------------------------------------------------------------------------


def test_s27_a_second_gateway_is_refused_while_the_first_runs(core: GatewayProcessFixture) -> None:
    first = core.run()
    second = core.run(up=False)
    said, wrong = second.communicate(timeout=15)
    assert second.returncode == 75
    assert said == ""
    assert f"process {first.pid}, since" in wrong
    assert "everthread gateway stop" in wrong
    assert wrong.count("\n") == 1
    assert core.end(first)[0] == 0
    assert core.end(core.run())[0] == 0


def test_s27_a_stale_lock_file_of_a_living_process_does_not_block(core: GatewayProcessFixture) -> None:
    """The gateway was killed, and another process has its pid."""
    first = core.run()
    first.kill()
    first.wait()
    file = core.home / "gateway.lock"
    left = json.loads(file.read_bytes())
    assert left["pid"] == first.pid
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        file.write_text(json.dumps({**left, "pid": stranger.pid}))
        assert core.ask("status").returncode == 1
        stopped = core.ask("stop")
        assert (stopped.returncode, stopped.stdout) == (1, "")
        assert stranger.poll() is None, "the process with the reused pid must not be signalled"
        assert core.end(core.run())[0] == 0
        assert stranger.poll() is None
        stranger.kill()


def test_s27_a_running_gateway_in_another_namespace_blocks(core: GatewayProcessFixture) -> None:
    """The pid in the lock file is invalid or invisible, but the lock is held."""
    first = core.run()
    file = core.home / "gateway.lock"
    said = json.loads(file.read_bytes())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for content in (json.dumps({**said, "pid": gone.pid}), "", "{half", "[]"):
        with file.open("r+") as opened:
            opened.truncate()
            opened.write(content)
        second = core.run(up=False)
        assert "already running for this home" in second.communicate(timeout=15)[1]
        assert second.returncode == 75
    assert core.end(first)[0] == 0


def test_the_files_of_a_gateway_are_private(core: GatewayProcessFixture) -> None:
    core.run()
    for name in ("gateway.lock", "gateway.json"):
        assert (core.home / name).stat().st_mode & 0o777 == 0o600


def test_reading_the_lock_does_not_prevent_a_start(core: GatewayProcessFixture) -> None:
    (core.home / "gateway.lock").touch(mode=0o600)
    look = (
        "import sys, pathlib, everthread.cli.commands.gateway.lock as lock\n"
        "while True: lock.read_lock(pathlib.Path(sys.argv[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", look, str(core.home)]) as looking:
        assert core.end(core.run())[0] == 0
        looking.kill()
