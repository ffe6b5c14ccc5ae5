"""`everthread tokens`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.used_home import everthread

from everthread.domain.api_key import is_token


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


def test_an_invalid_name_or_home_is_refused(tmp_path: Path) -> None:
    assert everthread("tokens", "new", "../x", home=tmp_path).returncode == 2
    nothing = everthread("tokens", "revoke", "x", home=tmp_path / "none")
    assert (nothing.returncode, "Traceback" in nothing.stderr) == (1, False)
    assert "No tokens yet" in everthread("tokens", "list", home=tmp_path / "none").stdout
