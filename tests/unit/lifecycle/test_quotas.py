"""Quotas are checked inside the transaction that writes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.runtime import ME, CoreFixture

from everthread.domain.boundary import Branch, New, Resume
from everthread.domain.errors import QuotaReached, StorageQuotaReached
from everthread.domain.media import FILE_BYTES_MAX, Media
from everthread.domain.model import Inbound, NoteAction, NoteVersion, SessionKey
from everthread.domain.quota import DAY_S, Quotas
from everthread.lifecycle import ForgetSession, NoteChange

ANNA = "telegram:7"
HERE = SessionKey.parse("agent:main:telegram:dm:7")


def quotas(
    sessions: int = 100, forks_per_day: int = 100, media_bytes: int = 10**9, stored_bytes: int = 10**9
) -> Quotas:
    return Quotas(ME, sessions, forks_per_day, media_bytes, 20, stored_bytes)


def key(number: int) -> SessionKey:
    return SessionKey.parse(f"agent:main:http:dm:{number}")


def with_file(size: int | None, number: int) -> Inbound:
    media = Media("file", "x", size=size, handle="h", path=f"telegram/{number}")
    return Inbound(HERE, ANNA, "look", media=(media,))


async def test_a_guest_cannot_fork_without_end(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, quotas=quotas(forks_per_day=3)) as core:
        parent = (await core.turn(HERE, "hello", owner=ANNA)).ref.session_id

        async def fork(number: int) -> object:
            return await core.cross(key(number), Branch(parent=parent), owner=ANNA)

        results = await asyncio.gather(*map(fork, range(10)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, QuotaReached)]
        assert len(refused) == 7, results
        assert "3 branches in 24 hours are allowed" in str(refused[0])
        core.clock.advance(DAY_S)
        await fork(20)


async def test_the_owner_of_the_installation_has_no_quota(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, quotas=quotas(0, 0, 0, 0)) as core:
        parent = (await core.turn(HERE, "hello")).ref.session_id
        await core.cross(key(1), Branch(parent=parent))
        assert await core.store.read(lambda uow: uow.quota_counters.get(ME)) is None, "nothing is counted"


async def test_a_guest_cannot_open_sessions_without_end(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, quotas=quotas(sessions=3)) as core:

        async def say(number: int) -> object:
            return await core.turn(key(number), "hello", owner=ANNA)

        first = await say(0)
        results = await asyncio.gather(*map(say, range(1, 10)), return_exceptions=True)
        assert sum(isinstance(result, QuotaReached) for result in results) == 7, results
        counts = await core.store.read(lambda uow: uow.quota_counters.get(ANNA))
        assert counts is not None
        assert counts.sessions == 3
        await say(0)
        with pytest.raises(QuotaReached, match="you have 3 conversations, and 3 are allowed"):
            await core.cross(key(0), New(), owner=ANNA)
        session_id = first.ref.session_id  # pyright: ignore[reportAttributeAccessIssue]
        await core.cross(key(0), Resume(session_id), owner=ANNA)
        await core.lifecycle.forget(ForgetSession(session_id), owner=ANNA)
        await core.cross(key(0), New(), owner=ANNA)


async def test_a_long_conversation_goes_on_by_continuations(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, quotas=quotas(sessions=1)) as core:
        for text in ("one", "two", "three"):
            await core.turn(HERE, text, owner=ANNA)
        await core.cross(HERE, await core.compression(HERE), owner=ANNA)
        await core.turn(HERE, "four", owner=ANNA)
        assert await core.store.read(lambda uow: uow.quota_counters.get(ANNA)) == await core.store.read(
            lambda uow: uow.quota_counters.count(ANNA)
        )


async def test_a_guest_cannot_store_without_end(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, quotas=quotas(stored_bytes=1000)) as core:
        await core.turn(HERE, "é" * 240, owner=ANNA)
        for _ in range(3):
            await core.turn(HERE, "hello", owner=ANNA)
        with pytest.raises(StorageQuotaReached, match="your conversations and notes take 1,0.. bytes"):
            await core.turn(HERE, "hello", owner=ANNA)
        command = Inbound(HERE, ANNA, "/status", command=True)
        assert (await core.lifecycle.accept(command))[1], "commands are accepted"


async def test_a_guest_cannot_write_notes_without_end(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, quotas=quotas(stored_bytes=1000)) as core:

        async def note(number: int) -> NoteVersion:
            return await core.note(f"{number} " + "é" * 240, owner=ANNA)

        results = await asyncio.gather(*map(note, range(10)), return_exceptions=True)
        assert [type(result) for result in results] == [NoteVersion] * 3 + [StorageQuotaReached] * 7
        assert "your conversations and notes take 1,446 bytes" in str(results[-1])
        with pytest.raises(StorageQuotaReached):
            await core.turn(HERE, "hello", owner=ANNA)
        first = results[0]
        assert isinstance(first, NoteVersion)
        change = NoteChange(NoteAction.REPLACE, first.target, "shorter", first.note_id)
        with pytest.raises(StorageQuotaReached):
            await core.lifecycle.write_note(change, owner=ANNA)
        removed = await core.lifecycle.write_note(
            NoteChange(NoteAction.REMOVE, first.target, note_id=first.note_id), owner=ANNA
        )
        with pytest.raises(StorageQuotaReached):
            await core.lifecycle.undo_note(removed.note_id, removed.version, owner=ANNA)
        await core.note("x" * 2000)


async def test_a_guest_cannot_store_without_end_by_asking_again(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, quotas=quotas(stored_bytes=1000)) as core:
        turn = await core.turn(HERE, "é" * 500, owner=ANNA)
        with pytest.raises(StorageQuotaReached, match="your conversations and notes take 2,003 bytes"):
            await core.lifecycle.retry_turn(HERE, owner=ANNA)
        assert await core.store.read(lambda uow: uow.inbox.waiting(HERE)) == ()
        session = await core.session(turn.ref.session_id)
        visible = await core.store.read(lambda uow: uow.turns.last_visible(session, 1))
        assert visible, "the refused request undid nothing"


async def test_a_guest_cannot_send_attachments_without_end(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, quotas=quotas(media_bytes=1000)) as core:

        async def send(number: int) -> object:
            return await core.lifecycle.accept(with_file(400, number))

        results = await asyncio.gather(*map(send, range(6)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, Exception)]
        assert [type(result) for result in refused] == [StorageQuotaReached] * 4
        assert "your attachments would take 1,200 bytes, and 1,000 are allowed" in str(refused[0])
        await core.lifecycle.accept(Inbound(HERE, ANNA, "without a file"))
        waiting = await core.store.read(lambda uow: uow.inbox.waiting(HERE))
        # A file was smaller than announced.
        await core.store.write(lambda uow: uow.inbox.unpack(waiting[0].id, "look", (Media("file", path="a"),), 100))
        await core.lifecycle.accept(with_file(500, 9))
        with pytest.raises(StorageQuotaReached, match="your attachments would take 1,001 bytes"):
            await core.lifecycle.accept(with_file(1, 10))


async def test_an_attachment_of_unknown_size_counts_as_the_largest(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, quotas=quotas(media_bytes=FILE_BYTES_MAX)) as core:
        await core.lifecycle.accept(with_file(None, 1))
        with pytest.raises(StorageQuotaReached):
            await core.lifecycle.accept(with_file(1, 2))
