"""Run the explorer against mutants: it must find a violation in a copy of the project that has the bug.

python -m tests.explorer mutants --small                 all mutants of the core
python -m tests.explorer mutants boundaries turns/late   those whose path begins with this
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.run import HERE, Mutant, apply_mutant, copy_project

CORE = ("domain/", "lifecycle/", "store/", "memory/", "gateway/outbox")
"""Parts of the package that explored schedules run."""
WAIT_S_MAX = 1800


def core_mutants(chosen: Sequence[str]) -> list[Mutant]:
    """Return the mutants of the core whose name begins with one of `chosen`, or all."""
    mutants = [Mutant.read(path) for path in sorted(HERE.rglob("*.toml"))]
    core = tuple(f"src/everthread/{part}" for part in CORE)
    return [m for m in mutants if m.file.startswith(core) and m.name.startswith(tuple(chosen) or ("",))]


def find_violation(mutant: Mutant, options: Sequence[str]) -> str:
    """Explore a copy of the project with the mutant. Return the violation, or an empty text."""
    with tempfile.TemporaryDirectory(prefix="explored-") as folder:
        copy = Path(folder)
        copy_project(copy)
        apply_mutant(mutant, copy)
        environment = os.environ | {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        result = subprocess.run(
            [sys.executable, "-m", "tests.explorer", *options],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S_MAX,
            check=False,
        )
    lines = [line for line in result.stdout.splitlines() if line.startswith("VIOLATION ")]
    if result.returncode not in (0, 1) or len(lines) != result.returncode:
        raise SystemExit(f"{mutant.name}: the explorer did not run:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return lines[0].removeprefix("VIOLATION ") if lines else ""


def list_mutants(chosen: Sequence[str], options: Sequence[str]) -> int:
    """Print which mutants are caught. Fails only if none is: other tests may catch the rest."""
    caught = 0
    mutants = core_mutants(chosen)
    for mutant in mutants:
        violation = find_violation(mutant, ["--small"]) or (options != ["--small"] and find_violation(mutant, options))
        caught += bool(violation)
        sys.stdout.write(
            f"{'caught' if violation else '-':8}{mutant.name:45} {violation[:110] if violation else mutant.bug}\n"
        )
        sys.stdout.flush()
    sys.stdout.write(f"{caught} of {len(mutants)} mutants of the core caught\n")
    return 0 if caught else 1
