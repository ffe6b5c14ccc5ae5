import asyncio
from typing import Any

import pytest

from everthread.concurrency import cancel_tasks, finish_tasks, in_daemon_thread


class Odd(BaseException):
    pass


def raising(error: BaseException) -> Any:
    def function() -> None:
        raise error

    return function


async def outcome(function: Any) -> Any:
    async with asyncio.timeout(5):
        return await in_daemon_thread(function, "test")


async def test_the_result_or_exception_of_the_function_is_passed_on() -> None:
    assert await outcome(lambda: 7) == 7
    with pytest.raises(ValueError, match="wrong"):
        await outcome(raising(ValueError("wrong")))


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), StopIteration(1), Odd()]
)
async def test_base_exceptions_and_cancellations_become_errors(error: BaseException) -> None:
    with pytest.raises(RuntimeError) as caught:
        await outcome(raising(error))
    assert str(caught.value) == repr(error)
    assert caught.value.__cause__ is error


async def test_tasks_are_cancelled_in_their_order() -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    tasks = [asyncio.ensure_future(work(number)) for number in range(100)]
    await asyncio.sleep(0)
    await cancel_tasks(tasks)
    assert ended == list(range(100))


async def test_tasks_may_finish_until_the_deadline_and_are_cancelled_then() -> None:
    async def wait(event: asyncio.Event) -> None:
        await event.wait()

    event = asyncio.Event()
    quick, endless = asyncio.ensure_future(wait(event)), asyncio.ensure_future(wait(asyncio.Event()))
    loop = asyncio.get_running_loop()
    loop.call_later(0.05, event.set)
    started_at = loop.time()
    await finish_tasks(lambda: [task for task in (quick, endless) if not task.done()], started_at + 0.3)
    assert loop.time() - started_at >= 0.3
    assert not quick.cancelled()
    assert endless.cancelled()
