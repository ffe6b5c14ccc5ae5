"""Tasks and their runs as text and JSON."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from everthread.cli.commands.cron.output import format_delivery, format_next, format_result, run_as_json, task_as_json
from everthread.domain.schedule import Occurrence, OccurrenceState, Schedule, ScheduleState, Target, TargetKind

AT = 1_790_000_000.0
TASK = Schedule("1", "me", "tea", "@daily", "Europe/Berlin", AT, "Make tea", next_at=AT)
RUN = Occurrence("1", AT, "me", OccurrenceState.DONE, session_id="s1", ended_at=AT + 60)


def test_the_next_run_is_printed_in_the_zone_of_the_task() -> None:
    assert format_next(TASK) == "next: Mon 2026-09-21 16:13:20 Europe/Berlin"
    assert format_next(replace(TASK, next_at=None, state=ScheduleState.PAUSED)) == "paused"
    assert format_next(replace(TASK, next_at=None)) == "over"


def test_the_result_of_a_run_includes_its_error() -> None:
    assert format_result(None) == "-"
    assert format_result(RUN) == "done"
    assert format_result(replace(RUN, state=OccurrenceState.FAILED, problem="no model")) == "failed: no model"


@pytest.mark.parametrize(
    ("target", "state", "text"),
    [
        (Target(), OccurrenceState.DONE, "stored in session s1"),
        (
            Target(TargetKind.CHAT, "agent:main:telegram:dm:42"),
            OccurrenceState.DONE,
            "the answer is sent to telegram:42 when a gateway runs",
        ),
        (Target(TargetKind.FILE, "/tea.md"), OccurrenceState.DONE, "delivered to file:/tea.md"),
        (Target(TargetKind.FILE, "/tea.md"), OccurrenceState.FAILED, "not yet delivered to file:/tea.md"),
    ],
)
def test_the_delivery_depends_on_the_target(target: Target, state: OccurrenceState, text: str) -> None:
    assert format_delivery(replace(TASK, target=target), replace(RUN, state=state)) == text


def test_json_has_null_for_empty_values() -> None:
    run = {"due": "2026-09-21T14:13:20Z", "state": "done", "ended": "2026-09-21T14:14:20Z", "session": "s1"}
    assert run_as_json(RUN) == run | {"problem": None}
    task = task_as_json(TASK, RUN)
    assert (task["model"], task["tools"], task["to"], task["last"]["state"]) == (None, None, "none", "done")
    assert task_as_json(replace(TASK, tools=()))["tools"] == []
    assert task_as_json(TASK)["last"] is None
