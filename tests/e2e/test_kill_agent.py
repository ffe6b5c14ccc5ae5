"""Kill the agent while it streams an answer, runs a tool, and between a tool and the commit, twenty times each.

The message stays stored and the turn is completed once. A tool that ran is never run again for the same turn; a call
with an unknown outcome is reported to the model as such. All spending is accounted for.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.agent_worker import KEY, OWNER

from everthread.adapters.sqlite.connection import SqliteDatabase, connect
from everthread.agent.transcript import OUTCOME_UNKNOWN
from everthread.domain.model import Role, Turn, TurnStatus
from everthread.store.unit_of_work import UnitOfWork

WORKER = Path(__file__).parent / "agent_worker.py"
KILLS = 20
PATIENCE_S = 30.0


@contextmanager
def model_server(log: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "everthread.testing.model_server.server", "--delay-ms", "3", "--log", str(log)]
    process = subprocess.Popen([*command, "--tool", "mark:{}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def live(home: Path, url: str, life: int, message: str, *, kill_at: str = "", after_s: float = 0.0) -> list[str]:
    """Run one worker; kill it some time after it reported `kill_at` while it answers `message`."""
    orders = json.dumps({"home": str(home), "url": url, "life": life, "message": message})
    with (home / "worker.err").open("ab") as stderr:
        worker = subprocess.Popen([sys.executable, str(WORKER), orders], stdout=subprocess.PIPE, stderr=stderr)
    assert worker.stdout is not None
    said: list[str] = []
    is_accepted = False
    try:
        for line in worker.stdout:
            said.append(json.loads(line)[0])
            is_accepted |= said[-1] == "accepted"
            if kill_at and is_accepted and said[-1] == kill_at:
                time.sleep(after_s)
                os.kill(worker.pid, signal.SIGKILL)
                break
        code = worker.wait(PATIENCE_S)
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
    assert code == (-signal.SIGKILL if kill_at else 0), (home / "worker.err").read_text()[-2000:]
    return said


def stored(home: Path) -> tuple[list[Turn], float, int]:
    """Return the visible turns, the amount spent and the number of slots in use."""
    connection = connect(str(home / "everthread.db"))
    try:
        tables = UnitOfWork(SqliteDatabase(connection))
        sessions = [s for s in tables.sessions.of_owner(OWNER) if s.key == KEY]
        turns = [turn for session in sessions for turn in tables.turns.view(session).turns]
        slots = list(connection.execute("SELECT COUNT(*) FROM slots"))[0][0]
        return turns, tables.spend.total(OWNER, 0.0), slots
    finally:
        connection.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("kill_at", "after_s"),
    [("text", 0.02), ("tool began", 0.04), ("tool ended", 0.01)],
    ids=["mid-stream", "mid-tool", "between tool and commit"],
)
def test_a_killed_agent_loses_no_message_and_repeats_no_tool_call(tmp_path: Path, kill_at: str, after_s: float) -> None:
    chance = random.Random(kill_at)
    log = tmp_path / "requests.log"
    with model_server(log) as url:
        for life in range(KILLS):
            live(tmp_path, url, life, f"message {life}", kill_at=kill_at, after_s=chance.uniform(0.0, after_s))
        last = live(tmp_path, url, KILLS, "")
    turns, spent, slots = stored(tmp_path)
    assert last[-1] == "bye"
    assert slots == 0
    assert Counter(turn.user_text for turn in turns) == Counter(f"message {life}" for life in range(KILLS))
    assert all(turn.status is TurnStatus.DONE for turn in turns)
    assert all(turn.messages[-1].role is Role.ASSISTANT and turn.messages[-1].content for turn in turns)
    marks = Counter((tmp_path / "marks.txt").read_text().split())
    _check_tools(turns, marks, requests=log.read_text().splitlines())
    # Every started call is charged; a killed one is charged with its reservation.
    assert spent >= len(log.read_text().splitlines()) * 1e-6


def _check_tools(turns: list[Turn], marks: Counter[str], *, requests: list[str]) -> None:
    unknown = 0
    for turn in turns:
        results = [message.content for message in turn.messages if message.role is Role.TOOL]
        # A tool that ran before the kill is not run again: the model receives the recorded state.
        assert results.count("marked") <= marks[turn.turn_id] <= len(results), (turn.user_text, results)
        assert set(results) <= {"marked", OUTCOME_UNKNOWN}
        unknown += OUTCOME_UNKNOWN in results
    reported = sum(OUTCOME_UNKNOWN in request for request in requests)
    assert (reported > 0) == (unknown > 0)
