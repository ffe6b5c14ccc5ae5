"""Virtual environments for the servers that tests start. Each server has its own, because their pins conflict."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2] / ".cache" / "servers"
INSTALL_S_MAX = 900


def environment(name: str, wanted: Sequence[str]) -> Path:
    """Return the folder of an environment with the packages. The first caller creates it."""
    place = ROOT / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = place / ".ready"
        if not ready.exists() or ready.read_text() != " ".join(wanted):
            _make(place, wanted)
            ready.write_text(" ".join(wanted))
    return place


def _make(place: Path, wanted: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True, timeout=INSTALL_S_MAX)
    python = place / "bin" / "python"
    quickly = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", python, *wanted]
    slowly = [python, "-m", "pip", "install", "-q", *wanted]
    # uv ignores pip's settings (mirrors, certificates). If uv fails, use pip.
    if subprocess.run(["nice", "-n", "10", *quickly], check=False, timeout=INSTALL_S_MAX).returncode:
        subprocess.run(["nice", "-n", "10", *slowly], check=True, timeout=INSTALL_S_MAX)
