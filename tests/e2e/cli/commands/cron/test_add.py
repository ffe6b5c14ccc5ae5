"""`everthread cron add`: options that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.e2e.commands import everthread, printed, refused

pytestmark = pytest.mark.timeout(120)


def test_an_invalid_task_is_refused_in_one_line(tmp_path: Path) -> None:
    def add(*more: str) -> Any:
        return everthread(tmp_path, "cron", "add", "@daily", "x", *more)

    for spend in ("nan", "inf", "-1"):
        refused(add("--spend", spend), 2, "--spend")
    for owner in ("a" * 3000, "a\nb", " "):
        refused(add("--owner", owner), 2, "--owner")
    refused(add("--to", "https://me:geheim@h.example/x", "--secret-env", "S"), 2, "password")
    (tmp_path / "files").mkdir()
    refused(add("--to", "file:" + "x" * 300), 2, "is not a path")
    assert printed(tmp_path, "cron", "list") == []
