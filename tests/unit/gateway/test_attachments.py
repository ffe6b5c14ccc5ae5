"""Storage of attachments, and the limit of concurrent downloads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from tests.runtime import MovableClock

from everthread.domain.media import Media
from everthread.domain.model import ChatType
from everthread.gateway.attachments import BYTES_MAX, IN_MEMORY_BYTES_MAX, AttachmentFetcher
from everthread.ports.platform import Capabilities, Platform, Update

AT_ONCE_MAX = IN_MEMORY_BYTES_MAX // BYTES_MAX
"""Of those that do not say how large they are."""


class DownloadPlatform:
    """A platform that only serves downloads."""

    name = "telegram"
    capabilities = Capabilities(4096, fetches=True)

    def __init__(self) -> None:
        self.under_way = self.most = 0

    async def fetch(self, media: Media, bytes_max: int) -> bytes:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        return media.handle.encode()


def luggage(folder: Path, carrier: DownloadPlatform) -> AttachmentFetcher:
    return AttachmentFetcher({"telegram": cast(Platform, carrier)}, folder / "media", None, MovableClock())


def said(path: str) -> str:
    return Path(path).read_text()


def update(number: str, user: str, name: str) -> Update:
    media = Media("file", name, handle=f"of {user}")
    return Update("telegram", "bot", number, user, ChatType.DM, user, "", media=(media,))


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [("report.txt", "1", "2"), ("r" * 200 + ".txt", "1", "2"), ("x" * 130, "1", "11"), ("a.txt", "1/2", "1_2")],
)
async def test_files_with_the_same_name_are_stored_separately(tmp_path: Path, name: str, one: str, other: str) -> None:
    carrier = DownloadPlatform()
    bags = luggage(tmp_path, carrier)
    kept: list[Media] = []
    for number, user in ((one, "ann"), (other, "bea")):
        packed = bags.plan(update(number, user, name)).media
        kept += (await bags.fetch("telegram", packed)).media
    assert [said(bags.file_path(media)) for media in kept] == ["of ann", "of bea"]
    assert all(len(Path(media.path).name) <= 130 for media in kept)


async def test_the_number_of_concurrent_downloads_is_limited(tmp_path: Path) -> None:
    carrier = DownloadPlatform()
    bags = luggage(tmp_path, carrier)
    packed = [bags.plan(update(str(number), str(number), "a.txt")).media for number in range(3 * AT_ONCE_MAX)]
    done: list[Any] = await asyncio.gather(*(bags.fetch("telegram", media) for media in packed))
    assert (len(done), carrier.most) == (3 * AT_ONCE_MAX, AT_ONCE_MAX)
