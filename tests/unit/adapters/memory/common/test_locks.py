"""Locks by name."""

import asyncio

from everthread.adapters.memory.common.locks import KeyedLocks


async def test_one_holder_of_a_name_at_a_time_and_others_need_not_wait() -> None:
    locks, order = KeyedLocks(), list[str]()
    may_go_on = asyncio.Event()

    async def hold(name: str, label: str, event: asyncio.Event | None = None) -> None:
        async with locks.lock(name):
            order.append(f"{label} in")
            if event is not None:
                await event.wait()
            order.append(f"{label} out")

    first = asyncio.ensure_future(hold("s1", "first", may_go_on))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(hold("s1", "second"))
    await asyncio.wait_for(hold("s2", "other"), 5)
    may_go_on.set()
    await asyncio.gather(first, second)
    assert order == ["first in", "other in", "other out", "first out", "second in", "second out"]
