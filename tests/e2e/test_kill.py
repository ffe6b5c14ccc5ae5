"""Kill workers with SIGKILL at every kind of moment and let another worker resume.

Every acknowledged operation must be stored once and in order. Every accepted message must be answered or visibly set
aside. Each memory provider must have received every entry once, in log order.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.e2e.kill_worker import (
    BACK_END,
    PROVIDERS,
    UNKNOWN,
    UNREST,
    GatewayOptions,
    back_end_path,
    message_key,
    message_text,
    open_back_end,
    store_path,
    uses_a_tool,
)

from everthread.adapters.sqlite.connection import Connection, SqliteDatabase, connect, connect_bare
from everthread.domain.model import Role, Session, TurnStatus
from everthread.store.unit_of_work import UnitOfWork

WORKER = Path(__file__).parent / "kill_worker.py"
MESSAGES_PER_LIFE = 10
PATIENCE_S = 60.0


class GatewayProcess:
    """One worker process, from its start to its end."""

    def __init__(self, orders: GatewayOptions) -> None:
        self.orders = orders
        self._said: list[list[str]] = []
        self._more = threading.Condition()
        self._complaints = Path(orders.home) / f"{orders.holder}.err"
        with self._complaints.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, str(WORKER), orders.as_json()], stdout=subprocess.PIPE, stderr=stderr
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self._said.append(line.decode().split())
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def said(self, *words: str) -> list[list[str]]:
        """Return everything the worker has reported after this prefix."""
        return [line[len(words) :] for line in self._said if line[: len(words)] == list(words)]

    def wait_for(self, *words: str, times: int = 1, patience_s: float = PATIENCE_S) -> bool:
        with self._more:
            return (
                self._more.wait_for(
                    lambda: len(self.said(*words)) >= times or self._process.poll() is not None, patience_s
                )
                and len(self.said(*words)) >= times
            )

    def stop(self) -> None:
        """Stop the process with SIGSTOP; return once all of its threads are stopped."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> bool:
        """Kill the process; return whether it was still running."""
        self._process.kill()
        return self._ended() == -signal.SIGKILL

    def rest(self) -> None:
        """Wait until the process ends by itself."""
        code = self._ended()
        assert code == 0, f"{self.orders.holder} ended with {code}: {self._complaints.read_text()[-3000:]}"

    def clear_away(self) -> None:
        """Kill the process if a failed test has left it running."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _ended(self) -> int:
        code = self._process.wait(PATIENCE_S)
        # Output written before the kill is still in the pipe.
        self._listener.join(PATIENCE_S)
        assert code in (0, -signal.SIGKILL), self._complaints.read_text()[-3000:]
        return code


@dataclass
class Home:
    """A home directory that outlives its workers, and the output of those workers."""

    folder: Path
    seed: int
    origin: float = field(default_factory=time.time)
    accepted: dict[int, int] = field(default_factory=dict)
    committed: list[tuple[str, int, str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lives: list[GatewayProcess] = field(default_factory=list)
    _messages: int = 0
    _unheard: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        back_end = open_back_end(str(self.folder))
        back_end.executescript(BACK_END)
        back_end.close()

    def start(self, *, new: int = MESSAGES_PER_LIFE, **more: Any) -> GatewayProcess:
        """Start a worker. The platform sends it new messages and repeats those that were not acknowledged."""
        messages = [*self._unheard, *range(self._messages, self._messages + new)]
        self._messages += new
        self._unheard = []
        number = len(self.lives) + 1
        orders = GatewayOptions(
            str(self.folder), f"life{number}", self.origin, self.seed * 1000 + number, messages, **more
        )
        self.lives.append(GatewayProcess(orders))
        return self.lives[-1]

    def hear(self, life: GatewayProcess) -> None:
        """Record the acknowledgements of a worker that has ended."""
        for number, inbox_id, novelty in life.said("accepted"):
            assert self.accepted.setdefault(int(number), int(inbox_id)) == int(inbox_id), f"{number} was accepted twice"
            self.counts["messages sent again"] += novelty == "again"
        self.committed += [(line[0], int(line[1]), line[2], line[3]) for line in life.said("committed")]
        self._unheard += [number for number in life.orders.messages if number not in self.accepted]
        for word in ("crossed", "resumed", "fenced"):
            self.counts[word] += len(life.said(word))

    def kill(self, life: GatewayProcess) -> None:
        self.counts["kills"] += life.kill()
        self.hear(life)

    def finish(self) -> None:
        """Run a last worker until no work is left."""
        life = self.start(new=2, boundaries=0.0, drain=True)
        life.rest()
        self.hear(life)
        assert not self._unheard

    def report(self) -> None:
        lines = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        sys.stdout.write(f"{self.folder.name}: {lines}\n")


HomeOf = Callable[[int], Home]


@pytest.fixture
def home_of(tmp_path: Path) -> Iterator[HomeOf]:
    """Create a home; kill all of its processes after the test."""
    homes: list[Home] = []

    def make(seed: int) -> Home:
        homes.append(Home(tmp_path, seed))
        return homes[-1]

    yield make
    for life in (life for home in homes for life in home.lives):
        life.clear_away()


# Invariants ---------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """The final content of the store and of the back end."""

    store: Connection
    tables: UnitOfWork
    back_end: sqlite3.Connection

    def rows(self, sql: str, *given: Any) -> list[Any]:
        return list(self.store.execute(sql, given))

    def sessions(self) -> list[Session]:
        found = [self.tables.sessions.get(row[0]) for row in self.rows("SELECT id FROM sessions ORDER BY id")]
        return [session for session in found if session is not None]


def check(home: Home) -> None:
    store = connect(str(store_path(str(home.folder))))
    back_end = open_back_end(str(home.folder))
    try:
        found = Found(store, UnitOfWork(SqliteDatabase(store)), back_end)
        assert found.rows("PRAGMA integrity_check") == [("ok",)]
        assert list(back_end.execute("PRAGMA integrity_check")) == [("ok",)]
        assert found.rows(UNREST) == [(0,)]
        assert found.rows("SELECT COUNT(*) FROM tool_rows") == [(0,)]
        _every_promise_was_kept(home, found)
        _every_message_has_one_fate(home, found)
        _turns_are_in_order(found)
        _tools_ran_once(found)
        shown_at_close = _every_view_is_what_was_sent(found)
        for provider in PROVIDERS:
            _memory_was_told_everything_once(found, provider, shown_at_close)
        _count(home, found)
    finally:
        store.close()
        back_end.close()


def _every_promise_was_kept(home: Home, found: Found) -> None:
    """Check that each acknowledged turn is stored in its session and in no other."""
    assert len(set(home.committed)) == len(home.committed), "a commit was acknowledged twice"
    for session_id, number, status, text in home.committed:
        turn = found.tables.turns.get(session_id, number)
        assert turn is not None, f"{text} was committed to {session_id} as {number} and is missing"
        assert (turn.user_text, turn.status.value) == (text, status)
    for number, inbox_id in home.accepted.items():
        row = found.tables.inbox.get(inbox_id)
        assert row is not None, f"{number} was accepted and is missing"
        assert (row.inbound.update_id, row.inbound.key) == (str(number), message_key(number))


def _every_message_has_one_fate(home: Home, found: Found) -> None:
    """Check that each message was accepted once, and answered once or set aside."""
    taken = found.rows("SELECT id, update_id, state, session_id, turn_id FROM inbox ORDER BY id")
    assert sorted(int(row[1]) for row in taken) == sorted(home.accepted)
    said = Counter(
        row[0] for row in found.rows("SELECT content FROM messages WHERE role = 'user' AND content LIKE 'm%'")
    )
    for inbox_id, update_id, state, session_id, turn_id in taken:
        text = message_text(int(update_id))
        [(status, where, number)] = found.rows(
            "SELECT status, session_id, number FROM turns WHERE turn_id = ?", turn_id
        )
        turn = found.tables.turns.get(where, number)
        assert turn is not None
        assert turn.user_text == text
        assert said[text] == 1, f"{text} is stored {said[text]} times"
        assert where == session_id, f"{text} is in {where}, but its row names {session_id}"
        reply = found.tables.outbox.reply(turn_id)
        match state, status:
            case "done", "done":
                assert reply is not None
                assert (reply.text, reply.state) == (f"answer to {text}", "ready")
            case "done", "late" | "hidden":
                assert reply is None or reply.state == "withheld"
            case "set_aside", "set_aside":
                assert (turn_id, reply) == (f"aside-{inbox_id}", None)
            case _:
                pytest.fail(f"{text} is {state}, its turn {status}")
        home.counts[f"turns {status}"] += 1
    assert sum(said.values()) == len(taken)


def _turns_are_in_order(found: Found) -> None:
    """Check that sequence numbers have no gap and that each key was answered in the order of acceptance."""
    for session in found.sessions():
        turns = found.rows(
            "SELECT t.number, t.status, i.id, i.key FROM turns t JOIN inbox i ON i.turn_id = t.turn_id "
            "WHERE t.session_id = ? ORDER BY t.number",
            session.id,
        )
        assert [row[0] for row in turns] == list(range(session.base_turn + 1, session.last_turn + 1))
        answered: defaultdict[str, list[int]] = defaultdict(list)
        for _, status, inbox_id, key in turns:
            if status == "done":
                answered[key].append(inbox_id)
        assert all(ids == sorted(ids) for ids in answered.values()), f"{session.id} is out of order: {answered}"


def _tools_ran_once(found: Found) -> None:
    runs = Counter(row[0] for row in found.back_end.execute("SELECT turn_id FROM tools"))
    assert set(runs.values()) <= {1}, f"a tool ran twice: {runs}"
    for session in found.sessions():
        for turn in found.tables.turns.view(session).turns:
            results = [message.content for message in turn.messages if message.role is Role.TOOL]
            # A dead process leaves only the user message of a cancelled turn, and a cancelled turn starts no tool.
            wanted = 1 if uses_a_tool(turn.user_text) and turn.assistant_text else 0
            cancelled = turn.status is not TurnStatus.DONE
            assert len(results) == wanted or (cancelled and not results)
            assert all(result in (UNKNOWN, f"seen for {turn.turn_id}") for result in results)
            assert not results or results[0] == UNKNOWN or runs[turn.turn_id] == 1


def _every_view_is_what_was_sent(found: Found) -> dict[tuple[str, int], list[str]]:
    """Replay the logs with lists; return the visible turns of each session at each of its closes."""
    sessions = {session.id: session for session in found.sessions()}
    shown: dict[str, list[tuple[int, str]]] = {}
    at_close: dict[tuple[str, int], list[str]] = {}
    seqs: Counter[str] = Counter()
    for session_id, seq, kind, number, text in found.rows(
        "SELECT session_id, seq, kind, number, detail FROM log ORDER BY pos"
    ):
        detail = json.loads(text) if text else {}
        seqs[session_id] += 1
        assert seq == seqs[session_id], f"the log of {session_id} has a gap before {seq}"
        match kind:
            case "opened" if session_id not in shown:
                inherited = shown[detail["parent"]] if detail["parent"] else []
                shown[session_id] = [turn for turn in inherited if turn[0] > sessions[session_id].floor]
            case "turn":
                turn = found.tables.turns.get(session_id, number)
                assert turn is not None
                shown[session_id].append((number, turn.user_text))
            case "rewind":
                hidden = detail["turns"]
                assert hidden == [turn[0] for turn in shown[session_id][-len(hidden) :]]
                del shown[session_id][-len(hidden) :]
            case "close":
                assert detail["through"] == seq - 1
                at_close[session_id, seq] = [text for _, text in shown[session_id]]
            case _:
                assert kind in ("opened", "note")
    for session_id, turns in shown.items():
        session = sessions[session_id]
        view = found.tables.turns.view(session)
        assert [(turn.number, turn.user_text) for turn in view.turns] == turns, (
            f"{session_id} shows other turns than its log"
        )
        assert session.log_seq == seqs[session_id]
        assert not session.dirty or found.tables.sessions.keys_on(session_id), f"{session_id} was left without a close"
    assert set(shown) == set(sessions)
    return at_close


def _memory_was_told_everything_once(
    found: Found, provider: str, shown_at_close: dict[tuple[str, int], list[str]]
) -> None:
    told: defaultdict[str, list[tuple[int, str, dict[str, Any]]]] = defaultdict(list)
    rows = found.back_end.execute(
        "SELECT session_id, seq, kind, facts FROM effects WHERE provider = ? ORDER BY id", (provider,)
    )
    for session_id, seq, kind, facts in rows:
        told[session_id].append((seq, kind, json.loads(facts)))
    for session in found.sessions():
        seqs = [seq for seq, _, _ in told[session.id]]
        assert seqs == list(range(1, session.log_seq + 1)), f"{provider} received {seqs} of {session.id}"
        for seq, kind, facts in told[session.id]:
            entry = found.tables.log.entry(session.id, seq)
            assert entry is not None
            assert kind == entry.kind
            match kind:
                case "turn":
                    turn = found.tables.turns.get(session.id, facts["number"])
                    assert turn is not None
                    assert (facts["text"], facts["answer"]) == (turn.user_text, turn.assistant_text)
                    assert facts["number"] == entry.number
                case "close":
                    assert (facts["through"], facts["missing"]) == (seq - 1, [])
                    assert facts["shown"] == shown_at_close[session.id, seq]
                case "opened" | "rewind":
                    assert facts == entry.detail
                case _:
                    assert facts["text"].startswith("note in m")
        cursor = found.tables.cursors.get(provider, session.id)
        assert cursor is not None
        assert cursor.seq == session.log_seq


def _count(home: Home, found: Found) -> None:
    [(effects,)] = found.back_end.execute("SELECT COUNT(*) FROM effects")
    [(attempts,)] = found.back_end.execute("SELECT COUNT(*) FROM attempts")
    [(tools,)] = found.back_end.execute("SELECT COUNT(*) FROM tools")
    home.counts.update({"deliveries": effects, "duplicates suppressed": attempts - effects, "tools run": tools})
    home.counts["sessions"] = len(found.sessions())


# One worker after another -------------------------------------------------------------------------------------------


def _after(word: str, times: int = 1) -> Callable[[GatewayProcess], None]:
    """Wait until the worker has reported this word, or until a timeout."""

    def wait(life: GatewayProcess) -> None:
        life.wait_for(word, times=times, patience_s=4.0)

    return wait


def _in_a_moment(seconds: float) -> Callable[[GatewayProcess], None]:
    return lambda life: time.sleep(seconds)


def _while_it_works(seconds: float) -> Callable[[GatewayProcess], None]:
    def wait(life: GatewayProcess) -> None:
        life.wait_for("started")
        time.sleep(seconds)

    return wait


def _moments(dice: random.Random) -> list[Callable[[GatewayProcess], None]]:
    """Return the moments of the kill: while the store opens, at each report, within a burst, and at random."""
    moments = [
        _in_a_moment(dice.uniform(0.0, 0.5)),
        _after("started"),
        _after("accepted", dice.randint(1, 8)),
        _after("began", dice.randint(1, 4)),
        _after("tool"),
        _after("committed", dice.randint(1, 5)),
        _after("crossed", dice.randint(1, 2)),
        _after("delivered", dice.randint(1, 12)),
        _after("resumed"),
        _while_it_works(dice.uniform(0.0, 0.05)),
        _while_it_works(dice.uniform(0.05, 0.3)),
        _while_it_works(dice.uniform(0.3, 1.2)),
    ]
    dice.shuffle(moments)
    return moments


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_kill_at_any_moment_loses_nothing_and_repeats_nothing(seed: int, home_of: HomeOf) -> None:
    dice = random.Random(seed)
    home = home_of(seed)
    for moment in _moments(dice):
        life = home.start(at_once=dice.choice((1, 1, MESSAGES_PER_LIFE)))
        moment(life)
        home.kill(life)
    home.finish()
    check(home)
    home.report()
    assert home.counts["kills"] == 12
    assert home.counts["turns done"] > 10


# Two workers at once ------------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_of_two_processes_on_one_home_one_continues_while_the_other_is_killed(home_of: HomeOf) -> None:
    dice = random.Random(42)
    home = home_of(42)
    lives = [home.start(), home.start()]
    for moment in _moments(dice):
        moment(lives[0])
        home.kill(lives[0])
        lives = [lives[1], home.start(at_once=dice.choice((1, MESSAGES_PER_LIFE)))]
    for life in lives:
        home.kill(life)
    home.finish()
    check(home)
    home.report()
    assert home.counts["kills"] == 14
    assert home.counts["turns done"] > 10


# Stopped and continued ----------------------------------------------------------------------------------------------

TRUTH = ("sessions", "bindings", "turns", "messages", "log", "slots", "inbox", "replies", "cursors", "redeliveries")


def _truth(home: Home) -> dict[str, list[Any]]:
    store = connect(str(store_path(str(home.folder))))
    try:
        return {table: list(store.execute(f"SELECT * FROM {table}")) for table in TRUTH}
    finally:
        store.close()


def _fence(home: Home, lane: str) -> tuple[str, int]:
    store = connect(str(store_path(str(home.folder))))
    try:
        [(holder, fence)] = store.execute("SELECT holder, fence FROM leases WHERE name = ?", (lane,))
        return holder, fence
    finally:
        store.close()


def _stop_outside_a_transaction(life: GatewayProcess) -> None:
    """Stop the process while it holds no database lock, which would block all other processes."""
    paths = (store_path(life.orders.home), back_end_path(life.orders.home))
    for _ in range(100):
        life.stop()
        if all(_can_be_written(path) for path in paths):
            return
        life.go_on()
        time.sleep(0.003)
    pytest.fail("it was never outside a transaction")


def _can_be_written(path: Path) -> bool:
    connection = connect_bare(str(path), busy_s_max=0.05)
    try:
        connection.execute("BEGIN EXCLUSIVE; ROLLBACK")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True


@pytest.mark.timeout(120)
def test_a_process_stopped_past_its_lease_writes_nothing_under_it(home_of: HomeOf) -> None:
    home = home_of(7)
    lane = f"journal:{PROVIDERS[0]}"
    stopped = home.start(new=5, boundaries=0.0, idle_s=None, hold_s=5.0)
    # Stop it within a turn and within deliveries, with no other message left to accept.
    assert stopped.wait_for("accepted", times=5)
    assert stopped.wait_for("holding")
    assert stopped.wait_for("thinking")
    _stop_outside_a_transaction(stopped)
    assert not stopped.said("fenced")
    held, [[turn_id]] = stopped.said("holding"), stopped.said("thinking")
    assert not [key for key in held if key in stopped.said("delivered")]
    holder, fence = _fence(home, lane)
    assert holder == stopped.orders.holder
    other = home.start(new=3, boundaries=0.0, idle_s=None, drain=True)
    other.rest()
    assert [turn_id] in other.said("resumed")
    assert all(key in other.said("delivered") for key in held)
    holder, higher = _fence(home, lane)
    assert (holder, higher > fence) == (other.orders.holder, True)
    before = _truth(home)
    stopped.go_on()
    assert stopped.wait_for("fenced", "turn", turn_id)
    assert stopped.wait_for("fenced", "lane", PROVIDERS[0], times=len(held))
    # It repeats only the delivery that was in progress, which has no effect.
    assert all(stopped.wait_for("delivered", *key) for key in held)
    time.sleep(0.5)
    assert _truth(home) == before
    home.hear(other)
    home.kill(stopped)
    home.finish()
    check(home)
    home.report()
    assert home.counts["duplicates suppressed"] >= len(held)
