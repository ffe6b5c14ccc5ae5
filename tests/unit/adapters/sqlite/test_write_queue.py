import asyncio

import pytest

from everthread.adapters.sqlite.write_queue import Job, WriteQueue
from everthread.domain.errors import StoreError


async def test_jobs_come_back_with_their_results() -> None:
    queue = WriteQueue()
    futures = [queue.submit(lambda uow: None) for _ in range(2)]
    jobs = queue.take(10)
    assert jobs is not None
    assert len(jobs) == 2
    jobs[0].result, jobs[1].error = "done", StoreError("failed")
    queue.finished(list(jobs))
    assert await futures[0] == "done"
    with pytest.raises(StoreError, match="failed"):
        await futures[1]
    queue.end()
    assert queue.take(10) is None
    queue.close()


async def test_the_writer_can_be_woken_without_a_job() -> None:
    queue = WriteQueue()
    queue.wake()
    assert queue.take(10) == []
    queue.wake()
    job = queue.submit(lambda uow: None)
    jobs = queue.take(10)
    assert jobs is not None
    assert [one.done for one in jobs] == [job]
    queue.finished(jobs)
    await job
    queue.wake()
    queue.end()
    assert queue.take(10) is None
    queue.close()


async def test_a_single_job_runs_inline_and_several_are_queued() -> None:
    queue = WriteQueue()

    def run_inline(job: Job) -> bool:
        job.result = "inline"
        return True

    assert await queue.run_or_submit(lambda uow: None, run_inline) == "inline"
    several = [asyncio.ensure_future(queue.run_or_submit(lambda uow: None, run_inline)) for _ in range(2)]
    jobs = await asyncio.to_thread(queue.take, 10) or []
    while len(jobs) < 2:
        jobs += await asyncio.to_thread(queue.take, 10) or []
    queue.finished(jobs)
    assert await asyncio.gather(*several) == [None, None]
    queue.end()
    queue.close()


async def test_a_queue_that_has_ended_accepts_no_job() -> None:
    queue = WriteQueue()
    queue.end()
    with pytest.raises(StoreError, match="closed"):
        queue.submit(lambda uow: None)
    queue.close()
