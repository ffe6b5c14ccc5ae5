from pathlib import Path

from everthread.adapters.sqlite.store import prepare
from everthread.adapters.sqlite.write_queue import Job
from everthread.adapters.sqlite.writer import Writer
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
