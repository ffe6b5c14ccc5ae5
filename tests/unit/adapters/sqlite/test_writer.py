from contextlib import closing
from pathlib import Path

from everthread.adapters.sqlite.connection import connect
from everthread.adapters.sqlite.sentinel import DamageGuard
from everthread.adapters.sqlite.store import prepare
from everthread.adapters.sqlite.write_queue import Job
from everthread.adapters.sqlite.writer import REBUILD_RETRY_S, Writer
from everthread.store.unit_of_work import UnitOfWork


def fail(uow: UnitOfWork) -> None:
    uow.inbox.move_chat("telegram", "1", "never")
    raise ValueError("broken")


def test_a_job_that_fails_affects_no_other(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    prepare(path)
    writer = Writer(str(path), busy_s_max=1.0)
    good = [Job(lambda uow, n=n: uow.inbox.move_chat("telegram", f"{n}", "known")) for n in (2, 3)]
    bad = Job(fail)
    writer.commit([good[0], bad, good[1]])
    assert isinstance(bad.error, ValueError)
    assert [job.error for job in good] == [None, None]
    found = Job(lambda uow: uow.inbox.moved_chats())
    writer.commit([found])
    assert found.result == {("telegram", "2"): "known", ("telegram", "3"): "known"}
    writer.close()


def test_long_work_is_refused_inline(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    prepare(path)
    writer = Writer(str(path), busy_s_max=1.0)
    job = Job(lambda uow: uow.leave_event_loop())
    assert not writer.commit_inline(job)
    assert job.error is None
    writer.commit([job])
    assert job.error is None
    writer.close()


def test_a_blocked_rebuild_of_the_index_waits_before_it_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    prepare(path)
    guard = DamageGuard(path)
    writer = Writer(str(path), busy_s_max=0.0, guard=guard)
    guard.report_index_damage()
    with closing(connect(str(path))) as other:
        other.execute("BEGIN IMMEDIATE")
        wait_s = writer.do_chores()
    assert wait_s is not None
    assert REBUILD_RETRY_S / 2 < wait_s <= REBUILD_RETRY_S
    assert writer.do_chores(), "the lock is free, but the wait has not passed"
    assert guard.is_rebuild_due
    writer.close()


def test_a_rebuild_of_the_index_is_given_up_after_an_error_that_a_retry_does_not_solve(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    prepare(path)
    guard = DamageGuard(path)
    writer = Writer(str(path), busy_s_max=0.0, guard=guard)
    with closing(connect(str(path))) as other:
        other.execute("DROP TABLE message_words")
    guard.report_index_damage()
    assert writer.do_chores() is None
    assert not guard.is_rebuild_due
    writer.close()
