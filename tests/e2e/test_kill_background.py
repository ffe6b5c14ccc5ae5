"""Kill the worker within a review and within a compression, ten times each.

A review takes effect once and appears in no transcript. A conversation is compressed once from each position, and every
turn of it is in one session, either visible at its end or covered by the summary.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
from asyncio.subprocess import DEVNULL
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agent_worker import KEY, OWNER
from tests.e2e.background_worker import REVIEW_EVERY
from tests.simulator.store_consistency import inconsistencies

from everthread.adapters.sqlite.connection import SqliteDatabase, connect
from everthread.domain.model import Cause, NoteTarget, ToolCall
from everthread.ports.model import Usage
from everthread.store.unit_of_work import UnitOfWork
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

ROOT = Path(__file__).resolve().parents[2]
WORKER = "tests.e2e.background_worker"
KILLS = 10
PATIENCE_S = 30.0
FILLING = " of boats and masts and sails" * 2_000
REVIEW = "[A review."
SUMMARISE = "Bring the summary of a conversation up to date"
_NAMED = re.compile(r"message \d+")


class Script:
    """Model script: answer, write one note in each review, summarise by name, and signal each request to the test."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[str] = asyncio.Queue()

    def __call__(self, request: Any) -> Say:
        text = str(request)
        if REVIEW in text:
            noted = "'noted" in text or "noted;" in text or "already noted" in text
            self.asked.put_nowait("review goes on" if noted else "review")
            content = f"learnt of {_NAMED.findall(text)[-1]}"
            arguments = json.dumps({"action": "add", "target": "memory", "content": content})
            return Say("Done.", delay_s=0.02) if noted else Say(calls=(ToolCall("n1", "memory", arguments),))
        if SUMMARISE in text:
            self.asked.put_nowait("summary")
            lines = "\n".join(f"- {name}" for name in dict.fromkeys(_NAMED.findall(text)))
            return Say(f"## Facts\n{lines}", chunks=4, delay_s=0.01)
        # Two answers fill more than half of the context window, so that a compression is always due.
        return Say("Aye." + FILLING, usage=Usage(len(text) // 4, len(FILLING) // 4))

    async def until(self, kinds: tuple[str, ...]) -> None:
        while await self.asked.get() not in kinds:
            pass


async def live(
    home: Path, url: str, script: Script, life: int, *, compresses: bool, kill_at: tuple[str, ...], after_s: float
) -> bool:
    """Run one worker and kill it some time after the given kind of request; return whether it was killed."""
    # Ignore the requests of the previous worker.
    script.asked = asyncio.Queue()
    orders = {"home": str(home), "url": url, "life": life, "message": f"message {life}", "compresses": compresses}
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", WORKER, json.dumps(orders)), cwd=ROOT, stdout=DEVNULL, stderr=DEVNULL
    )
    asked = asyncio.ensure_future(script.until(kill_at))
    ended = asyncio.ensure_future(worker.wait())
    try:
        await asyncio.wait({asked, ended}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            await asyncio.sleep(after_s)
            if worker.returncode is None:
                os.kill(worker.pid, signal.SIGKILL)
        code = await asyncio.wait_for(ended, PATIENCE_S)
    finally:
        asked.cancel()
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
    assert code in (0, -signal.SIGKILL)
    return code != 0


async def killed_lives(home: Path, *, compresses: bool, kill_at: tuple[str, ...], within_s: float) -> int:
    """Run workers until ten were killed within the work, then one to its end; return the number of workers."""
    chance, script = random.Random(str(kill_at)), Script()
    async with ModelServer(script) as server:
        url, kills, life = server.base_url, 0, 0
        while kills < KILLS:
            assert life < 4 * KILLS, f"only {kills} of {life} workers were killed within the work"
            after_s = chance.uniform(0.0, within_s)
            kills += await live(home, url, script, life, compresses=compresses, kill_at=kill_at, after_s=after_s)
            life += 1
        last = await live(home, url, script, life, compresses=compresses, kill_at=(), after_s=0.0)
        assert not last
    return life + 1


@contextmanager
def opened(home: Path) -> Iterator[tuple[UnitOfWork, Any]]:
    connection = connect(str(home / "everthread.db"))
    try:
        assert inconsistencies(connection) == []
        assert list(connection.execute("SELECT turn_id FROM slots")) == []
        yield UnitOfWork(SqliteDatabase(connection)), connection
    finally:
        connection.close()


def said(connection: Any) -> Counter[str]:
    rows = connection.execute("SELECT content FROM messages WHERE role = 'user'")
    return Counter(row[0] for row in rows)


@pytest.mark.timeout(240)
async def test_a_review_that_is_killed_repeatedly_takes_effect_once(tmp_path: Path) -> None:
    lives = await killed_lives(tmp_path, compresses=False, kill_at=("review", "review goes on"), within_s=0.04)
    with opened(tmp_path) as (tables, connection):
        assert said(connection) == Counter(f"message {life}" for life in range(lives))
        (session,) = [s for s in tables.sessions.of_owner(OWNER) if s.key == KEY]
        rows = tables.reviews.of_session(session.id)
        assert {row.state.value for row in rows} == {"done"}
        windows = [(row.window.from_turn, row.window.to_turn) for row in rows]
        assert windows == [(n + 1, n + REVIEW_EVERY) for n in range(0, len(windows) * REVIEW_EVERY, REVIEW_EVERY)]
        assert len(windows) == lives // REVIEW_EVERY
        notes = Counter(note.content for note in tables.notes.current(OWNER, NoteTarget.MEMORY))
        assert notes
        assert max(notes.values()) == 1
        assert {note.session_id for note in tables.notes.current(OWNER, NoteTarget.MEMORY)} == {session.id}
        assert list(connection.execute("SELECT 1 FROM messages WHERE instr(content, ?)", (REVIEW,))) == []


@pytest.mark.timeout(240)
async def test_a_compression_that_is_killed_repeatedly_loses_no_turn_and_runs_once(tmp_path: Path) -> None:
    lives = await killed_lives(tmp_path, compresses=True, kill_at=("summary",), within_s=0.12)
    everything = [f"message {life}" for life in range(lives)]
    with opened(tmp_path) as (tables, connection):
        assert said(connection) == Counter(everything)
        sessions = [s for s in tables.sessions.of_owner(OWNER) if s.key == KEY]
        continued = Counter(s.parent_id for s in sessions if s.cause is Cause.COMPRESSION)
        assert continued
        assert max(continued.values()) == 1
        here = tables.sessions.ref(KEY)
        assert here is not None
        tip = tables.sessions.get(here.session_id)
        assert tip is not None
        view = tables.turns.view(tip)
        behind = _NAMED.findall(view.summary or "")
        assert [*behind, *(turn.user_text for turn in view.turns)] == everything
