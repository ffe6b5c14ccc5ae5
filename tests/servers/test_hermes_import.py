"""Test importing data of the real Hermes Agent while it is running: a conversation, a branch and a summary."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.commands import printed, problems
from tests.servers.hermes_program import HermesTerminal

pytestmark = [pytest.mark.server, pytest.mark.timeout(1500)]

FACTS = ["The cat is called Mia", "The dog is called Rex", "The fish is called Blub"]
MORE = ["The bird is called Pip", "The horse is called Max", "The snake is called Kaa"]


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    command = [sys.executable, "-m", "everthread.testing.model_server.server", "--port", "0", "--echo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        server.terminate()


def said(home: Path, session_id: str) -> list[str]:
    shown = printed(home, "sessions", "show", session_id)
    return [m["content"] for turn in shown["transcript"] for m in turn["messages"] if m["role"] == "user"]


def look(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("state.db*"))


def lineage(home: Path) -> list[dict[str, Any]]:
    """All sessions, oldest first."""
    listed = printed(home, "sessions", "list", "--limit", "100")
    return [printed(home, "sessions", "show", each["id"]) for each in reversed(listed)]


@pytest.mark.parametrize("in_place", [True, False])
def test_a_conversation_a_branch_and_a_summary_of_real_hermes_are_imported(
    tmp_path: Path, base_url: str, in_place: bool
) -> None:
    theirs, home = tmp_path / "hermes", tmp_path / "home"
    with HermesTerminal(theirs, base_url, in_place=in_place) as hermes:
        for fact in FACTS:
            hermes.ask(fact)
        # Hermes is running, and many rows are only in its -wal file.
        assert (theirs / "state.db-wal").stat().st_size > 0
        before = look(theirs)
        first = printed(home, "import", "hermes", str(theirs))
        assert look(theirs) == before
        assert (first["sessions"], first["turns"], first["messages"]) == (1, 3, 6)
        [only] = lineage(home)
        assert said(home, only["id"]) == FACTS

        hermes.type("/branch side road")
        hermes.wait("side road", 30)
        for fact in MORE:
            hermes.ask(fact)
        hermes.type("/compress")
        wait_for_summary(theirs)
        hermes.ask("Now go on")
        hermes.leave()

    second = printed(home, "import", "hermes", str(theirs))
    assert (second["sessions"], second["turns"], second["left_out"]) == (2, 4, {})
    trunk, branch, tip = lineage(home)
    assert said(home, trunk["id"]) == FACTS
    assert (branch["parent"], branch["cause"], branch["title"]) == (trunk["id"], "branch", "side road")
    assert said(home, branch["id"]) == [*FACTS, *MORE]
    assert (tip["parent"], tip["cause"]) == (branch["id"], "compression")
    assert tip["summary"]
    assert said(home, tip["id"])[-1] == "Now go on"
    assert 1 < len(said(home, tip["id"])) < len(FACTS) + len(MORE)
    assert problems(home) == []
    third = printed(home, "import", "hermes", str(theirs))
    assert (third["sessions"], third["turns"], third["same"]) == (0, 0, 3)


def wait_for_summary(theirs: Path) -> None:
    """Wait for the summary row: Hermes reports the start of a compression, but not its end."""
    statement = "SELECT COUNT(*) FROM messages WHERE content LIKE '%CONTEXT COMPACTION%'"
    end = time.monotonic() + 120
    while time.monotonic() < end:
        database = sqlite3.connect(theirs / "state.db")
        found = database.execute(statement).fetchone()[0]
        ended = database.execute("SELECT COUNT(*) FROM sessions WHERE end_reason = 'compression'").fetchone()[0]
        database.close()
        if found or ended:
            # Wait until the prompt is back.
            time.sleep(3)
            return
        time.sleep(0.5)
    raise AssertionError("Hermes has made no summary")
