"""`everthread cron`: list, show, run, pause, resume and remove."""

from __future__ import annotations

import pytest
from tests.e2e.commands import everthread, printed, refused
from tests.e2e.gateway_process_fixture import GatewayProcessFixture, until

pytestmark = pytest.mark.timeout(120)


def test_a_task_is_added_shown_run_and_removed(core: GatewayProcessFixture) -> None:
    home = core.home
    added = everthread(home, "cron", "add", "0 8 * * 1-5", "Say hi", "--zone", "Europe/Berlin", "--to", "post:1")
    assert added.returncode == 0, added.stderr
    assert added.stdout.startswith("say-hi: next: ")
    assert added.stdout.endswith(" 08:00 Europe/Berlin\n")
    assert "gateway start" in added.stderr
    refused(everthread(home, "cron", "add", "@daily", "x", "--name", "say-hi"), 1, "choose another name")
    done = everthread(home, "cron", "run", "say-hi")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "when a gateway runs" in done.stderr
    (listed,) = printed(home, "cron", "list")
    assert (listed["last"]["state"], listed["to"], listed["missed"]) == ("done", "post:1", "once")
    gateway = core.run()
    until(lambda: len(core.out("1")) == 1, "what was done before is said")
    assert "gateway runs it" in everthread(home, "cron", "run", "say-hi").stdout
    until(lambda: len(core.out("1")) == 2, "the gateway does it")
    core.end(gateway)
    shown = everthread(home, "cron", "show", "say-hi").stdout
    assert shown.count("reply sent") == 2
    assert everthread(home, "cron", "pause", "say-hi").returncode == 0
    assert printed(home, "cron", "list")[0]["next"] is None
    assert "next: " in everthread(home, "cron", "resume", "say-hi").stdout
    assert printed(home, "cron", "remove", "say-hi")["removed"] is True
    refused(everthread(home, "cron", "show", "say-hi"), 1, "cron list")
