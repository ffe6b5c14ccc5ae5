"""Results of delegated and scheduled work are stored once, and reported, although the store fails for a while."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.gateway import GatewayFixture, gateway_fixture
from tests.runtime import PATIENCE_S, MovableClock, until

from everthread.adapters.sqlite.connection import connect_bare
from everthread.config.schema import AccessGrants, AccessSettings
from everthread.domain.events import EntryKind
from everthread.domain.model import Role, Session, SessionKind, ToolCall
from everthread.domain.schedule import OccurrenceState, Target, TargetKind
from everthread.lifecycle.schedules import NewSchedule
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

TASK = "work it out"
RESULT = "the answer is 42"
HOUR = 3600.0
BUSY_S = 0.05
DUTY = NewSchedule("me", "every 1h", "UTC", TASK, target=Target(TargetKind.CHAT, "agent:main:fake:dm:42"))


DELEGATES = AccessSettings(guests=AccessGrants(("delegate",)))


class HastyClock(MovableClock):
    """A clock on which pauses take a twentieth of their time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


class FailingStore:
    """Another connection to the store, which makes writes of the gateway fail."""

    def __init__(self, home: Path) -> None:
        self._connection = connect_bare(str(home / "everthread.db"))

    def lock(self) -> None:
        """Hold the write lock."""
        self._connection.execute("BEGIN IMMEDIATE")

    def unlock(self) -> None:
        self._connection.execute("ROLLBACK")

    def refuse(self, when: str, condition: str) -> None:
        """Let each write of such a row fail, as an error of the disk does."""
        self._connection.execute(
            f"CREATE TRIGGER refused BEFORE {when} WHEN {condition} BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )

    def accept(self) -> None:
        self._connection.execute("DROP TRIGGER refused")

    def close(self) -> None:
        self._connection.close()


@contextmanager
def failing_store(home: Path) -> Iterator[FailingStore]:
    store = FailingStore(home)
    try:
        yield store
    finally:
        store.close()


class Script:
    """A model that delegates its first message. `on_task` is called before it answers a task."""

    def __init__(self) -> None:
        self.on_task: Callable[[], None] = lambda: None

    def __call__(self, request: Any) -> Say:
        said = [message.content for message in request.messages if message.role == "user"][-1]
        if TASK in said:
            self.on_task()
            self.on_task = lambda: None
            return Say(RESULT)
        if request.messages[-1].role == "tool":
            return Say("it is 42")
        return Say(calls=(ToolCall("c1", "delegate", json.dumps({"task": TASK})),))


async def ended_session(fixture: GatewayFixture, kind: SessionKind) -> Session:
    """Wait until the only session of this kind has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        (session,) = await fixture.runtime.store.read(
            lambda uow: uow.sessions.recent(owner=None, limit=9, kind=kind.value)
        )
        if session.ended_at is not None:
            return session
        assert time.monotonic() < deadline, f"{session} has not ended"
        await asyncio.sleep(0.01)


async def check_delegated_once(fixture: GatewayFixture) -> None:
    await until(lambda: fixture.platform.texts())
    child = await ended_session(fixture, SessionKind.SUBAGENT)
    await fixture.rest()
    assert fixture.platform.texts() == ["it is 42"]
    (turn,) = await fixture.turns()
    (result,) = [message.content for message in turn.messages if message.role is Role.TOOL]
    assert result == f"{RESULT}\n\n(done in session {child.id})"
    assert len(await fixture.turns(child.id)) == 1
    entries = await fixture.runtime.store.read(lambda uow: uow.log.of_kind(turn.session_id, EntryKind.DELEGATION))
    assert [entry.detail and entry.detail["result"] for entry in entries] == [RESULT]


@pytest.mark.parametrize(
    ("when", "condition", "reported"),
    [
        ("INSERT ON messages", f"NEW.content = '{RESULT}'", "cannot serve agent:main:fake:dm:42; retrying"),
        ("INSERT ON log", "NEW.kind = 'delegation'", "cannot serve agent:main:fake:dm:42; retrying"),
        (
            "UPDATE ON sessions",
            "NEW.kind = 'subagent' AND NEW.ended_at IS NOT NULL",
            "delegation: could not end the session of a subtask; retrying",
        ),
        ("UPDATE ON tool_rows", "NEW.state = 'done'", "cannot serve agent:main:fake:dm:42; retrying"),
    ],
    ids=["answer", "record", "end", "tool-result"],
)
async def test_a_delegated_result_is_stored_once_after_the_store_refused_a_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, when: str, condition: str, reported: str
) -> None:
    async with (
        ModelServer(Script()) as model,
        gateway_fixture(tmp_path, model, clock=HastyClock(), access=DELEGATES) as fixture,
    ):
        with failing_store(tmp_path) as store:
            store.refuse(when, condition)
            fixture.platform.say("what is the answer?")
            await until(lambda: reported in caplog.text)
            store.accept()
        await check_delegated_once(fixture)
        if reported.startswith("delegation: "):
            await reported_as_incident(fixture, "delegation", "could not end the session of a subtask for ")


async def test_a_delegated_result_is_stored_once_after_another_process_held_the_write_lock(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    async with (
        ModelServer(script) as model,
        gateway_fixture(tmp_path, model, clock=HastyClock(), busy_s_max=BUSY_S, access=DELEGATES) as fixture,
    ):
        with failing_store(tmp_path) as store:
            script.on_task = store.lock
            fixture.platform.say("what is the answer?")
            await until(lambda: "could not release turn" in caplog.text)
            store.unlock()
        await check_delegated_once(fixture)


async def check_scheduled_once(fixture: GatewayFixture) -> None:
    await until(lambda: fixture.platform.texts())
    session = await ended_session(fixture, SessionKind.CRON)
    await fixture.rest()
    assert fixture.platform.texts() == [RESULT]
    assert len(await fixture.turns(session.id)) == 1
    (schedule,) = await fixture.runtime.store.read(lambda uow: uow.schedules.all())
    (occurrence,) = await fixture.runtime.store.read(lambda uow: uow.schedules.occurrences(schedule.id, 9))
    assert (occurrence.state, occurrence.problem) == (OccurrenceState.DONE, "")


@pytest.mark.parametrize(
    ("when", "condition", "reported"),
    [
        ("INSERT ON occurrences", "true", "scheduled tasks are delayed"),
        ("INSERT ON messages", f"NEW.content = '{RESULT}'", "a scheduled task is delayed"),
        ("UPDATE ON occurrences", "NEW.ended_at IS NOT NULL", "a scheduled task is delayed"),
        (
            "UPDATE ON sessions",
            "NEW.kind = 'cron' AND NEW.ended_at IS NOT NULL",
            "schedule: could not end the session of a scheduled task; retrying",
        ),
    ],
    ids=["occurrence", "answer", "outcome", "end"],
)
async def test_a_scheduled_result_is_stored_once_after_the_store_refused_a_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, when: str, condition: str, reported: str
) -> None:
    async with (
        ModelServer(Script()) as model,
        gateway_fixture(tmp_path, model, clock=HastyClock(), access=DELEGATES) as fixture,
    ):
        await fixture.runtime.scheduling.add(DUTY)
        with failing_store(tmp_path) as store:
            store.refuse(when, condition)
            await fixture.later(HOUR)
            await until(lambda: reported in caplog.text)
            store.accept()
        await check_scheduled_once(fixture)
        if reported.startswith("schedule: "):
            await reported_as_incident(fixture, "schedule", "could not end the session of a scheduled task for ")


async def test_a_scheduled_result_is_stored_once_after_another_process_held_the_write_lock(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    async with (
        ModelServer(script) as model,
        gateway_fixture(tmp_path, model, clock=HastyClock(), busy_s_max=BUSY_S, access=DELEGATES) as fixture,
    ):
        await fixture.runtime.scheduling.add(DUTY)
        with failing_store(tmp_path) as store:
            script.on_task = store.lock
            await fixture.later(HOUR)
            await until(lambda: "could not release turn" in caplog.text)
            store.unlock()
        await check_scheduled_once(fixture)


async def reported_as_incident(fixture: GatewayFixture, source: str, text: str) -> None:
    """Wait until the failure is an incident, and check that it is the only one."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := await fixture.runtime.store.read(lambda uow: uow.incidents.newest(9))):
        assert time.monotonic() < deadline, "never reported"
        await asyncio.sleep(0.01)
    (incident,) = found
    assert incident.source == source
    assert text in incident.text
    assert "refused" in incident.text
