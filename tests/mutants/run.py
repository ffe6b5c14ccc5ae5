"""Apply each mutant to a copy of the project and check that a test or the simulator fails.

    make mutants                                  run all mutants
    python -m tests.mutants.run delivery          run the mutants of one subject
    python -m tests.mutants.run turns/late_reply  run the mutants whose path begins with this

A mutant is a patch in a TOML file: the file to change, the text to replace, its replacement, and the checks that must
fail (`sim`, `sim agents`, or pytest arguments). Each mutant is a bug that a system of this kind has had. The run fails
if a mutant survives, or if a check fails without a mutant.
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
from tests.simulator.runner import run_seed, _quiet
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
        fields = tomllib.loads(path.read_text())
        name = path.relative_to(HERE).with_suffix("").as_posix()
        return cls(name, fields["bug"], fields["file"], fields["old"], fields["new"], tuple(fields["noticed_by"]))


def copy_project(into: Path) -> None:
    ignored = shutil.ignore_patterns(".git", ".venv", ".cache", ".*_cache", ".hypothesis", "__pycache__", "mutants")
    shutil.copytree(ROOT, into, ignore=ignored, dirs_exist_ok=True)


def apply_mutant(mutant: Mutant, copy: Path) -> None:
    file = copy / mutant.file
    text = file.read_text()
    count = text.count(mutant.old)
    if count != 1:
        raise SystemExit(f"{mutant.name}: its old text occurs {count} times in {mutant.file}; update the mutant")
    file.write_text(text.replace(mutant.old, mutant.new))


def run_check(copy: Path, check: str) -> subprocess.CompletedProcess[str]:
    if check in SEEDS:
        command = [sys.executable, "-c", _SIMULATE, str(SEEDS[check]), check]
    else:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *check.split()]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False
    )


def find_failure(mutant: Mutant) -> str | None:
    """Return the check that failed with its message, or None if the mutant survived."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        copy_project(copy)
        apply_mutant(mutant, copy)
        for check in mutant.noticed_by:
            try:
                result = run_check(copy, check)
            except subprocess.TimeoutExpired:
                # A timeout does not count as a failure: no check reported the bug.
                continue
            if result.returncode == 1:
                lines = [line for line in result.stdout.splitlines() if line.startswith(("seed ", "FAILED ", "E   "))]
                return f"{check.split('/')[-1]}: {lines[-1][:110] if lines else 'failed'}"
            if result.returncode != 0:
                raise SystemExit(f"{mutant.name}: {check} did not run:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return None


def find_failure_without_mutant(check: str) -> str | None:
    """Return the output of a check that fails on the unchanged code and would kill every mutant."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy_project(Path(folder))
        result = run_check(Path(folder), check)
    return f"{check}:\n{result.stdout[-2000:]}{result.stderr[-2000:]}" if result.returncode else None


def main() -> int:
    chosen = tuple(sys.argv[1:]) or ("",)
    mutants = [Mutant.read(path) for path in sorted(HERE.rglob("*.toml"))]
    mutants = [mutant for mutant in mutants if mutant.name.startswith(chosen)]
    started = time.monotonic()
    survivors: list[str] = []
    checks = sorted({check for mutant in mutants for check in mutant.noticed_by if check not in SEEDS})
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        failed = [
            check
            for check, failure in zip(checks, pool.map(find_failure_without_mutant, checks), strict=True)
            if failure
        ]
        # Once more, one at a time: some checks measure time, and the others slowed them down.
        if failures := [failure for check in failed if (failure := find_failure_without_mutant(check))]:
            raise SystemExit("These checks fail without a mutant:\n" + "\n".join(failures))
        for mutant, by in zip(mutants, pool.map(find_failure, mutants), strict=True):
            print(f"{'killed  ' if by else 'SURVIVED'}  {mutant.name:45} {by or mutant.bug}", flush=True)
            if by is None:
                survivors.append(mutant.name)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants killed in {time.monotonic() - started:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
