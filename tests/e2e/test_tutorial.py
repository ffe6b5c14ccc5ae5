"""Run the tutorial: type its input and compare the output with the page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.model_endpoint import model_endpoint
from tests.terminal_screen import CTRL_D, ENTER, TerminalScreen

from everthread.agent.titles import INSTRUCTION
from everthread.testing.model_server.replies import Reply, Say
from everthread.testing.model_server.validation import Chat, Messages

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
FACT = "My dog is called Bruno."
CONFIG = 'model = "stub/one"\n[providers.stub]\nbase_url = "{url}"\n'
# Ignore the model's name, its notice at the start, and values that differ from run to run.
SAME = (
    (r"(?m)^.*small model for trying things out.*$", ""),
    (r"(?m)^ok +configuration .*$", "ok configuration"),
    (r"\d+-[0-9A-Z]{26}\b|\b[0-9A-Z]{26}\b", "ID"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d", "TIME"),
    (r"\d+% of \w+ context|Python [\d.]+|SQLite [\d.]+|[\d,]+ MB|score [\d.]+", "NUMBER"),
    (r"stub/one", "local/smollm2"),
    (r"/\S*/(play|elsewhere)\b", r"/\1"),
    (r"[│╭╰─]", " "),
)


def same(text: str) -> str:
    for pattern, instead in SAME:
        text = re.sub(pattern, instead, text)
    return " ".join(text.split())


def fences(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def pieces() -> list[str]:
    """Return the paragraphs of terminal output on the page."""
    return [piece for fence in fences("text") for piece in re.split(r"\n\s*\n", fence)]


def script(request: Chat | Messages) -> Reply:
    """Model of the tutorial: it knows the answer if the fact is in the request."""
    assert isinstance(request, Chat)
    sent = [message.content or "" for message in request.messages]
    titled = any(INSTRUCTION in text for text in sent)
    if FACT in sent[-1] and "What is the name" not in sent[-1]:
        return Say("My dog is called Bruno" if titled else answer_to(FACT))
    if titled:
        return Say("What is the name of my")
    return Say(answer_to("What is the name of my dog?") if any(FACT in text for text in sent) else "No idea.")


def answer_to(question: str) -> str:
    shown = pieces()
    return " ".join(shown[shown.index(f"> {question}") + 1].split())


class Reader:
    """User who follows the tutorial in a directory of their own."""

    def __init__(self, place: Path, url: str) -> None:
        self._place = place
        (place / "play").mkdir(mode=0o700)
        (place / "play" / "config.toml").write_text(CONFIG.format(url=url))
        (place / "play" / "config.toml").chmod(0o600)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERTHREAD_")}
        self._env = {**kept, "EVERTHREAD_HOME": str(place / "play"), "PYTHONPATH": str(ROOT / "src")}

    def run(self, command: str) -> str:
        words = shlex.split(command)
        words = [sys.executable, "-m", *words] if words[0] == "everthread" else words
        done = subprocess.run(words, cwd=self._place, env=self._env, capture_output=True, text=True, timeout=18)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def opens(self, *arguments: str) -> TerminalScreen:
        return TerminalScreen([sys.executable, "-m", "everthread", *arguments], self._env, columns=200, rows=60)


@pytest.mark.timeout(120)
def test_the_output_of_the_tutorial_matches_the_page(tmp_path: Path) -> None:
    with model_endpoint(script=script) as server:
        reader = Reader(tmp_path, server.base_url)
        seen_so_far = ""
        with reader.opens() as seen:
            seen.expect("new session · ")
            seen.type(FACT + ENTER)
            seen.expect(r"My dog is called Bruno · .*context")
            seen_so_far += seen.settle()
            seen.type("/new" + ENTER)
            seen.expect("You left")
            seen.type("What is the name of my dog?" + ENTER)
            seen.expect("What is the name of my · ")
            seen.type(CTRL_D)
            assert seen.ended() == 0
            seen_so_far += seen.scrolled()
        with reader.opens("-c") as seen:
            seen.expect("What is the name of my · stub")
            for typed in re.findall(r"(?m)^> (/(?:memory|title) .*)$", PAGE):
                seen.type(typed + ENTER)
                seen.settle()
            seen.type(CTRL_D)
            assert seen.ended() == 0
            seen_so_far += seen.scrolled()
        for piece in pieces():
            assert same(re.sub(r"(?m)^\$ .*$", "", piece)) in same(seen_so_far)

        _, *shells = fences("console")
        steps = [step for fence in shells for step in re.findall(r"(?ms)^\$ ([^\n]+)\n(.*?)(?=^\$ |\Z)", fence)]
        assert len(steps) == 11
        for command, shown in steps:
            assert same(reader.run(command)) == same(shown), command
