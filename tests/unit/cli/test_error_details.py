"""The full texts of log records reach the store, and nothing waits for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import until

from everthread.bootstrap.runtime import Runtime
from everthread.cli import error_details
from everthread.cli.error_details import store_details
from everthread.config.schema import Settings
from everthread.domain.errors import StoreBusy
from everthread.domain.model import Inbound, SessionKey
from everthread.log_file import DETAILS_MAX, LogFile
from everthread.store.error_details import ErrorDetail
from everthread.store.unit_of_work import UnitOfWork

KEY = SessionKey.parse("agent:main:post:dm:1")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tuple[logging.Logger, LogFile]]:
    logger = logging.Logger("everthread.tests", logging.INFO)
    handler = LogFile(tmp_path / "logs" / "everthread.log", hidden=["hunter2"])
    logger.addHandler(handler)
    yield logger, handler
    handler.close()


def fail(logger: logging.Logger, reference: str, text: str = "my mango", **fields: str) -> None:
    logger.warning("it failed: %s", ValueError(text), extra={"reference": reference, **fields})


async def details(runtime: Runtime, reference: str) -> tuple[ErrorDetail, ...]:
    return await runtime.store.read(lambda uow: uow.error_details.get(reference))


async def test_texts_are_stored_soon_under_their_owner_without_secrets(tmp_path: Path, log: Any) -> None:
    logger, handler = log
    async with Runtime(Settings(tmp_path)) as runtime:
        await runtime.lifecycle.accept(Inbound(KEY, "guest", "hello"))
        claim = await runtime.lifecycle.begin_turn(KEY)
        assert claim is not None
        async with store_details(handler, runtime.store):
            fail(logger, "r1", "my mango and hunter2", session=claim.ref.session_id)
            fail(logger, "r2", key=str(KEY))
            fail(logger, "r3", owner="guest")
            fail(logger, "r4", key="no key")
            await asyncio.sleep(2 * error_details.PAUSE_S)
            [found] = await details(runtime, "r1")
            assert (found.session_id, found.owner) == (claim.ref.session_id, "guest")
            assert found.text == "it failed: my mango and [hidden]"
            assert [(d.session_id, d.owner) for d in await details(runtime, "r2")] == [(found.session_id, "guest")]
            assert [(d.session_id, d.owner) for d in await details(runtime, "r3")] == [(None, "guest")]
            assert [(d.session_id, d.owner) for d in await details(runtime, "r4")] == [(None, "")]
            fail(logger, "r5")
        assert await details(runtime, "r5"), "written at the end"
        fail(logger, "r6")
        assert handler.details is None


async def test_texts_wait_for_a_store_that_is_busy_and_are_bounded(
    tmp_path: Path, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, handler = log
    monkeypatch.setattr(error_details, "RETRY_S", 0.01)
    async with Runtime(Settings(tmp_path)) as runtime:
        write, failures = runtime.store.write, [3]

        async def busy(work: Callable[[UnitOfWork], Any]) -> Any:
            if failures[0]:
                failures[0] -= 1
                raise StoreBusy("locked")
            return await write(work)

        monkeypatch.setattr(runtime.store, "write", busy)
        async with store_details(handler, runtime.store):
            for number in range(DETAILS_MAX + 10):
                fail(logger, f"r{number}")
            await until(lambda: not failures[0])
            await asyncio.sleep(0.5)
            assert await details(runtime, "r9") == ()
            assert await details(runtime, "r10")
            assert await details(runtime, f"r{DETAILS_MAX + 9}")


async def test_texts_of_a_runtime_that_is_closed_are_stored(tmp_path: Path, log: Any) -> None:
    logger, handler = log
    async with Runtime(Settings(tmp_path)) as runtime, store_details(handler, runtime.store) as runtime.before_close:
        fail(logger, "r1")
        await runtime.stop()
        fail(logger, "too late")
    async with Runtime(Settings(tmp_path)) as runtime:
        assert await details(runtime, "r1")


async def test_texts_of_other_threads_are_stored(tmp_path: Path, log: Any) -> None:
    logger, handler = log
    async with Runtime(Settings(tmp_path)) as runtime:
        async with store_details(handler, runtime.store):
            await asyncio.to_thread(fail, logger, "r1")
        assert await details(runtime, "r1")


async def test_one_text_that_can_not_be_stored_does_not_stop_the_others(
    tmp_path: Path, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, handler = log
    add_all = error_details._add_all  # noqa: SLF001 - any error in the middle of a transaction

    def refuse(uow: UnitOfWork, details: Any) -> None:
        add_all(uow, details)
        if any(detail.reference == "bad" for detail in details):
            raise ValueError("bad text")

    monkeypatch.setattr(error_details, "_add_all", refuse)
    async with Runtime(Settings(tmp_path)) as runtime, store_details(handler, runtime.store):
        for reference in ("r1", "bad", "r2"):
            fail(logger, reference)
        await asyncio.sleep(3 * error_details.PAUSE_S)
        fail(logger, "r3")
        await asyncio.sleep(3 * error_details.PAUSE_S)
        assert [len(await details(runtime, each)) for each in ("r1", "bad", "r2", "r3")] == [1, 0, 1, 1]


async def test_the_newest_texts_are_kept_if_the_store_is_busy_for_long(
    tmp_path: Path, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, handler = log
    monkeypatch.setattr(error_details, "RETRY_S", 0.01)
    async with Runtime(Settings(tmp_path)) as runtime:
        write, busy = runtime.store.write, [True]

        async def slow(work: Callable[[UnitOfWork], Any]) -> Any:
            if not busy[0]:
                return await write(work)
            busy[0] = False
            # Meanwhile as many new ones arrive as can wait.
            for number in range(DETAILS_MAX):
                fail(logger, f"new{number}")
            raise StoreBusy("locked")

        monkeypatch.setattr(runtime.store, "write", slow)
        async with store_details(handler, runtime.store):
            for number in range(DETAILS_MAX):
                fail(logger, f"old{number}")
            await until(lambda: not busy[0])
            await asyncio.sleep(0.5)
            assert await details(runtime, f"old{DETAILS_MAX - 1}") == ()
            assert await details(runtime, "new0")
            assert await details(runtime, f"new{DETAILS_MAX - 1}")
