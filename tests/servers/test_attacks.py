"""Every attack of `make attack`, on a real gateway with a real nginx in front."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTEMPTS_MIN = 2000
RUN_S_MAX = 1500


@pytest.mark.server
@pytest.mark.timeout(RUN_S_MAX + 60)
def test_no_attack_succeeds():
    result = subprocess.run(
        [sys.executable, "-m", "tests.attacks"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-3000:]
    attempts = int(result.stdout.splitlines()[-1].split()[0])
    assert attempts >= ATTEMPTS_MIN
