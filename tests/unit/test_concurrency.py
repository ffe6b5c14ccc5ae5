import asyncio
from typing import Any

import pytest

from everthread.concurrency import in_daemon_thread


class Odd(BaseException):
    pass


def raising(error: BaseException) -> Any:
    def function() -> None:
        raise error

    return function


async def outcome(function: Any) -> Any:
    async with asyncio.timeout(5):
        return await in_daemon_thread(function, "test")


async def test_what_the_function_returns_or_raises_is_handed_over() -> None:
    assert await outcome(lambda: 7) == 7
    with pytest.raises(ValueError, match="wrong"):
        await outcome(raising(ValueError("wrong")))


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), StopIteration(1), Odd()]
)
async def test_what_would_end_the_loop_or_pass_for_something_else_becomes_an_error(error: BaseException) -> None:
    with pytest.raises(RuntimeError) as caught:
        await outcome(raising(error))
    assert str(caught.value) == repr(error)
    assert caught.value.__cause__ is error
