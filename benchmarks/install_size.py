"""Measure the disk size of the base install: fresh environment, compiled, without the installer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from benchmarks.measurement import Figure

ROOT = Path(__file__).parent.parent


async def measure_install(folder: Path) -> dict[str, Figure]:
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--compile"]
    await asyncio.to_thread(
        lambda: subprocess.run([*command, "--target", str(target), str(ROOT)], check=True, stdout=sys.stderr)
    )
    size = sum(path.stat().st_blocks * 512 for path in target.rglob("*") if path.is_file() and not path.is_symlink())
    packages = list(target.glob("*.dist-info"))
    return {"install_mb": Figure.exact(size / 1e6), "install_packages": Figure.exact(len(packages))}
