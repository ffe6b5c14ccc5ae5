"""Tasks and their runs as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everthread.cli.output import iso_time

if TYPE_CHECKING:
    from everthread.domain.schedule import Occurrence, Schedule


def format_next(schedule: Schedule) -> str:
    from everthread.domain.schedule import ScheduleState

    if schedule.next_at is not None:
        return f"next: {format_time(schedule.next_at, schedule)}"
    return "paused" if schedule.state is ScheduleState.PAUSED else "over"


def format_time(at: float, schedule: Schedule) -> str:
    from everthread.domain.recurrence import format_in_zone

    return format_in_zone(at, schedule.zone)


def format_result(run: Occurrence | None) -> str:
    if run is None:
        return "-"
    return f"{run.state.value}: {run.problem}" if run.problem else run.state.value


def format_delivery(schedule: Schedule, run: Occurrence) -> str:
    from everthread.domain.schedule import OccurrenceState, TargetKind

    match schedule.target.kind:
        case TargetKind.NONE:
            return f"stored in session {run.session_id}"
        case TargetKind.CHAT:
            return f"the answer is sent to {schedule.target} when a gateway runs"
        case _:
            done = run.state is OccurrenceState.DONE
            return f"{'delivered' if done else 'not yet delivered'} to {schedule.target}"


def run_as_json(run: Occurrence) -> dict[str, Any]:
    return {
        "due": iso_time(run.due_at),
        "state": run.state.value,
        "ended": iso_time(run.ended_at),
        "session": run.session_id,
        "problem": run.problem or None,
    }


def task_as_json(schedule: Schedule, last: Occurrence | None = None) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "owner": schedule.owner,
        "when": schedule.recurrence,
        "zone": schedule.zone,
        "prompt": schedule.prompt,
        "to": str(schedule.target),
        "model": schedule.model or None,
        "tools": list(schedule.tools) if schedule.tools is not None else None,
        "missed": schedule.missed.value,
        "continue": schedule.continues,
        "spend": schedule.spend,
        "state": schedule.state.value,
        "next": iso_time(schedule.next_at),
        "last": run_as_json(last) if last is not None else None,
    }
