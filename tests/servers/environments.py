"""Virtual environments of the real back ends, made when a test first wants them, and kept in `.cache/servers`."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2] / ".cache" / "servers"


def environment(name: str, wanted: Sequence[str]) -> Path:
    """The folder of one that has these packages. Tests that run side by side wait for the one that installs."""
    place = ROOT / name
    ROOT.mkdir(parents=True, exist_ok=True)
    with (ROOT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = place / ".ready"
        if not ready.exists() or ready.read_text() != " ".join(wanted):
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
            command = [place / "bin" / "python", "-m", "pip", "install", "-q", *wanted]
            subprocess.run(["nice", "-n", "10", *command], check=True)
            ready.write_text(" ".join(wanted))
    return place
