"""Outage scenario for any provider: subclass `ProviderOutage` and define a fixture `back_end`.

A turn, the server hangs, /new, a turn, /resume, a turn, kill -9, a restart, the server recovers: every fact is recalled
from the session it was said in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.provider_backend import ProviderBackend

ROOT = Path(__file__).parents[1]
PATIENCE_S = 30.0
ATTEMPT_S_MIN = 1.0
"""Minimum attempt timeout. No test step waits for a delivery to time out, so fast back ends get more time too."""


class GatewayProcess:
    """A process on a home. Without `kill`, it ends by itself."""

    def __init__(self, home: Path, back_end: ProviderBackend, number: int) -> None:
        arguments = [
            str(home),
            back_end.provider,
            json.dumps(back_end.settings),
            str(number),
            str(max(back_end.attempt_s, ATTEMPT_S_MIN)),
        ]
        paths = [str(ROOT), str(ROOT / "src")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.provider_outage_worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        assert self._answer() == "here"

    def do(self, what: str, text: str = "") -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, text]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def until(self, what: str, text: str, holds: Callable[[Any], object]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(answer := self.do(what, text)):
            assert time.monotonic() < deadline, f"{what} {text}: {answer}"
            time.sleep(0.05)
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._close()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._close()

    def _close(self) -> None:
        self._process.wait(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


class ProviderOutage:
    @pytest.fixture
    def back_end(self) -> ProviderBackend:
        raise NotImplementedError("give the story a fixture `back_end`")

    @pytest.mark.timeout(90)
    def test_turns_survive_an_outage_and_a_kill(self, tmp_path: Path, back_end: ProviderBackend) -> None:
        life = GatewayProcess(tmp_path, back_end, 0)
        first = life.do("turn", "my boat is called Skarven")
        life.until("waiting", "", lambda count: count == 0)
        back_end.faults.hang()
        second = life.do("new")
        assert life.do("turn", "my sister lives in Odense") == second
        assert life.do("resume", first) == first
        assert life.do("turn", "my boat has a red keel") == first
        # Long enough for a request to start, time out and be retried.
        time.sleep(1.5)
        assert life.do("waiting") > 0
        life.kill()

        life = GatewayProcess(tmp_path, back_end, 1)
        back_end.faults.heal()
        life.do("new")
        life.until("waiting", "", lambda count: count == 0)
        for session, turn, fact in ((first, 1, "Skarven"), (second, 1, "Odense"), (first, 2, "keel")):

            def is_found(items: Any, session: str = session, turn: int = turn, fact: str = fact) -> bool:
                return [session, turn] in [[item[1], item[2]] for item in items if fact in item[0]]

            items = life.until("recall", fact, is_found)
            saying = [item for item in items if fact in item[0]]
            # Every match must be in the right session, without duplicates.
            assert {item[1] for item in saying} == {session}
            assert len({item[0] for item in saying}) == len(saying)
        life.end()
        # The back end must hold each turn once, in its session and in order.
        for session, facts in ((first, ["Skarven", "keel"]), (second, ["Odense"])):
            turns = back_end.turns(session)
            assert len(turns) == len(facts), turns
            assert all(fact in text for fact, text in zip(facts, turns, strict=True))
