"""Test the database file of the embedded store: group commit, full disks, locks, damage, migrations, leftovers.

Run as a program, this module writes a dump like `tests/fixtures/store_v1.sql`. Once that schema is released, the
fixture must not change, because users have such files.
"""

import asyncio
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, cast

import apsw
import pytest
from msgspec.structs import replace

from everthread.adapters.sqlite import writer as writing
from everthread.adapters.sqlite.connection import connect
from everthread.adapters.sqlite.migrate import Migration, known_migrations, migrate
from everthread.adapters.sqlite.store import SqliteStore
from everthread.domain.boundary import Rewind
from everthread.domain.errors import (
    DiskFull,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreTooNew,
    StoreUnwritable,
)
from everthread.domain.model import NoteAction, NoteTarget
from everthread.lifecycle import ForgetFact, ForgetOwner, ForgetSession, NoteChange
from everthread.store.cursors import Redelivery
from everthread.store.unit_of_work import Store, UnitOfWork
from everthread.testing import in_loop
from everthread.testing.contracts.store.fixtures import StoreConversation, key_named, plain_session

FIXTURE = Path(__file__).parent.parent / "fixtures" / "store_v1.sql"
KEY, OTHER_KEY = key_named("42"), key_named("43")
VFS = "counting"
SENTENCE = "the combination of the safe is zanzibarquux"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "everthread.db"


def raw(path: Path) -> apsw.Connection:
    return cast(Any, apsw).Connection(str(path))


def contents(path: Path) -> bytes:
    return path.read_bytes()


def overwrite(path: Path, content: bytes | bytearray) -> None:
    path.write_bytes(content)


# Group commit ---------------------------------------------------------------------------------------------------------


class Syncs:
    """A VFS on top of the real one that counts syncs."""

    def __init__(self) -> None:
        self.count = 0
        self.pause_s = 0.0


@contextmanager
def counted_syncs() -> Iterator[Syncs]:
    syncs = Syncs()

    class File(apsw.VFSFile):
        def xSync(self, flags: int) -> None:
            syncs.count += 1
            time.sleep(syncs.pause_s)
            super().xSync(flags)

    class FileSystem(apsw.VFS):
        def __init__(self) -> None:
            super().__init__(VFS, "unix", makedefault=True)

        def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:
            return File("unix", name, flags)

    file_system = FileSystem()
    try:
        yield syncs
    finally:
        apsw.set_default_vfs("unix")
        file_system.unregister()


@in_loop
async def test_a_hundred_writers_share_syncs(path: Path) -> None:
    with counted_syncs() as syncs:
        async with aclosing(await SqliteStore.open(path)) as store:
            talk = StoreConversation(store)
            keys = [key_named(str(n)) for n in range(100)]
            before = syncs.count
            for _ in range(3):
                await asyncio.gather(*(talk.say("hello", key, answer="hi") for key in keys))
            turns = 3 * len(keys)
            assert 0 < syncs.count - before <= 0.2 * turns
            assert len(await talk.search("hello", limit=1000)) == turns


@in_loop
async def test_writes_queued_during_a_sync_share_the_next_commit(path: Path) -> None:
    with counted_syncs() as syncs:
        async with aclosing(await SqliteStore.open(path)) as store:
            before, syncs.pause_s = syncs.count, 0.05
            writing: list[asyncio.Future[None]] = []
            for n in range(40):
                work = store.write(lambda uow, n=n: uow.sessions.add(plain_session(f"s{n}")))
                writing.append(asyncio.ensure_future(work))
                await asyncio.sleep(0)
            await asyncio.gather(*writing)
            syncs.pause_s = 0.0
            assert syncs.count - before <= 8


@in_loop
async def test_a_write_returns_only_after_its_sync(path: Path) -> None:
    with counted_syncs() as syncs:
        async with aclosing(await SqliteStore.open(path)) as store:
            await store.write(lambda uow: uow.sessions.add(plain_session("s1")))
            before, syncs.pause_s, begun = syncs.count, 0.15, time.monotonic()
            await store.write(lambda uow: uow.sessions.add(plain_session("s2")))
            syncs.pause_s = 0.0
            assert syncs.count > before
            assert time.monotonic() - begun >= 0.15


# Inline writes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every commit as fast, even on a busy machine."""
    monkeypatch.setattr(writing, "FAST_COMMIT_S_MAX", 30.0)


def here(uow: UnitOfWork) -> bool:
    """Return True if the event loop's own thread writes."""
    return threading.current_thread() is threading.main_thread()


@pytest.mark.usefixtures("quick")
@in_loop
async def test_a_single_write_runs_inline_and_concurrent_writes_are_grouped(path: Path) -> None:
    with counted_syncs() as syncs:
        async with aclosing(await SqliteStore.open(path)) as store:
            assert any([await store.write_inline(here) for _ in range(50)])
            before = syncs.count
            assert await asyncio.gather(*(store.write_inline(here) for _ in range(20))) == [False] * 20
            assert syncs.count - before <= 2
            writing = asyncio.ensure_future(store.write(here))
            assert await asyncio.gather(store.write_inline(here), writing) == [False, False]


@in_loop
async def test_a_slow_commit_disables_inline_writes_until_several_are_fast(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "FAST_COMMIT_S_MAX", 0.1)

    def add(uow: UnitOfWork, number: int) -> bool:
        uow.sessions.add(plain_session(f"s{number}"))
        return here(uow)

    with counted_syncs() as syncs:
        async with aclosing(await SqliteStore.open(path)) as store:
            syncs.pause_s = 0.11
            await store.write_inline(lambda uow: add(uow, 0))
            assert [await store.write_inline(lambda uow, n=n: add(uow, n)) for n in (1, 2, 3)] == [False] * 3
            syncs.pause_s = 0.0
            # One fast commit may be chance.
            first = range(4, 4 + writing.FAST_COMMITS_MIN)
            assert [await store.write_inline(lambda uow, n=n: add(uow, n)) for n in first] == [
                False
            ] * writing.FAST_COMMITS_MIN
            assert any([await store.write_inline(lambda uow, n=n: add(uow, n)) for n in range(first.stop, 100)])


@in_loop
async def test_an_inline_write_does_not_block_the_loop_on_a_foreign_lock(path: Path) -> None:
    async with aclosing(await SqliteStore.open(path)) as store:
        other = raw(path)
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        writing = asyncio.ensure_future(store.write_inline(here))
        await asyncio.sleep(0.05)
        assert time.monotonic() - begun < 1
        assert not writing.done()
        other.execute("ROLLBACK")
        assert await writing is False
        other.close()


@pytest.mark.usefixtures("quick")
@in_loop
async def test_an_interrupt_during_an_inline_write_reaches_its_caller(path: Path) -> None:
    def interrupted(uow: UnitOfWork) -> None:
        uow.sessions.add(plain_session("s1"))
        raise KeyboardInterrupt

    async with aclosing(await SqliteStore.open(path)) as store:
        with pytest.raises(KeyboardInterrupt):
            # Caught in the task, because it would otherwise end the loop, as it should.
            await store.write_inline(interrupted)
        await store.write_inline(lambda uow: uow.sessions.add(plain_session("s2")))
        found = await store.read(lambda uow: uow.sessions.matching("s", 9))
        assert [session.id for session in found] == ["s2"]


@pytest.mark.usefixtures("quick")
def test_an_inline_write_runs_once_while_another_loop_closes_the_store(path: Path) -> None:
    store = asyncio.run(SqliteStore.open(path))
    begun, go_on = threading.Event(), threading.Event()
    ran: list[str] = []

    def work(uow: UnitOfWork) -> None:
        ran.append(threading.current_thread().name)
        uow.sessions.add(plain_session("s1"))
        begun.set()
        go_on.wait(5)

    async def write_inline() -> None:
        while not begun.is_set():
            await store.write_inline(work)

    other = threading.Thread(target=lambda: asyncio.run(write_inline()), name="other loop")
    other.start()
    assert begun.wait(5)
    threading.Timer(0.1, go_on.set).start()
    asyncio.run(store.aclose())
    other.join(5)
    assert not other.is_alive()
    assert len(ran) == 1
    assert [row[0] for row in raw(path).execute("SELECT id FROM sessions WHERE id = 's1'")] == ["s1"]


@pytest.mark.usefixtures("quick")
@in_loop
async def test_an_interrupt_right_after_a_commit_does_not_repeat_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, ran = writing.Writer._commit_together, 0  # noqa: SLF001

    def interrupted(writer: writing.Writer, jobs: Any) -> None:
        commit(writer, jobs)
        raise KeyboardInterrupt

    def work(uow: UnitOfWork) -> None:
        nonlocal ran
        ran += 1

    async with asyncio.timeout(10), aclosing(await SqliteStore.open(path)) as store:
        with monkeypatch.context() as patch:
            patch.setattr(writing.Writer, "_commit_together", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await store.write_inline(work)
        await store.write(work)
        assert ran == 2
        # The write lock was released, and no writer is counted as waiting.
        assert any([await store.write_inline(here) for _ in range(50)])


@pytest.mark.usefixtures("quick")
@in_loop
async def test_long_inline_writes_run_in_the_writer_thread(path: Path) -> None:
    async with aclosing(await SqliteStore.open(path)) as store:
        talk = StoreConversation(store)
        threads: dict[str, set[bool]] = {}

        def noted(name: str) -> Callable[[Any, str, Any], bool]:
            threads[name] = set()

            def trace(cursor: Any, sql: str, bindings: Any) -> bool:
                if sql.startswith("INSERT INTO boundaries") or sql.startswith("INSERT INTO slots"):
                    threads[name].add(threading.current_thread() is threading.main_thread())
                return True

            return trace

        writer = cast(Any, store)._writer._database.connection  # noqa: SLF001 - to see who writes
        for _ in range(20):
            await talk.say("hello", KEY, answer="hi")
        writer.exec_trace = noted("short")
        for _ in range(20):
            await talk.new(KEY)
        await talk.say("hello", KEY, answer="hi")
        writer.exec_trace = noted("many turns taken back")
        await talk.lifecycle.cross(KEY, Rewind(200), owner="ann")
        await talk.accept("waits", KEY)
        writer.exec_trace = noted("with a message that waits")
        await talk.new(KEY)
        await talk.accept("x" * 200_000, KEY)
        writer.exec_trace = noted("a long message")
        assert await talk.lifecycle.begin_turn(KEY) is not None
        writer.exec_trace = None
    assert True in threads["short"]
    assert threads["many turns taken back"] == {False}
    assert threads["with a message that waits"] == {False}
    assert threads["a long message"] == {False}


@in_loop
async def test_the_wal_is_truncated_even_during_a_checkpoint(path: Path) -> None:
    async with aclosing(await SqliteStore.open(path)) as store:
        for n in range(3):
            large = plain_session(f"s{n}").replace(end_reason="x" * 8_000_000)
            await store.write(lambda uow, s=large: uow.sessions.add(s))
            assert await store.tidy()


@in_loop
async def test_inline_writes_alone_leave_no_long_wal(path: Path) -> None:
    log = path.with_name(path.name + "-wal")
    # An open connection keeps SQLite from truncating the WAL when other connections close.
    async with aclosing(await SqliteStore.open(path)) as idle:
        for n in range(60):
            async with aclosing(await SqliteStore.open(path)) as store:
                one = plain_session(f"s{n}").replace(end_reason="x" * 90_000)
                await store.write_inline(lambda uow, s=one: uow.sessions.add(s))
        assert log.stat().st_size < 1.2 * 4120 * writing.WAL_PAGES_MAX
        assert len(await idle.read(lambda uow: uow.sessions.matching("s", 100))) == 60


@in_loop
async def test_a_long_wal_is_checkpointed_and_new_words_are_indexed_meanwhile(path: Path) -> None:
    log = path.with_name(path.name + "-wal")
    async with aclosing(await SqliteStore.open(path)) as store:
        talk = StoreConversation(store)
        for n in range(260):
            await talk.say(f"zanzibar {n} " + "x" * 6000, KEY)
        assert log.stat().st_size < 4 * 4096 * writing.WAL_PAGES_MAX
        # Words after the last 128 messages are not indexed yet, because no search has run.
        for _ in range(100):
            found = await store.read(lambda uow: uow.search.search("ann", "zanzibar", limit=1000))
            if len(found) >= 256:
                break
            await talk.say("what else", KEY)
        assert len(found) >= 256


# Units that fail a shared transaction ---------------------------------------------------------------------------------


async def fill_to(store: SqliteStore, spare_pages: int) -> None:
    """Limit the growth of the file to so many pages."""

    def limit(uow: UnitOfWork) -> None:
        execute = cast(Any, uow).sessions._execute  # noqa: SLF001 - the limit is one of the writer's connection
        pages = next(iter(execute("PRAGMA page_count")))[0]
        list(execute(f"PRAGMA max_page_count = {pages + spare_pages}"))

    await store.write(limit)


@in_loop
async def test_a_unit_that_fills_the_disk_fails_alone(path: Path) -> None:
    async with aclosing(await SqliteStore.open(path)) as store:
        await fill_to(store, 60)
        large = plain_session("s-large").replace(end_reason="x" * 2_000_000)
        sessions = [plain_session(f"s{n:02d}") for n in range(10)]
        sessions.insert(5, large)
        results = await asyncio.gather(
            *(store.write(lambda uow, s=s: uow.sessions.add(s)) for s in sessions), return_exceptions=True
        )
        assert [type(result) for result in results] == [*[type(None)] * 5, DiskFull, *[type(None)] * 5]
        found = await store.read(lambda uow: uow.sessions.matching("s", 100))
        assert [session.id for session in found] == [s.id for s in sessions if s is not large]
        await store.write(lambda uow: uow.sessions.add(plain_session("t")))


@in_loop
async def test_on_a_full_disk_every_unit_is_stored_or_reported_as_failed(path: Path) -> None:
    async with aclosing(await SqliteStore.open(path)) as store:
        await fill_to(store, 40)

        def add_two(uow: UnitOfWork, number: int) -> None:
            uow.sessions.add(plain_session(f"a{number:03d}"))
            uow.sessions.add(plain_session(f"b{number:03d}").replace(end_reason="y" * 8000))

        results = await asyncio.gather(
            *(store.write(lambda uow, n=n: add_two(uow, n)) for n in range(60)), return_exceptions=True
        )
        landed = [n for n, result in enumerate(results) if result is None]
        assert 0 < len(landed) < 60
        assert all(isinstance(result, DiskFull) for result in results if result is not None)
        for half in "ab":
            found = await store.read(lambda uow, h=half: uow.sessions.matching(h, 100))
            assert [int(session.id[1:]) for session in found] == landed
        await fill_to(store, 1000)
        await store.write(lambda uow: add_two(uow, 999))
    async with aclosing(await SqliteStore.open(path)) as after:
        assert len(await after.read(lambda uow: uow.sessions.matching("a", 100))) == len(landed) + 1
    assert list(raw(path).execute("PRAGMA integrity_check")) == [("ok",)]


# Errors in the writer thread ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), StopIteration()]
)
@in_loop
async def test_an_exception_that_would_end_the_writer_fails_only_its_own_unit(path: Path, error: BaseException) -> None:
    def add_and_fail(uow: UnitOfWork) -> None:
        uow.sessions.add(plain_session("s1"))
        raise error

    async with asyncio.timeout(10), aclosing(await SqliteStore.open(path)) as store:
        results = await asyncio.gather(
            store.write(lambda uow: uow.sessions.add(plain_session("s0"))),
            store.write(add_and_fail),
            store.write(lambda uow: uow.sessions.add(plain_session("s2"))),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [type(None), StoreError, type(None)]
        assert type(error).__name__ in str(results[1])
        await store.write(lambda uow: uow.sessions.add(plain_session("s3")))
        found = await store.read(lambda uow: uow.sessions.matching("s", 9))
        assert [session.id for session in found] == ["s0", "s2", "s3"]


def make_fail(store: SqliteStore, errors: dict[str, BaseException]) -> None:
    """Make these statements fail on the writer's current connection, every time."""

    def trace(cursor: Any, sql: str, bindings: Any) -> bool:
        if sql in errors:
            raise errors[sql]
        return True

    cast(Any, store)._writer._database.connection.exec_trace = trace  # noqa: SLF001 - there is no other way to break just these


@pytest.mark.parametrize(
    "errors",
    [
        {"BEGIN IMMEDIATE": RuntimeError("unforeseen")},
        {"COMMIT": SystemExit(1)},
        {"SAVEPOINT unit": RuntimeError("unforeseen")},
        {"COMMIT": apsw.IOError("disk"), "ROLLBACK": apsw.IOError("disk")},
        {"RELEASE unit": SystemExit(1), "ROLLBACK": RuntimeError("unforeseen")},
    ],
    ids=lambda errors: " and ".join(errors),
)
@in_loop
async def test_a_failed_transaction_is_reported_to_all_its_units_and_the_writer_continues(
    path: Path, errors: dict[str, BaseException]
) -> None:
    async with asyncio.timeout(10), aclosing(await SqliteStore.open(path)) as store:
        make_fail(store, errors)
        results = await asyncio.gather(
            *(store.write(lambda uow, n=n: uow.sessions.add(plain_session(f"s{n}"))) for n in range(3)),
            return_exceptions=True,
        )
        assert all(isinstance(result, StoreError) for result in results)
        if "ROLLBACK" in errors:
            # The open transaction blocks no other connection, even before the next write here.
            other = raw(path)
            other.execute("BEGIN IMMEDIATE; ROLLBACK")
            other.close()
        else:
            make_fail(store, {})
        await store.write(lambda uow: uow.sessions.add(plain_session("s9")))
        found = await store.read(lambda uow: uow.sessions.matching("s", 9))
        assert [session.id for session in found] == ["s9"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "errors",
    [
        {"BEGIN IMMEDIATE": RuntimeError("unforeseen")},
        {"COMMIT": apsw.IOError("disk")},
        {"COMMIT": apsw.IOError("disk"), "ROLLBACK": apsw.IOError("disk")},
    ],
    ids=lambda errors: " and ".join(errors),
)
@in_loop
async def test_a_failed_inline_transaction_is_reported(path: Path, errors: dict[str, BaseException]) -> None:
    async with asyncio.timeout(10), aclosing(await SqliteStore.open(path)) as store:
        make_fail(store, errors)
        with pytest.raises(StoreError):
            await store.write_inline(lambda uow: uow.sessions.add(plain_session("s1")))
        make_fail(store, {})
        await store.write_inline(lambda uow: uow.sessions.add(plain_session("s2")))
        found = await store.read(lambda uow: uow.sessions.matching("s", 9))
        assert [session.id for session in found] == ["s2"]


@in_loop
async def test_a_writer_that_cannot_reconnect_retries_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise apsw.CantOpenError("too many open files")

    async with asyncio.timeout(10), aclosing(await SqliteStore.open(path)) as store:
        make_fail(store, {"COMMIT": apsw.IOError("disk"), "ROLLBACK": apsw.IOError("disk")})
        with monkeypatch.context() as patch:
            patch.setattr(writing, "connect", refuse)
            for n in range(3):
                with pytest.raises(StoreError):
                    await store.write(lambda uow, n=n: uow.sessions.add(plain_session(f"s{n}")))
        with pytest.raises(StoreError):
            await store.write(lambda uow: uow.sessions.add(plain_session("s3")))
        await store.write(lambda uow: uow.sessions.add(plain_session("s4")))
        found = await store.read(lambda uow: uow.sessions.matching("s", 9))
        assert [session.id for session in found] == ["s4"]


def test_a_caller_with_a_closed_loop_does_not_stop_the_writer(path: Path) -> None:
    """The loop may close at the moment its result is delivered."""
    store = asyncio.run(SqliteStore.open(path))
    begun, go_on = threading.Event(), threading.Event()
    loop = asyncio.new_event_loop()
    loop.is_closed = lambda: False  # as it was a moment ago

    def work(uow: UnitOfWork) -> None:
        begun.set()
        go_on.wait(5)

    async def hand_in() -> None:
        task = asyncio.ensure_future(store.write(work))
        assert await asyncio.to_thread(begun.wait, 5)
        task.cancel()
        await asyncio.wait({task})

    loop.run_until_complete(hand_in())
    loop.close()
    go_on.set()

    async def use() -> None:
        async with asyncio.timeout(5):
            await store.write(lambda uow: uow.sessions.add(plain_session("s1")))
            await store.aclose()

    asyncio.run(use())
    del loop.is_closed


def test_a_closed_store_leaves_no_file_open(path: Path) -> None:
    """The store is used from several event loops."""

    def used() -> None:
        store = asyncio.run(SqliteStore.open(path))
        for _ in range(3):
            asyncio.run(store.write(lambda uow: uow.sessions.titled("ann", "x")))
        asyncio.run(store.aclose())

    used()
    before = len(os.listdir("/proc/self/fd"))
    used()
    assert len(os.listdir("/proc/self/fd")) == before


# Locked, damaged and foreign files ------------------------------------------------------------------------------------


@in_loop
async def test_a_lock_held_too_long_raises_store_busy_until_it_is_released(path: Path) -> None:
    async with aclosing(await SqliteStore.open(path, busy_s_max=0.1)) as store:
        other = raw(path)
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        results = await asyncio.gather(
            *(store.write(lambda uow, n=n: uow.sessions.add(plain_session(f"s{n}"))) for n in range(3)),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [StoreBusy] * 3
        assert 0.05 < time.monotonic() - begun < 2
        assert await store.read(lambda uow: uow.sessions.matching("s", 9)) == ()
        other.execute("ROLLBACK")
        await store.write(lambda uow: uow.sessions.add(plain_session("s0")))
        other.close()


@in_loop
async def test_a_write_waits_for_a_short_lock(path: Path) -> None:
    async with aclosing(await SqliteStore.open(path, busy_s_max=5.0)) as store:
        other = raw(path)
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(store.write(lambda uow: uow.sessions.add(plain_session("s1"))))
        await asyncio.sleep(0.1)
        assert not writing.done()
        other.execute("ROLLBACK")
        await writing
        other.close()


@in_loop
async def test_a_locked_new_file_raises_store_busy_within_the_timeout(path: Path) -> None:
    path.parent.mkdir()
    other = raw(path)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    with pytest.raises(StoreBusy):
        await SqliteStore.open(path, busy_s_max=0.1)
    assert time.monotonic() - begun < 2
    other.close()


@in_loop
async def test_concurrent_opens_of_a_new_file_succeed(path: Path) -> None:
    stores = await asyncio.gather(*(SqliteStore.open(path) for _ in range(8)))
    await asyncio.gather(
        *(store.write(lambda uow, n=n: uow.sessions.add(plain_session(f"s{n}"))) for n, store in enumerate(stores))
    )
    assert len(await stores[0].read(lambda uow: uow.sessions.matching("s", 9))) == 8
    await asyncio.gather(*(store.aclose() for store in stores))


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be looked at\n" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
@in_loop
async def test_a_file_that_is_not_a_database_is_refused_and_unchanged(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    overwrite(path, content)
    with pytest.raises(StoreCorrupt, match="everthread.db"):
        await SqliteStore.open(path)
    assert contents(path) == content


@in_loop
async def test_a_damaged_file_is_reported_as_damaged(path: Path) -> None:
    async with aclosing(await SqliteStore.open(path)) as store:
        talk = StoreConversation(store)
        for n in range(30):
            await talk.say(f"hello {n} " + "x" * 2000, KEY)
    damaged = bytearray(contents(path))
    for page in range(4096 * 3, len(damaged), 4096):
        damaged[page : page + 200] = b"\xa5" * 200
    overwrite(path, damaged)

    async def use() -> None:
        async with aclosing(await SqliteStore.open(path)) as store:
            await StoreConversation(store, "later").say("and now", KEY)

    with pytest.raises(StoreCorrupt):
        await use()


@in_loop
async def test_a_file_of_another_program_is_refused_and_unchanged(path: Path) -> None:
    path.parent.mkdir()
    other = raw(path)
    other.execute("PRAGMA application_id = 42; CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    other.close()
    before = contents(path)
    with pytest.raises(StoreCorrupt, match="another program's"):
        await SqliteStore.open(path)
    assert contents(path) == before


@in_loop
async def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    await (await SqliteStore.open(path)).aclose()
    connection = raw(path)
    connection.execute("INSERT INTO migrations VALUES (9999, 'future', 'x')")
    connection.close()
    with pytest.raises(StoreTooNew, match="9999"):
        await SqliteStore.open(path)


@in_loop
async def test_a_file_with_a_different_schema_of_the_same_version_is_refused(path: Path) -> None:
    await (await SqliteStore.open(path)).aclose()
    connection = raw(path)
    connection.execute("UPDATE migrations SET checksum = 'x' WHERE number = 1")
    connection.close()
    with pytest.raises(StoreCorrupt, match="Schema 1"):
        await SqliteStore.open(path)


@in_loop
async def test_a_folder_without_write_access_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnwritable):
        await SqliteStore.open(tmp_path / "file" / "everthread.db")
    (tmp_path / "everthread.db").mkdir()
    with pytest.raises(StoreError):
        await SqliteStore.open(tmp_path / "everthread.db")


@in_loop
async def test_only_the_owner_may_read_the_file(path: Path) -> None:
    before = os.umask(0)
    try:
        async with aclosing(await SqliteStore.open(path)) as store:
            await store.write(lambda uow: uow.sessions.add(plain_session("s1")))
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (path.parent, *path.parent.iterdir())}
    finally:
        os.umask(before)
    assert modes.pop("home") == 0o700
    assert {"everthread.db", "everthread.db-wal"} <= set(modes)
    assert set(modes.values()) == {0o600}


@in_loop
async def test_a_handle_dropped_without_close_leaves_a_file_that_opens(path: Path) -> None:
    dropped = await SqliteStore.open(path)
    ref = await StoreConversation(dropped, "dropped").say("hello", KEY)
    async with aclosing(await SqliteStore.open(path)) as store:
        talk = StoreConversation(store, "next")
        await talk.say("again", KEY)
        assert await talk.texts(ref.session_id) == ["hello", "again"]
    await dropped.aclose()


# Migrations -----------------------------------------------------------------------------------------------------------

SECOND = Migration(
    len(known_migrations()) + 1,
    "colours",
    "CREATE TABLE colours (name TEXT);\nINSERT INTO colours SELECT 'red' FROM sessions;\n"
    "ALTER TABLE sessions ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';",
)


@in_loop
async def test_a_migration_adds_missing_parts_once_and_keeps_rows(path: Path) -> None:
    async with aclosing(await SqliteStore.open(path)) as store:
        await StoreConversation(store).say("hello", KEY)
    connection = connect(str(path))
    assert migrate(connection, str(path), (*known_migrations(), SECOND)) == 1
    assert migrate(connection, str(path), (*known_migrations(), SECOND)) == 0
    assert list(connection.execute("SELECT name FROM colours")) == [("red",)]
    assert list(connection.execute("SELECT colour FROM sessions")) == [("red",)]
    assert [row[0] for row in connection.execute("SELECT number FROM migrations")] == [
        *(migration.number for migration in known_migrations()),
        SECOND.number,
    ]
    connection.close()
    with pytest.raises(StoreTooNew):
        await SqliteStore.open(path)


def test_a_failed_migration_leaves_the_file_unchanged(path: Path) -> None:
    path.parent.mkdir()
    connection = connect(str(path))
    migrate(connection, str(path))
    broken = replace(SECOND, sql=SECOND.sql + "\nINSERT INTO nowhere VALUES (1);")
    with pytest.raises(apsw.SQLError, match="nowhere"):
        migrate(connection, str(path), (*known_migrations(), broken))
    assert not connection.in_transaction
    assert not list(connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'colours'"))
    assert migrate(connection, str(path), (*known_migrations(), SECOND)) == 1
    connection.close()


def test_a_full_disk_during_a_migration_is_reported_as_full(path: Path) -> None:
    path.parent.mkdir()
    connection = connect(str(path))
    migrate(connection, str(path))
    large = replace(SECOND, sql="CREATE TABLE large (x TEXT);\nINSERT INTO large VALUES (hex(zeroblob(1000000)));")
    connection.execute(f"PRAGMA max_page_count = {connection.pragma('page_count') + 9}")
    with pytest.raises(apsw.FullError):
        migrate(connection, str(path), (*known_migrations(), large))
    connection.execute("PRAGMA max_page_count = 1000000")
    assert migrate(connection, str(path), (*known_migrations(), large)) == 1
    connection.close()


# Process-wide SQLite settings ----------------------------------------------------------------------------------------


def in_a_process_of_its_own(code: str, path: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_cached_statements_leave_lookaside_memory_for_running_ones(path: Path) -> None:
    code = """
import sys, apsw
from everthread.adapters.sqlite.connection import connect
connection = connect(sys.argv[1])
for number in range(100):
    list(connection.execute(f"SELECT {number}, name FROM sqlite_schema WHERE type = ? ORDER BY name", ("table",)))
print(connection.status(apsw.SQLITE_DBSTATUS_LOOKASIDE_MISS_FULL)[1])
"""
    path.parent.mkdir()
    assert in_a_process_of_its_own(code, path) == "0"


def test_other_connections_of_the_process_are_unaffected(path: Path) -> None:
    code = """
import sys, apsw
theirs = apsw.Connection(":memory:")
theirs.execute("CREATE TABLE here (word)")
theirs.execute("INSERT INTO here VALUES ('kept')")
taken = apsw.memory_used()
from everthread.adapters.sqlite.connection import connect
ours = connect(sys.argv[1])
ours.execute("CREATE TABLE there (word)")
print(theirs.execute("SELECT word FROM here").get, apsw.memory_used() > taken > 0)
"""
    path.parent.mkdir()
    assert in_a_process_of_its_own(code, path) == "kept True"


# Files of the first release -------------------------------------------------------------------------------------------


async def live_a_little(store: Store) -> None:
    """Store rows of every kind."""
    talk = StoreConversation(store, "old")
    for provider in ("hive", "slow"):
        await store.write(lambda uow, p=provider: uow.cursors.register(p))
    await talk.new(KEY, title="Honey")
    for text in ("I keep bees in Aarhus", "seven hives", "私は東京都に住んでいます"):
        ref = await talk.say(text, KEY, answer=f"noted: {text}")
    await talk.lifecycle.put_prefix(ref, b"system: \x00\xff", 0)
    note = await talk.lifecycle.write_note(
        NoteChange(NoteAction.ADD, NoteTarget.USER, "keeps bees"), owner="ann", ref=ref
    )
    await talk.lifecycle.write_note(
        NoteChange(NoteAction.REPLACE, NoteTarget.USER, "keeps seven hives", note.note_id), owner="ann"
    )
    await talk.lifecycle.record_delegation(ref, "count", "seven", "some-child")
    await talk.rewind(KEY)
    await talk.branch(KEY)
    await talk.say("in the branch", KEY)
    await talk.compress(KEY, "bees, seven hives", 2)
    await talk.say("after the summary", KEY)
    await talk.begin("still running", OTHER_KEY, "bob")
    await talk.accept("still waiting", OTHER_KEY, "bob")
    forgotten = await talk.new(key_named("44"))
    await talk.say("to be forgotten", key_named("44"))
    await talk.lifecycle.forget(ForgetSession(forgotten), owner="ann")

    def deliver_a_little(uow: UnitOfWork) -> None:
        while uow.cursors.discover("hive", 5.0, 100):
            pass
        cursor = uow.cursors.get("hive", ref.session_id)
        assert cursor is not None
        uow.cursors.save(replace(cursor, seq=3, attempts=2, error="down", due_at=9.0))
        uow.cursors.add_redelivery(Redelivery("hive", ref.session_id, 2, 0, "rejected"))
        uow.spend.reserve(ref, "t", "large", 0.5, 5.0)

    await store.write(deliver_a_little)


def dump(path: Path) -> str:
    """Dump the whole file as SQL, with the internal tables of indexes as they are."""
    connection = raw(path)
    schema = list(connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"))
    indexes = [name for _, name, sql in schema if sql.startswith("CREATE VIRTUAL")]
    hidden = {"sqlite_sequence"} | {name for _, name, _ in schema if any(name.startswith(f"{i}_") for i in indexes)}
    lines = [f"PRAGMA application_id = {connection.pragma('application_id')};"]
    lines += [f"{sql};" for kind, name, sql in schema if kind == "table" and name not in hidden]
    for kind, name, _ in schema:
        if kind != "table" or name in indexes:
            continue
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')]
        if name in hidden:
            lines.append(f"DELETE FROM {name};")
        quoted = ", ".join(f'quote("{column}")' for column in columns)
        for row in connection.execute(f'SELECT {quoted} FROM "{name}"'):
            lines.append(f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({', '.join(row)});")
    lines += [f"{sql};" for kind, name, sql in schema if kind == "index"]
    connection.close()
    return "\n".join(lines) + "\n"


def load(path: Path, sql: str) -> None:
    path.parent.mkdir()
    connection = raw(path)
    connection.execute("BEGIN")
    connection.execute(sql)
    connection.execute("COMMIT")
    connection.close()


async def check_the_life_before(store: Store) -> None:
    talk = StoreConversation(store, "new")
    here = await talk.lifecycle.current(KEY)
    assert here is not None
    assert await talk.texts(here.session_id) == ["[bees, seven hives]", "in the branch", "after the summary"]
    session = await talk.session(here.session_id)
    assert (session.title, session.owner) == ("Honey #3", "ann")
    assert session.parent_id is not None
    assert await talk.texts(session.parent_id) == ["I keep bees in Aarhus", "seven hives", "in the branch"]
    parent = await talk.session(session.parent_id)
    assert parent.parent_id is not None
    assert await talk.search("aarhus") == ["noted: I keep bees in Aarhus", "I keep bees in Aarhus"]
    assert await talk.search("東京") == [], "the turn was undone"
    assert await talk.search("forgotten") == []

    def look(uow: UnitOfWork, root: str = parent.parent_id) -> None:
        assert [note.content for note in uow.notes.current("ann", NoteTarget.USER)] == ["keeps seven hives"]
        prefix = uow.turns.prefix(root)
        assert prefix is not None
        assert prefix.content == b"system: \x00\xff"
        assert [(row.name, row.failures) for row in uow.cursors.providers()] == [("hive", 0), ("slow", 0)]
        cursor = uow.cursors.get("hive", root)
        assert cursor is not None
        assert (cursor.seq, cursor.attempts, cursor.error) == (3, 2, "down")
        assert uow.cursors.parked("hive", root) == (2,)
        assert uow.cursors.count("slow").waiting_entries > 5
        assert uow.spend.total("ann", 0.0) == 0.5

    await store.read(look)


async def go_on_living(store: Store) -> None:
    talk = StoreConversation(store, "new")
    talk.clock.time += 1000
    await talk.say("and in Odense", KEY)
    assert await talk.search("odense") == ["and in Odense"]
    await talk.rewind(KEY, 2)
    here = await talk.lifecycle.current(KEY)
    assert here is not None
    assert await talk.texts(here.session_id) == ["[bees, seven hives]", "in the branch"]
    (orphan,) = await talk.lifecycle.recover()
    ticket = await talk.lifecycle.resume_turn(orphan)
    assert ticket is not None
    assert ticket.message.inbound.text == "still running"
    await talk.lifecycle.commit_turn(ticket, [], "done")
    waiting = await talk.lifecycle.begin_turn(OTHER_KEY)
    assert waiting is not None
    assert waiting.message.inbound.text == "still waiting"
    await talk.lifecycle.forget(ForgetOwner(), owner="ann")
    assert await talk.search("aarhus") == []


@in_loop
async def test_a_file_of_the_first_release_opens_and_can_be_used(path: Path) -> None:
    load(path, FIXTURE.read_text())
    async with aclosing(await SqliteStore.open(path)) as store:
        await check_the_life_before(store)
        await go_on_living(store)
    assert list(raw(path).execute("PRAGMA integrity_check")) == [("ok",)]


@in_loop
async def test_a_migrated_file_has_the_indexes_and_merge_settings_of_a_new_one(tmp_path: Path, path: Path) -> None:
    load(path, FIXTURE.read_text())
    new = tmp_path / "new" / "everthread.db"
    for each in (path, new):
        async with aclosing(await SqliteStore.open(each)):
            pass
    indexes = "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL ORDER BY name"
    assert list(raw(path).execute(indexes)) == list(raw(new).execute(indexes))
    merging = "SELECT v FROM message_words_config WHERE k = 'automerge'"
    assert list(raw(path).execute(merging)) == list(raw(new).execute(merging)) == [(8,)]


@in_loop
async def test_a_file_of_the_current_release_passes_the_same_checks(tmp_path: Path, path: Path) -> None:
    """Check that the fixture for the next release is complete."""
    async with aclosing(await SqliteStore.open(tmp_path / "first" / "everthread.db")) as store:
        await live_a_little(store)
        await check_the_life_before(store)
    load(path, dump(tmp_path / "first" / "everthread.db"))
    async with aclosing(await SqliteStore.open(path)) as store:
        await check_the_life_before(store)
        await go_on_living(store)


# Forgotten data -------------------------------------------------------------------------------------------------------


def left_in(path: Path, *words: str) -> list[tuple[str, str]]:
    """Files and the words they contain, ignoring case."""
    files = [(file.name, file.read_bytes().lower()) for file in path.parent.iterdir()]
    return [(name, word) for name, content in files for word in words if word.lower().encode() in content]


@pytest.mark.parametrize("what", ["session", "person", "fact"])
@in_loop
async def test_forgotten_data_is_nowhere_in_the_closed_file(path: Path, what: str) -> None:
    async with aclosing(await SqliteStore.open(path)) as store:
        talk = StoreConversation(store)
        for n in range(20):
            await talk.say(f"chatter number {n} of the others", OTHER_KEY, "bob")
        ref = await talk.say(SENTENCE, KEY, answer=f"I will remember: {SENTENCE}!")
        await talk.lifecycle.put_prefix(ref, f"system: {SENTENCE}".encode(), 0)
        note = await talk.lifecycle.write_note(
            NoteChange(NoteAction.ADD, NoteTarget.USER, SENTENCE), owner="ann", ref=ref
        )
        await talk.lifecycle.record_delegation(ref, f"open it: {SENTENCE}", "done", "some-child")
        await talk.compress(KEY, f"so far: {SENTENCE}", 1)
        for n in range(20):
            await talk.say(f"more chatter {n}", OTHER_KEY, "bob")
        assert left_in(path, SENTENCE, "zanzibarquux")
        match what:
            case "session":
                await talk.lifecycle.forget(ForgetSession(ref.session_id), owner="ann")
            case "person":
                await talk.lifecycle.forget(ForgetOwner(), owner="ann")
            case _:
                await talk.lifecycle.forget(ForgetFact(note.note_id), owner="ann")
        assert len(await talk.search("chatter", "bob", limit=99)) == 40
    assert left_in(path, SENTENCE, "zanzibarquux") == []
    files = ["everthread.db", "everthread.db.sentinel", "everthread.db.sentinel.lock"]
    assert sorted(file.name for file in path.parent.iterdir()) == files


@in_loop
async def test_the_wal_is_not_truncated_during_a_read_and_tidy_soon_returns_false(path: Path) -> None:
    async with aclosing(await SqliteStore.open(path)) as store:
        other = raw(path)
        await store.write(lambda uow: uow.sessions.add(plain_session("s1").replace(end_reason=SENTENCE)))
        other.execute("BEGIN")
        list(other.execute("SELECT * FROM sessions"))
        await store.write(lambda uow: uow.sessions.add(plain_session("s2")))
        begun = time.monotonic()
        assert await store.tidy() is False
        assert time.monotonic() - begun < 2.5
        log = path.with_name(path.name + "-wal")
        assert contents(log)
        other.execute("ROLLBACK")
        assert await store.tidy() is True
        assert contents(log) == b""
        other.close()
    with pytest.raises(StoreError, match="closed"):
        await store.tidy()


async def make_fixture(write: Callable[[str], object]) -> None:
    path = Path(tempfile.mkdtemp()) / "home" / "everthread.db"
    async with aclosing(await SqliteStore.open(path)) as store:
        await live_a_little(store)
    write(dump(path))


if __name__ == "__main__":
    asyncio.run(make_fixture(sys.stdout.write))
