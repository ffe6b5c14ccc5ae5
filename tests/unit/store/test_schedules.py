from msgspec.structs import replace

from everthread.domain.schedule import Occurrence, OccurrenceState, Schedule
from everthread.store.unit_of_work import UnitOfWork

DAILY = Schedule("x1", "ann", "news", "0 7 * * *", "UTC", 0.0, "Summarise the news.", next_at=100.0)


def test_a_task_reads_back_and_its_name_is_unique(uow: UnitOfWork) -> None:
    task = replace(DAILY, tools=("search",), continues=True)
    assert uow.schedules.add(task)
    assert not uow.schedules.add(replace(task, id="x2"))
    assert uow.schedules.named("ann", "news") == task
    assert uow.schedules.due(99.0, 5) == ()
    assert uow.schedules.due(100.0, 5) == ("x1",)


def test_an_occurrence_is_added_once_and_trimmed_when_it_is_over(uow: UnitOfWork) -> None:
    uow.schedules.add(DAILY)
    for due_at in (1.0, 2.0, 3.0):
        assert uow.schedules.add_occurrence(Occurrence("x1", due_at, "ann"))
    assert not uow.schedules.add_occurrence(Occurrence("x1", 3.0, "ann"))
    uow.schedules.save_occurrence(Occurrence("x1", 1.0, "ann", OccurrenceState.DONE))
    uow.schedules.trim("x1", 1)
    assert [time.due_at for time in uow.schedules.occurrences("x1", 5)] == [3.0, 2.0]
