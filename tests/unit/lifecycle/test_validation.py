from pathlib import Path

import pytest
from tests.runtime import CoreFixture

from everthread.domain.boundary import New
from everthread.domain.errors import BadInput, BadKey
from everthread.domain.model import ChatType, Inbound, SessionKey


async def test_a_key_that_is_too_long_is_refused(tmp_path: Path) -> None:
    key = SessionKey("main", "telegram", ChatType.DM, "9" * 600)
    async with CoreFixture(tmp_path) as core:
        with pytest.raises(BadKey):
            await core.lifecycle.accept(Inbound(key, "me", "hello"))
        with pytest.raises(BadKey):
            await core.cross(key, New())


@pytest.mark.parametrize(
    "key",
    [
        SessionKey("main", "cli", ChatType.DM, ""),
        SessionKey("", "cli", ChatType.DM, "1"),
        SessionKey("main", "cli", ChatType.DM, "\ud83d"),
        SessionKey("main", "cli", ChatType.DM, "1", thread=""),
    ],
)
async def test_a_key_that_can_not_be_parsed_back_is_refused(tmp_path: Path, key: SessionKey) -> None:
    async with CoreFixture(tmp_path) as core:
        with pytest.raises(BadKey):
            await core.lifecycle.accept(Inbound(key, "me", "hello"))
        with pytest.raises(BadKey):
            await core.lifecycle.begin_turn(key)


@pytest.mark.parametrize("owner", ["", "o" * 10_000, "\ud83d"])
async def test_an_invalid_owner_is_refused(tmp_path: Path, owner: str) -> None:
    async with CoreFixture(tmp_path) as core:
        with pytest.raises(BadInput):
            await core.note("likes tea", owner=owner)
