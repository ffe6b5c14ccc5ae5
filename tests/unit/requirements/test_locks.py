"""Locks: nothing can be installed that no digest covers, and a lock that is out of date is found without a network."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from requirements import locks
from requirements.locks import FOLDER, NODE, PYPROJECT, Lock, all_locks, main, node_problems, problems

from everthread.cli.commands.setup import hermes_env, local_model

DIGEST = "a" * 64
GOOD = (
    f"little==1.0 \\\n    --hash=sha256:{DIGEST} \\\n    --hash=sha256:{DIGEST}\nmore==2 ; python_version < '3.12' \\\n"
)
GOOD += f"    --hash=sha256:{DIGEST}\n"
REQUIRED = ("little", "more")


def project() -> dict[str, Any]:
    return tomllib.loads(PYPROJECT.read_text())


@pytest.fixture
def lock(tmp_path: Path) -> Callable[[str], Lock]:
    def make(text: str) -> Lock:
        made = Lock(tmp_path / "made.lock", REQUIRED)
        made.path.write_text(f"# Written by `make lock`. Requirements: sha256:{made.digest}\n{text}")
        return made

    return make


@pytest.mark.parametrize("each", all_locks(project()), ids=lambda each: each.path.stem)
def test_each_lock_is_up_to_date_and_names_no_index_or_host(each: Lock) -> None:
    assert problems(each) == []
    assert "://" not in each.path.read_text()


def test_the_lock_of_npm_is_up_to_date_and_names_no_host() -> None:
    assert node_problems() == []


def test_pinned_packages_with_digests_are_accepted(lock: Callable[[str], Lock]) -> None:
    assert problems(lock(GOOD)) == []


@pytest.mark.parametrize(
    "line",
    [
        "--index-url http://packages.example/list",
        "-i packages.example",
        "--extra-index-url=packages.example",
        "--find-links /tmp/wheels",
        "--trusted-host packages.example",
        "-r other.lock",
        "-e .",
        "./wheels/little-1.0.whl",
        "other @ http://packages.example/other.whl",
        f"other==1.0 --index-url=x --hash=sha256:{DIGEST}",
        "other>=1.0 \\",
        "other==1.0",
        "other",
        "",
        f"    --hash=md5:{'a' * 32}",
    ],
)
def test_a_lock_cannot_name_an_index_a_host_or_a_package_without_a_digest(
    lock: Callable[[str], Lock], line: str
) -> None:
    [problem] = problems(lock(f"{GOOD}{line}\n"))
    assert problem.startswith(f"{lock(GOOD).path}:7: ")


@pytest.mark.parametrize("cut", [1, 2])
def test_a_package_without_its_digests_is_found(lock: Callable[[str], Lock], cut: int) -> None:
    lines = GOOD.splitlines(keepends=True)
    assert problems(lock("".join(lines[:cut])))
    assert problems(lock("".join(lines[:cut] + lines[3:])))


def test_a_dependency_added_without_a_new_lock_is_found() -> None:
    changed = project()
    changed["project"]["dependencies"].append("left-pad>=1")
    names = [each.path.name for each in all_locks(changed) if problems(each)]
    assert names == ["dev.lock"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda table: table["project"]["optional-dependencies"]["telegram"].append("left-pad"), "dev.lock"),
        (lambda table: table["project"]["optional-dependencies"]["mem0"].append("left-pad"), "mem0.lock"),
        (lambda table: table["build-system"]["requires"].append("left-pad"), "dev.lock"),
    ],
)
def test_a_dependency_of_an_extra_or_of_the_build_needs_a_new_lock(change: Callable[[Any], None], name: str) -> None:
    changed = project()
    change(changed)
    assert [each.path.name for each in all_locks(changed) if problems(each)] == [name]


def test_every_extra_is_in_a_lock() -> None:
    table = project()["project"]["optional-dependencies"]
    locked = {requirement for each in all_locks(project()) for requirement in each.requirements}
    wanted = {each for extra in table.values() for each in extra if not each.startswith("everthread[")}
    assert wanted <= locked


def test_a_missing_or_headless_lock_is_found(tmp_path: Path) -> None:
    missing = Lock(tmp_path / "missing.lock", REQUIRED)
    assert problems(missing) == [f"{missing.path}: No such file or directory; run: make lock"]
    missing.path.write_text(GOOD)
    assert problems(missing) == [f"{missing.path}:1: has no digest of its requirements; run: make lock"]


def test_the_lock_of_npm_cannot_name_a_host_or_omit_a_digest(tmp_path: Path) -> None:
    shutil.copytree(NODE.parent, tmp_path / "node")
    copy = tmp_path / "node" / NODE.name
    lock = json.loads(copy.read_text())
    entry = lock["packages"]["node_modules/@copilotkit/aimock"]
    entry["resolved"] = "http://packages.example/aimock.tgz"
    del entry["integrity"]
    copy.write_text(json.dumps(lock))
    found = "\n".join(node_problems(copy))
    for expected in ("has resolved", "has no SHA-512 digest", "names a host"):
        assert expected in found
    (copy.parent / "package.json").write_text('{"dependencies": {"@copilotkit/aimock": "2.0.0"}}')
    assert "is out of date" in node_problems(copy)[0]


def test_the_check_exits_with_1_and_lists_the_problems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check"]) == 0
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(PYPROJECT.read_text().replace('"aiohttp>=3.13,<4"', '"aiohttp>=3,<4"'))
    monkeypatch.setattr(locks, "PYPROJECT", pyproject)
    assert main(["--check"]) == 1
    assert capsys.readouterr().out == (
        "requirements/dev.lock: is out of date: its requirements have changed; run: make lock\n"
    )


def test_the_lock_of_the_local_model_has_exactly_its_two_packages() -> None:
    pinned = [line.removesuffix(" \\") for line in local_model.LOCK.read_text().splitlines() if "==" in line]
    assert pinned == [package.pinned for package in local_model.PACKAGES]


def test_the_lock_of_hermes_has_the_tested_version() -> None:
    assert f"\n{hermes_env.REQUIREMENT} \\\n" in hermes_env.LOCK.read_text()


def test_make_installs_from_the_locks_only() -> None:
    """Any installation in the Makefile requires digests, or can't fetch anything."""
    text = (FOLDER.parent / "Makefile").read_text().replace("$(LOCKED)", "install --require-hashes")
    installs = [line for line in text.splitlines() if " install " in line and "apt install" not in line]
    assert len(installs) >= 3
    assert [line for line in installs if "--require-hashes" not in line and "--no-index" not in line] == []
    assert "npm ci" in text
    assert "npm install" not in text
