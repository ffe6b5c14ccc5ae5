"""Compare the JSON output of commands with the reference: every documented name is printed, and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.used_home import UsedHome, everthread

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli-conventions.md").read_text().partition("\n## JSON\n")[2]

# Each shape is identified by names that only its example has.
EXAMPLES = {
    "sessions list": {"end_reason", "cause"},
    "boundaries": {"boundary", "epoch"},
    "gateway status": {"running", "journal_lag"},
    "gateway install --print": {"written", "unit"},
    "journal status": {"waiting_entries"},
    "journal retry picky": {"provider", "entries"},
    "journal replay picky 日本旅行": {"provider", "sessions"},
    "memory list": {"user", "memory"},
    "memory log": {"change", "before"},
    "memory status": {"loaded", "health"},
    "sessions rename 日本旅行 日本": {"title", "before"},
    "sessions export --all -o {place}/all.jsonl": {"file", "sessions", "notes"},
    "sessions import --as-mine {place}/all.jsonl": {"same", "renamed"},
    "import hermes {place}/hermes": {"schema", "places"},
    "sessions prune --older-than 1y --yes": {"found", "kept"},
    "sessions reindex": {"messages"},
    "skills list": {"skills", "problems"},
    "pairing list": {"waiting", "guests"},
    "cron add @daily hello": {"when", "missed"},
    "backup {place}/all.tar.gz": {"file", "schema"},
    "restore --force {place}/all.tar.gz": {"home", "schema"},
    "forget 日本旅行 --yes": {"forgotten"},
}
BEFORE = {
    "sessions import --as-mine {place}/all.jsonl": "sessions export --all -o {place}/all.jsonl",
    "restore --force {place}/all.tar.gz": "backup {place}/all.tar.gz",
}
IN_WORDS = (
    "sessions show 日本旅行",
    "sessions tree",
    "memory show mangoes",
    "recall hello",
    "skills validate",
    "skills new tea",
    "doctor --offline",
    "completion bash",
    "memory undo",
)


def examples() -> Iterator[dict[str, Any]]:
    for fence in re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        try:
            yield first(json.loads(fence))
        except json.JSONDecodeError:
            yield from map(json.loads, fence.splitlines())


def example_with(names: set[str], printed: dict[str, Any]) -> dict[str, Any]:
    fitting = [example for example in examples() if names <= set(example)]
    # Two examples contain `{"provider", "entries"}`; choose the one closest to the output.
    return min(fitting, key=lambda example: len(set(example) ^ set(printed)))


def first(printed: Any) -> dict[str, Any]:
    """Return the first object of a list, or the object itself."""
    return printed[0] if isinstance(printed, list) else printed


def names(printed: Any) -> set[str]:
    if isinstance(printed, list):
        return {name for each in printed for name in names(each)}
    if isinstance(printed, dict):
        return {name for key, value in printed.items() for name in {key, *names(value)}}
    return set()


def run(command: str, lived: UsedHome, place: Path) -> Any:
    words = [word.format(place=place) for word in command.split()]
    done = everthread(*words, "--json", home=lived.home, env={"EVERTHREAD_OWNER": "local"})
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", EXAMPLES)
def test_an_example_has_exactly_the_printed_names(command: str, lived: UsedHome, tmp_path: Path) -> None:
    if command in BEFORE:
        run(BEFORE[command], lived, tmp_path)
    (tmp_path / "hermes" / "memories").mkdir(parents=True)
    printed = run(command, lived, tmp_path)
    one = first(printed["providers"] if command == "memory status" else printed)
    assert set(example_with(EXAMPLES[command], one)) == set(one)


@pytest.mark.parametrize("command", IN_WORDS)
def test_every_printed_name_is_documented(command: str, lived: UsedHome, tmp_path: Path) -> None:
    export = (Path(__file__).parents[2] / "docs" / "reference" / "export-format.md").read_text()
    told = set(re.findall(r'[`"](\w+)[`"]', PAGE + export))
    assert names(run(command, lived, tmp_path)) - told == set()
