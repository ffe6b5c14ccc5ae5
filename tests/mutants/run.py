"""Plant each bug in a copy of the project and see that something notices.

    make mutants                     all of them
    python -m tests.mutants.run 03   those whose file name begins with 03

A mutant is a small patch: a file, the words to replace, the words to put there, and who should notice (`sim`, `sim
agents`, or tests). It is a bug that systems of this kind have really had. One that nobody notices makes the run fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SEEDS = {"sim": 400, "sim agents": 120}
WAIT_S_MAX = 600

_SIMULATE = """
import random, sys
from tests.simulator.__main__ import run_seed, _quiet
_quiet()
for seed in range(1, int(sys.argv[1]) + 1):
    found = run_seed(seed, agents=sys.argv[2] == "sim agents")[2]
    if found:
        print(f"seed {seed}: {found}")
        sys.exit(1)
"""


@dataclass(frozen=True)
class Mutant:
    name: str
    bug: str
    file: str
    old: str
    new: str
    noticed_by: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Mutant:
        given = tomllib.loads(path.read_text())
        return cls(path.stem, given["bug"], given["file"], given["old"], given["new"], tuple(given["noticed_by"]))


def planted(mutant: Mutant, into: Path) -> None:
    """A copy of the project with the bug in it."""
    for part in ("src", "tests", "pyproject.toml"):
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, into / part, ignore=shutil.ignore_patterns("__pycache__", "mutants"))
        else:
            shutil.copy(source, into / part)
    file = into / mutant.file
    text = file.read_text()
    count = text.count(mutant.old)
    if count != 1:
        raise SystemExit(
            f"{mutant.name}: its old text stands {count} times in {mutant.file}; bring the mutant up to date"
        )
    file.write_text(text.replace(mutant.old, mutant.new))


def noticed(mutant: Mutant) -> str | None:
    """Who noticed, and what they said; `None` if nobody did."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        planted(mutant, copy)
        environment = os.environ | {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        for who in mutant.noticed_by:
            if who in SEEDS:
                command = [sys.executable, "-c", _SIMULATE, str(SEEDS[who]), who]
            else:
                command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *who.split()]
            try:
                done = subprocess.run(
                    command, cwd=copy, env=environment, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False
                )
            except subprocess.TimeoutExpired:
                # Slow is not noticed: nobody has said what is wrong.
                continue
            if done.returncode == 1:
                said = [line for line in done.stdout.splitlines() if line.startswith(("seed ", "FAILED ", "E   "))]
                return f"{who.split('/')[-1]}: {said[-1][:110] if said else 'failed'}"
            if done.returncode != 0:
                raise SystemExit(f"{mutant.name}: {who} could not be run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return None


def main() -> int:
    chosen = tuple(sys.argv[1:]) or ("",)
    mutants = [Mutant.read(path) for path in sorted(HERE.glob("*.toml")) if path.name.startswith(chosen)]
    started = time.monotonic()
    survivors: list[str] = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for mutant, by in zip(mutants, pool.map(noticed, mutants), strict=True):
            print(f"{'killed  ' if by else 'SURVIVED'}  {mutant.name:45} {by or mutant.bug}", flush=True)
            if by is None:
                survivors.append(mutant.name)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants killed in {time.monotonic() - started:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
