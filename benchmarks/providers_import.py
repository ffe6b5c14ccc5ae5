"""Measure the import of a Hermes home of 100,000 messages as a whole command."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.hermes_home import START, HermesHome

from benchmarks import corpus
from benchmarks.measurement import Figure

MESSAGES = 100_000
MESSAGES_PER_SESSION = 100
TOOL_EVERY = 10


async def import_hermes(folder: Path) -> dict[str, Figure]:
    """Import a typical home: sessions of 50 questions, a tenth of them answered with a tool."""
    home = folder / "hermes"
    _fill(home)
    report, cpu_s = _import(folder / "everthread", home)
    assert report["messages"] == MESSAGES, report
    again, again_s = _import(folder / "everthread", home)
    assert again["messages"] == 0, again
    return {"import_hermes_100k_cpu_s": Figure.exact(cpu_s), "import_hermes_again_cpu_s": Figure.exact(again_s)}


def _fill(path: Path) -> None:
    texts = corpus.messages(MESSAGES)
    with HermesHome(path) as home:
        home.database.execute("BEGIN")
        for number in range(MESSAGES // MESSAGES_PER_SESSION):
            at = START + number * 1000
            name = home.session(f"20250101_{number:06d}_abcdef", at=at, title=f"Talk {number}")
            for n, (role, content, more) in enumerate(_messages(texts)):
                home.say(name, role, content, at=at + n, **more)
        home.database.execute("COMMIT")


def _messages(texts: Iterator[str]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the messages of one session."""
    for n in range(MESSAGES_PER_SESSION // 2):
        if n % TOOL_EVERY == TOOL_EVERY - 1:
            call = {"id": f"call_{n}", "type": "function", "function": {"name": "terminal", "arguments": '{"a": "ls"}'}}
            yield "assistant", "", {"tool_calls": json.dumps([call]), "reasoning": next(texts)}
            yield "tool", next(texts), {"tool_call_id": f"call_{n}", "tool_name": "terminal"}
        else:
            yield "user", next(texts), {}
            yield "assistant", next(texts), {}


def _import(home: Path, hermes_home: Path) -> tuple[dict[str, int], float]:
    """Run the command; return its report and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "everthread", "--home", str(home), "import", "hermes", str(hermes_home), "--json"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return answer, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
