"""What an import costs: the whole command, from a Hermes home of 100,000 messages to our store."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.hermes_home import START, HermesHome

from benchmarks import corpus
from benchmarks.measuring import Figure

MESSAGES = 100_000
MESSAGES_PER_SESSION = 100
TOOL_EVERY = 10


async def import_hermes(folder: Path) -> dict[str, Figure]:
    """A home as people have one: sessions of 50 questions, a tenth of them answered with the help of a tool."""
    house = folder / "hermes"
    _fill(house)
    said, cpu_s = _import(folder / "everthread", house)
    assert said["messages"] == MESSAGES, said
    again, again_s = _import(folder / "everthread", house)
    assert again["messages"] == 0, again
    return {"import_hermes_100k_cpu_s": Figure.exact(cpu_s), "import_hermes_again_cpu_s": Figure.exact(again_s)}


def _fill(path: Path) -> None:
    texts = corpus.messages(MESSAGES)
    with HermesHome(path) as house:
        house.database.execute("BEGIN")
        for number in range(MESSAGES // MESSAGES_PER_SESSION):
            at = START + number * 1000
            name = house.session(f"20250101_{number:06d}_abcdef", at=at, title=f"Talk {number}")
            for n, (role, content, more) in enumerate(_messages(texts)):
                house.say(name, role, content, at=at + n, **more)
        house.database.execute("COMMIT")


def _messages(texts: Iterator[str]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Of one session."""
    for n in range(MESSAGES_PER_SESSION // 2):
        if n % TOOL_EVERY == TOOL_EVERY - 1:
            call = {"id": f"call_{n}", "type": "function", "function": {"name": "terminal", "arguments": '{"a": "ls"}'}}
            yield "assistant", "", {"tool_calls": json.dumps([call]), "reasoning": next(texts)}
            yield "tool", next(texts), {"tool_call_id": f"call_{n}", "tool_name": "terminal"}
        else:
            yield "user", next(texts), {}
            yield "assistant", next(texts), {}


def _import(home: Path, house: Path) -> tuple[dict[str, int], float]:
    """What the command says, and what it cost."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "everthread", "--home", str(home), "import", "hermes", str(house), "--json"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return answer, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
