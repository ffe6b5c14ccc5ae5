"""Run commands in processes of their own and capture their output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.simulator.store_consistency import inconsistencies

from everthread.adapters.sqlite.connection import connect


def everthread(home: Path, *arguments: str, answer: str | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "everthread", "--home", str(home), *arguments],
        capture_output=True,
        text=True,
        input=answer,
        timeout=19,
        check=False,
        **more,
    )


def printed(home: Path, *arguments: str) -> Any:
    done = everthread(home, *arguments, "--json", answer="")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("everthread: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


def problems(home: Path) -> list[str]:
    """Return the inconsistencies found in the store."""
    database = connect(str(home / "everthread.db"))
    try:
        return inconsistencies(database)
    finally:
        database.close()
