"""`everthread send`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.commands import everthread, printed, refused
from tests.e2e.gateway_process_fixture import GatewayProcessFixture, until

pytestmark = pytest.mark.timeout(120)


def test_a_message_is_sent_by_the_running_gateway(core: GatewayProcessFixture) -> None:
    gateway = core.run()
    sent = everthread(core.home, "send", "post:7", "The backup is done.", "--wait", "15")
    assert (sent.returncode, sent.stdout) == (0, "Sent.\n"), sent.stderr
    assert core.out("7") == ["The backup is done."]
    piped = everthread(core.home, "send", "post:7", "--wait", "15", answer="one\ntwo\n")
    assert piped.returncode == 0
    assert core.out("7")[1:] == ["one\ntwo"]
    assert core.end(gateway)[0] == 0


def test_without_a_gateway_a_message_is_queued_and_sent_once_later(core: GatewayProcessFixture) -> None:
    queued = printed(core.home, "send", "post:7", "hello")
    assert (queued["state"], queued["gateway"]) == ("ready", False)
    assert everthread(core.home, "send", "post:7", "still", "--wait", "0.2").returncode == 75
    for _ in range(2):
        core.end(core.run())
    until(lambda: len(core.out("7")) >= 2, "both are sent")
    assert core.out("7") == ["hello", "still"]


def test_a_file_is_sent_as_text_if_the_platform_has_no_files(core: GatewayProcessFixture, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("milk\neggs")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\x00")
    core.run()
    sent = everthread(core.home, "send", "post:7", "The list:", "--file", str(tmp_path / "list.txt"), "--wait", "15")
    assert sent.returncode == 0, sent.stderr
    assert core.out("7") == ["The list:\n\nmilk\neggs"]
    refused(
        everthread(core.home, "send", "post:7", "--file", str(tmp_path / "picture.png"), "--wait", "15"), 1, "doctor"
    )
    assert "picture.png is not text" in everthread(core.home, "doctor", "--offline").stdout


def test_an_unknown_address_is_refused(core: GatewayProcessFixture) -> None:
    refused(everthread(core.home, "send", "nowhere:7", "hello"), 2, "configured: post")
    refused(everthread(core.home, "send", "post", "hello"), 2, "PLATFORM:CHAT")
    refused(everthread(core.home, "send", "post:7", answer=" \n"), 2, "the message is empty")
    refused(everthread(core.home, "send", "post:7", "x" * 100_001), 2, "--file")
