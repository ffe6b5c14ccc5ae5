"""`everthread gateway status`."""

from __future__ import annotations

import json

from tests.e2e.cli.commands.gateway.gateway_home import answered
from tests.e2e.gateway_process_fixture import GatewayProcessFixture, until

# --- Status ----------------------------------------------------------------------------------------------------------


def test_status_prints_the_work_of_the_gateway(core: GatewayProcessFixture) -> None:
    before = core.ask("status", "--json")
    assert (before.returncode, json.loads(before.stdout)["running"]) == (1, False)
    process = core.run()
    core.say("hello")
    answered(core)
    until(lambda: json.loads((core.home / "gateway.json").read_text())["answered"] == 1, "reported")
    status = core.ask("status", "--json")
    told = json.loads(status.stdout)
    assert status.returncode == 0
    assert {"running": True, "pid": process.pid, "port": None, "draining": False}.items() <= told.items()
    assert {"taken": 1, "answered": 1, "turned_away": 0, "running_turns": 0}.items() <= told.items()
    assert {"replies_waiting": 0, "replies_ambiguous": 0, "replies_failed": 0, "journal_lag": 0}.items() <= told.items()
    assert told["loop_stall_ms_max"] >= 0
    assert told["since"].endswith("Z")
    words = core.ask("status").stdout
    assert f"The gateway is running (process {process.pid}, since" in words
    assert "1 received, 1 answered" in words
