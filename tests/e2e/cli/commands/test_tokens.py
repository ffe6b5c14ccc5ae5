"""`everthread tokens`."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import secrets
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests.e2e.used_home import everthread

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.api_key import BYTES, is_token, make_token
from everthread.lifecycle.local_token import LocalToken

T = TypeVar("T")


def on_terminal(*arguments: str, home: Path) -> tuple[int, str]:
    """Run a command whose stdout is a terminal. Return its exit code and output."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "everthread", "--home", str(home), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    output = b""
    while True:
        try:
            part = os.read(leader, 1000)
        except OSError:
            break
        if not part:
            break
        output += part
    os.close(leader)
    return process.wait(15), output.decode()


def in_home(home: Path, work: Callable[[Runtime, LocalToken], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Runtime(Settings(home)) as runtime:
            local = LocalToken(runtime.store, runtime.clock, runtime.settings.local_token_path)
            return await work(runtime, local)

    return asyncio.run(run())


def start_gateway_once(home: Path) -> str:
    """Create the automatic token as the first start of a gateway does. Return its text."""
    token = make_token(secrets.token_urlsafe(BYTES))
    home.mkdir(mode=0o700)
    assert in_home(home, lambda _, local: local.create_first(token, "me"))
    return token


def test_a_token_is_printed_once_and_not_stored(tmp_path: Path) -> None:
    home = tmp_path / "home"
    made = everthread("tokens", "new", "laptop", home=home)
    token = made.stdout.strip()
    assert (made.returncode, is_token(token)) == (0, True)
    again = everthread("tokens", "new", "laptop", home=home)
    assert (again.returncode, "revoke" in again.stderr) == (1, True)
    other = json.loads(everthread("tokens", "new", "laptop", "--owner", "anna", "--json", home=home).stdout)
    assert (other["owner"], is_token(other["token"])) == ("anna", True)
    listed = json.loads(everthread("tokens", "list", "--json", home=home).stdout)
    assert [(one["owner"], one["name"], one["last_used"]) for one in listed] == [
        ("anna", "laptop", None),
        ("me", "laptop", None),
    ]
    kept = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert token.encode() not in kept
    assert everthread("tokens", "revoke", "laptop", home=home).returncode == 0
    assert everthread("tokens", "revoke", "laptop", home=home).returncode == 1
    assert "anna" in everthread("tokens", "list", home=home).stdout


def test_a_token_can_expire_and_be_read_only(tmp_path: Path) -> None:
    made = everthread("tokens", "new", "monitor", "--expires", "30d", "--read-only", "--json", home=tmp_path)
    printed = json.loads(made.stdout)
    (listed,) = json.loads(everthread("tokens", "list", "--json", home=tmp_path).stdout)
    assert (printed["read_only"], printed["expires"]) == (True, listed["expires"])
    assert (listed["read_only"], listed["valid"], listed["automatic"]) == (True, True, False)
    (key,) = in_home(tmp_path, lambda runtime, _: runtime.store.read(lambda uow: uow.api_keys.all()))
    assert key.expires_at == pytest.approx(key.at + 30 * 86_400)
    text = everthread("tokens", "list", home=tmp_path).stdout
    assert "read-only" in text
    assert everthread("tokens", "new", "other", "--expires", "soon", home=tmp_path).returncode == 2
    assert "at most 10y" in everthread("tokens", "new", "other", "--expires", "11y", home=tmp_path).stderr


def test_the_automatic_token_is_shown_on_a_terminal_only(tmp_path: Path) -> None:
    home = tmp_path / "home"
    token = start_gateway_once(home)
    assert on_terminal("tokens", "show", home=home) == (0, f"{token}\r\n")
    for arguments in (("tokens", "show"), ("tokens", "show", "--json")):
        piped = everthread(*arguments, home=home)
        assert (piped.returncode, piped.stdout) == (2, "")
        assert "terminal only" in piped.stderr
        assert "everthread tokens new NAME" in piped.stderr
    code, output = on_terminal("tokens", "show", "--json", home=home)
    assert (code, token in output) == (2, False)


def test_a_home_without_the_text_of_its_automatic_token_says_what_to_do(tmp_path: Path) -> None:
    home = tmp_path / "home"
    start_gateway_once(home)
    (home / "local.token").unlink()
    code, output = on_terminal("tokens", "show", home=home)
    assert code == 1
    assert "its text is not in this home" in output
    assert "everthread tokens new NAME" in " ".join(output.split())
    assert "everthread tokens revoke local" in " ".join(output.split())


def test_a_revoked_automatic_token_is_neither_kept_nor_made_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    token = start_gateway_once(home)
    revoked = everthread("tokens", "revoke", "local", home=home)
    assert revoked.returncode == 0
    assert "every request is refused" in revoked.stdout
    assert not (home / "local.token").exists()
    code, output = on_terminal("tokens", "show", home=home)
    assert (code, token in output, "everthread tokens new NAME" in output) == (1, False, True)
    assert not in_home(home, lambda _, local: local.create_first(token, "me"))


def test_revoking_one_of_two_tokens_does_not_claim_that_the_door_is_locked(tmp_path: Path) -> None:
    everthread("tokens", "new", "one", home=tmp_path)
    everthread("tokens", "new", "two", home=tmp_path)
    assert not json.loads(everthread("tokens", "revoke", "one", "--json", home=tmp_path).stdout)["locked"]
    assert json.loads(everthread("tokens", "revoke", "two", "--json", home=tmp_path).stdout)["locked"]


def test_the_text_of_another_stores_token_is_not_shown(tmp_path: Path) -> None:
    home = tmp_path / "home"
    everthread("tokens", "new", "laptop", home=home)
    (home / "local.token").write_text(make_token("x" * 43))
    code, output = on_terminal("tokens", "show", home=home)
    assert (code, "x" * 43 in output) == (1, False)


def test_a_backup_does_not_contain_the_token(tmp_path: Path) -> None:
    home = tmp_path / "home"
    token = start_gateway_once(home)
    assert everthread("backup", str(tmp_path / "backup.tar.gz"), home=home).returncode == 0
    restored = tmp_path / "restored"
    assert everthread("restore", str(tmp_path / "backup.tar.gz"), home=restored).returncode == 0
    assert not (restored / "local.token").exists()
    assert token.encode() not in b"".join(path.read_bytes() for path in restored.rglob("*") if path.is_file())


def test_an_invalid_name_or_home_is_refused(tmp_path: Path) -> None:
    assert everthread("tokens", "new", "../x", home=tmp_path).returncode == 2
    nothing = everthread("tokens", "revoke", "x", home=tmp_path / "none")
    assert (nothing.returncode, "Traceback" in nothing.stderr) == (1, False)
    assert "No tokens" in everthread("tokens", "list", home=tmp_path / "none").stdout
    code, output = on_terminal("tokens", "show", home=tmp_path / "none")
    assert (code, "start a gateway" in output) == (1, True)
