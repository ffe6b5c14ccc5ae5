"""Concurrent downloads share a bounded number of bytes in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from everthread.bootstrap.clock import SystemClock
from everthread.domain.errors import PlatformRefused
from everthread.domain.media import Media
from everthread.gateway.attachments import BYTES_MAX, IN_MEMORY_BYTES_MAX, AttachmentFetcher, ByteBudget
from everthread.ports.platform import Platform


class SlowFilePlatform:
    """A platform that returns files of the declared size once its event is set."""

    name = "depot"

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.out: list[int] = []
        self.asked = 0
        self.asked_at_once_max = 0
        self.bytes_at_once_max = 0

    async def fetch(self, media: Media, bytes_max: int) -> bytes:
        size = int(media.handle)
        self.asked += 1
        self.out.append(bytes_max)
        self.bytes_at_once_max = max(self.bytes_at_once_max, sum(self.out))
        self.asked_at_once_max = max(self.asked_at_once_max, len(self.out))
        try:
            await self.open.wait()
            await asyncio.sleep(0)
            if size > bytes_max:
                raise PlatformRefused("it is larger than that")
            return b"x" * min(size, 100)
        finally:
            self.out.remove(bytes_max)


def luggage(depot: SlowFilePlatform, folder: Path) -> AttachmentFetcher:
    platforms = {"depot": cast("Platform", cast("Any", depot))}
    return AttachmentFetcher(platforms, folder / "media", None, SystemClock())


def file(number: int, size: int | None, really: int | None = None) -> tuple[Media, ...]:
    handle = str(really if really is not None else size or 1)
    return (Media("file", f"{number}.bin", size=size, handle=handle, path=f"depot/{number}.bin"),)


async def test_large_files_from_many_chats_wait_for_each_other(tmp_path: Path) -> None:
    depot = SlowFilePlatform()
    carried = luggage(depot, tmp_path)
    all_of_them = [asyncio.ensure_future(carried.fetch("depot", file(n, BYTES_MAX))) for n in range(12)]
    # A file of unknown size may have the maximum size.
    all_of_them += [asyncio.ensure_future(carried.fetch("depot", file(n, None))) for n in range(12, 16)]
    await asyncio.sleep(0.05)
    assert depot.asked == IN_MEMORY_BYTES_MAX // BYTES_MAX, "as many as the budget allows"
    depot.open.set()
    unpacked = await asyncio.gather(*all_of_them)
    assert depot.asked == 16
    assert depot.bytes_at_once_max <= IN_MEMORY_BYTES_MAX
    assert all((tmp_path / "media" / one.media[0].path).is_file() for one in unpacked)


async def test_small_files_do_not_wait_for_each_other(tmp_path: Path) -> None:
    depot = SlowFilePlatform()
    carried = luggage(depot, tmp_path)
    all_of_them = [asyncio.ensure_future(carried.fetch("depot", file(n, 100_000))) for n in range(200)]
    await asyncio.sleep(0.05)
    assert depot.asked_at_once_max == 200
    depot.open.set()
    await asyncio.gather(*all_of_them)


async def test_a_file_larger_than_declared_is_refused(tmp_path: Path) -> None:
    depot = SlowFilePlatform()
    depot.open.set()
    unpacked = await luggage(depot, tmp_path).fetch("depot", file(1, 1000, really=2000))
    assert unpacked.media[0].words == "(it could not be fetched)"
    assert not (tmp_path / "media").exists()


async def test_a_cancelled_waiter_releases_its_place_in_the_queue() -> None:
    room = ByteBudget(10)
    order: list[str] = []

    async def use(name: str, size: int, until: asyncio.Event) -> None:
        async with room.reserve(size):
            order.append(name)
            await until.wait()

    first_may_go, go = asyncio.Event(), asyncio.Event()
    go.set()
    first = asyncio.ensure_future(use("first", 8, first_may_go))
    await asyncio.sleep(0)
    large = asyncio.ensure_future(use("large", 10, go))
    small = asyncio.ensure_future(use("small", 2, go))
    await asyncio.sleep(0.01)
    assert order == ["first"], "the queue is FIFO, so that large requests are not starved"
    large.cancel()
    await asyncio.wait({small}, timeout=2.0)
    assert order == ["first", "small"]
    first_may_go.set()
    await first
    async with asyncio.timeout(2.0), room.reserve(100):
        order.append("all of it")
    assert order[-1] == "all of it"


async def test_a_file_that_cannot_be_stored_leaves_no_part_behind(tmp_path: Path) -> None:
    depot = SlowFilePlatform()
    depot.open.set()
    folder = tmp_path / "media" / "depot"
    folder.mkdir(parents=True)
    (folder / "elsewhere").write_bytes(b"of somebody else")
    (folder / "1.bin").symlink_to(folder / "elsewhere")
    unpacked = await luggage(depot, tmp_path).fetch("depot", file(1, 50))
    assert unpacked.media[0].words == "(it could not be stored)"
    assert [path.name for path in folder.iterdir()] == ["elsewhere"]
    assert (folder / "elsewhere").read_bytes() == b"of somebody else"
