"""Run the examples unchanged, compare the README with the first one, and check the links."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("test_"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

TYPED = {"echo_chat.py": "hello\n/new\nthen goodbye\n"}
PRINTED = {
    "echo_chat.py": "1> hello, hello\nnew session ID\n1> then goodbye, then goodbye\n",
    "picky_provider.py": """\
entry 2, replay 0: hello
entry 4, replay 0: goodbye
entry 5, replay 0: closed, missing (3,)
""",
    "shelf.py": "",
    "show_log.py": "",
}
SHOWN_IN = {
    "first_session.py": "README.md",
    "forget_a_fact.py": "docs/how-to/memory/forget-on-request.md",
    "older_provider.py": "docs/how-to/extend/write-a-memory-provider.md",
    "plugin.py": "docs/how-to/extend/write-a-plugin.md",
    "use_shelf.py": "docs/how-to/extend/write-a-memory-provider.md",
}


def run(*command: str, cwd: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"EVERTHREAD_HOME": str(cwd / "home"), "PYTHONPATH": f"{ROOT / 'src'}:{EXAMPLES}"}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, input=typed, capture_output=True, text=True, timeout=18
    )


def shown(page: Path, command: str) -> str:
    """Return the output that a page shows below a command."""
    found = re.search(rf"^\$ {re.escape(command)}\n(.*?)^(?:```|\$ )", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page.name} does not show {command!r}"
    return found[1]


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_runs_and_prints_the_documented_output(script: str, tmp_path: Path) -> None:
    done = run(str(EXAMPLES / script), cwd=tmp_path, typed=TYPED.get(script, ""))
    assert done.returncode == 0, done.stderr
    wanted = PRINTED.get(script)
    if wanted is None:
        wanted = shown(ROOT / SHOWN_IN[script], f"python docs/examples/{script}")
    assert _without_ids(done.stdout) == _without_ids(wanted)


def _without_ids(text: str) -> str:
    return re.sub(r"\b(?:[0-9A-Z]{26}|[0-9A-HJKMNP-TV-Z]{4}(?= (?:opened|turn|closed)))\b", "ID", text)


def test_the_example_provider_keeps_the_contract(tmp_path: Path) -> None:
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / "test_shelf.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^19 passed", done.stdout, re.MULTILINE), done.stdout


def test_the_log_of_a_conversation_can_be_shown(tmp_path: Path) -> None:
    run(str(EXAMPLES / "echo_chat.py"), cwd=tmp_path, typed="hello\n/new\n")
    lines = run(str(EXAMPLES / "show_log.py"), cwd=tmp_path).stdout.splitlines()
    assert [line.split()[2] for line in lines] == ["opened", "turn", "close", "opened"]


def test_a_parked_entry_is_delivered_after_a_retry(tmp_path: Path) -> None:
    script = str(EXAMPLES / "picky_provider.py")
    run(script, cwd=tmp_path)
    (tmp_path / "pictures-allowed").touch()
    assert run("-m", "everthread", "journal", "retry", "album", "Lisbon", cwd=tmp_path).returncode == 0
    page = (ROOT / "docs/how-to/operate/recover-a-stuck-provider.md").read_text()
    assert run(script, cwd=tmp_path).stdout in page


def test_the_readme_opens_with_the_first_example_word_for_word() -> None:
    fences = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert fences[0] == (EXAMPLES / "first_session.py").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target} does not exist"
        assert ROOT in file.parents, f"{target} leads out of the project"
        assert not anchor or anchor in _anchors(file), f"{target}: no such heading"


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
