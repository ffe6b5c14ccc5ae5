"""`everthread pairing`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.gateway.test_pairing import shown
from tests.e2e.used_home import assert_one_line, everthread, printed
from tests.gateway import gateway_fixture
from tests.runtime import until

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import PlatformAccount, Settings
from everthread.domain.model import SessionKey
from everthread.gateway import server as serving
from everthread.lifecycle.pairing import APPROVED_TEXT, Pairings
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

CODE = "K7WM3XQP"


DM = SessionKey.parse("agent:main:telegram:dm:7")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Home with one pending pairing, with the code `CODE`."""

    async def live() -> None:
        async with Runtime(Settings(tmp_path / "home")) as runtime:
            pairings = Pairings(runtime.store, runtime.clock)
            pairing = await pairings.offer("telegram", "7", "Bea\x1b[2J", CODE)
            assert pairing is not None
            await pairings.mark_sent(pairing, DM, "1")

    asyncio.run(live())
    return tmp_path / "home"


def test_a_code_is_approved_listed_and_revoked(home: Path) -> None:
    waiting = printed("pairing", "list", home=home)
    assert [one["account"] for one in waiting["waiting"]] == ["telegram:7"]
    assert waiting["guests"] == []
    listed = everthread("pairing", "list", home=home).stdout
    assert "telegram:7" in listed
    assert "\x1b" not in listed
    assert CODE not in listed
    done = everthread("pairing", "approve", CODE.lower(), home=home)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("telegram:7 (Bea")
    assert done.stdout.endswith("may write now, as telegram:7.\n")
    known = printed("pairing", "list", home=home)
    assert known["waiting"] == []
    assert [(one["account"], one["owner"]) for one in known["guests"]] == [("telegram:7", "telegram:7")]
    assert "telegram:7" in everthread("pairing", "list", home=home).stdout
    assert printed("pairing", "revoke", "telegram:7", home=home) == {"account": "telegram:7", "still_allowed": False}
    assert_one_line(everthread("pairing", "revoke", "telegram:7", home=home), 1, "no approved account", "pairing list")
    assert "No pending codes" in everthread("pairing", "list", home=home).stdout


def test_an_account_can_be_linked_to_the_owner(home: Path) -> None:
    assert printed("pairing", "approve", CODE, "--owner", "me", home=home)["owner"] == "me"
    assert "Access revoked for: telegram:7." in everthread("forget", "--owner", "me", "--yes", home=home).stdout
    assert printed("pairing", "list", home=home) == {"waiting": [], "guests": []}


def test_wrong_codes_are_refused_and_then_locked_out(home: Path) -> None:
    for _ in range(4):
        assert_one_line(everthread("pairing", "approve", "WRONG", home=home), 1, "no user has that code")
    for code in ("WRONG", CODE):
        assert_one_line(everthread("pairing", "approve", code, home=home), 75, "too many wrong codes", "60 minutes")


def test_revoking_an_account_named_in_the_settings_is_reported(home: Path) -> None:
    everthread("pairing", "approve", CODE, home=home)
    (home / "config.toml").write_text('[platforms.telegram]\nallow = ["7"]\n')
    done = everthread("pairing", "revoke", "telegram:7", home=home)
    assert (done.returncode, done.stderr) == (0, "")
    assert "[platforms.telegram]" in done.stdout
    assert_one_line(everthread("pairing", "revoke", "telegram:7", home=home), 1, "[platforms.telegram]")


@pytest.mark.parametrize(
    "arguments",
    [["approve"], ["revoke"], ["revoke", "telegram"], ["approve", CODE, "--owner", "group:x"], ["nothing"]],
)
def test_wrong_usage_is_one_line(arguments: list[str], home: Path) -> None:
    assert_one_line(everthread("pairing", *arguments, home=home), 2)


def test_a_missing_home_is_not_created(tmp_path: Path) -> None:
    home = tmp_path / "not"
    assert printed("pairing", "list", home=home) == {"waiting": [], "guests": []}
    for arguments in (["approve", CODE], ["revoke", "telegram:7"]):
        assert_one_line(everthread("pairing", *arguments, home=home), 1, str(home))
    assert not home.exists()


async def test_a_gateway_notifies_a_guest_approved_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "SWEEP_S", 0.1)
    account = PlatformAccount("fake", allow=("bert",))

    def approve(code: str) -> Any:
        return everthread("pairing", "approve", code, home=tmp_path)

    async with (
        ModelServer(lambda _: Say("Hello Anna.")) as model,
        gateway_fixture(tmp_path, model, account=account) as fixture,
    ):
        code = await shown(fixture)
        done = await asyncio.to_thread(approve, code)
        assert done.returncode == 0, done.stderr
        await until(lambda: fixture.platform.texts()[1:] == [APPROVED_TEXT])
        fixture.platform.say("hello")
        await until(lambda: fixture.platform.texts()[2:] == ["Hello Anna."])
