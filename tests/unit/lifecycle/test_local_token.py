"""The automatic token: created once per store, readable by the user only, and never again after it was revoked."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Barrier

import pytest

from everthread.adapters.sqlite.store import SqliteStore
from everthread.domain.api_key import BYTES, hash_token, make_token
from everthread.domain.errors import StoreUnwritable
from everthread.lifecycle.local_token import LocalToken, no_valid_key
from everthread.store.api_keys import ApiKey
from everthread.testing.contracts.store.fixtures import StillClock


def new_token() -> str:
    return make_token(secrets.token_urlsafe(BYTES))


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[SqliteStore, LocalToken]]:
    store = await SqliteStore.open(folder / "everthread.db")
    try:
        yield store, LocalToken(store, StillClock(), folder / "local.token")
    finally:
        await store.aclose()


async def keys(store: SqliteStore) -> tuple[ApiKey, ...]:
    return await store.read(lambda uow: uow.api_keys.all())


async def test_the_first_start_creates_a_token_that_only_the_user_can_read(tmp_path: Path) -> None:
    token = new_token()
    async with opened(tmp_path) as (store, local):
        assert await local.create_first(token, "me")
        (key,) = await keys(store)
        assert (key.token_hash, key.owner, key.name, key.automatic) == (hash_token(token), "me", "local", True)
        assert await local.text() == token
    file = tmp_path / "local.token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [name for name in os.listdir(tmp_path) if name.startswith("local")] == ["local.token"]


async def test_a_second_start_keeps_the_token(tmp_path: Path) -> None:
    token = new_token()
    async with opened(tmp_path) as (store, local):
        await local.create_first(token, "me")
        assert not await local.create_first(new_token(), "me")
        assert await local.text() == token
        assert len(await keys(store)) == 1


async def test_revoking_the_last_token_does_not_make_a_new_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, local):
        await local.create_first(new_token(), "me")
        assert await local.revoke("me", "local") is not None
        assert not (tmp_path / "local.token").exists()
        assert await local.text() is None
    async with opened(tmp_path) as (store, local):
        assert not await local.create_first(new_token(), "me")
        assert no_valid_key(await keys(store), 1.0)
        assert not (tmp_path / "local.token").exists()


async def test_a_store_whose_owner_made_a_token_gets_no_automatic_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, local):
        await store.write(lambda uow: uow.api_keys.add(ApiKey("h", "me", "laptop", 1.0)))
        assert not await local.create_first(new_token(), "me")
        assert await local.revoke("me", "laptop") is not None
        assert not await local.create_first(new_token(), "me")
        assert await keys(store) == ()


async def test_the_file_of_a_start_that_was_killed_opens_nothing_and_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "local.token"
    file.write_text(f"{new_token()}\n")
    async with opened(tmp_path) as (store, local):
        assert await local.text() is None
        token = new_token()
        assert await local.create_first(token, "me")
        assert await local.text() == token
        await store.write(lambda uow: uow.api_keys.remove("me", "local"))
        assert not await local.create_first(new_token(), "me")
        assert not file.exists(), "the file of a revoked token is removed"


def test_two_first_starts_at_the_same_time_leave_a_token_with_its_text(tmp_path: Path) -> None:
    for number in range(20):
        home = tmp_path / f"home{number}"
        home.mkdir()
        # The file of a start that was killed.
        (home / "local.token").write_text(f"{new_token()}\n")
        meeting = Barrier(3)

        async def start(home: Path = home, meeting: Barrier = meeting) -> bool:
            async with opened(home) as (_, local):
                meeting.wait(10)
                return await local.create_first(new_token(), "me")

        with ThreadPoolExecutor(3) as threads:
            created = [start.result() for start in [threads.submit(asyncio.run, start()) for _ in range(3)]]
        assert sorted(created) == [False, False, True]

        async def text(home: Path = home) -> str | None:
            async with opened(home) as (store, local):
                assert len(await keys(store)) == 1
                return await local.text()

        assert asyncio.run(text()) is not None, number
        assert [name for name in os.listdir(home) if name.startswith("local")] == ["local.token"]


async def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("something of the user\n")
    (tmp_path / "local.token").symlink_to(other)
    async with opened(tmp_path) as (_, local):
        with pytest.raises(StoreUnwritable, match=r"local\.token"):
            await local.text()
        assert await local.create_first(new_token(), "me")
    assert other.read_text() == "something of the user\n"
    assert not (tmp_path / "local.token").is_symlink()


async def test_an_expired_key_opens_nothing() -> None:
    expired = ApiKey("h", "me", "laptop", 1.0, expires_at=5.0)
    assert no_valid_key((expired,), 5.0)
    assert not no_valid_key((expired,), 4.0)
    assert no_valid_key((), 4.0)
