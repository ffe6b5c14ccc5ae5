"""Move the full texts of log records, which the log file leaves out, to the store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from everthread.domain.errors import BadKey, StoreError
from everthread.domain.model import SessionKey
from everthread.log_file import DETAILS_MAX, LogDetail, LogFile
from everthread.store.error_details import ErrorDetail
from everthread.store.unit_of_work import Store, UnitOfWork

PAUSE_S = 0.2
"""Texts of this long are written in one transaction."""
RETRY_S = 5.0


@asynccontextmanager
async def store_details(log: LogFile, store: Store) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
    """Write the texts inside the block. Yields a function that writes the rest, for the end of the store.

    A text that can't be written until then is lost. Nothing here logs: it would produce more texts.
    """
    waiting: deque[LogDetail] = deque(maxlen=DETAILS_MAX)
    woken, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:
        # From any thread, perhaps after the end of the loop.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(woken.set)

    async def serve() -> None:
        while True:
            await woken.wait()
            await asyncio.sleep(PAUSE_S)  # noqa: TID251 - a process has no other clock for its log
            woken.clear()
            if not await _write(store, waiting):
                await asyncio.sleep(RETRY_S)  # noqa: TID251 - as above
                woken.set()

    async def write_rest() -> None:
        log.flush()
        await _write(store, waiting)

    log.on_detail, log.details = wake, waiting
    serving = asyncio.ensure_future(serve())
    try:
        yield write_rest
    finally:
        serving.cancel()
        await asyncio.wait({serving})
        await write_rest()
        log.details = None


async def _write(store: Store, waiting: deque[LogDetail]) -> bool:
    """Write the waiting texts. Return false if some have to wait."""
    left = await _write_or_return(store, [waiting.popleft() for _ in range(len(waiting))])
    is_done = not left
    # Others may have arrived meanwhile. The newest are kept.
    while left and len(waiting) < DETAILS_MAX:
        waiting.appendleft(left.pop())
    return is_done


async def _write_or_return(store: Store, details: list[LogDetail]) -> list[LogDetail]:
    """Write texts, and return those that have to wait for the store. A text that can't be written is dropped."""
    if not details:
        return []
    try:
        await store.write(lambda uow: _add_all(uow, details))
    except StoreError:
        return details
    except Exception:  # noqa: BLE001 - one text that can't be stored must not stop all later ones
        each_alone = [[detail] for detail in details] if len(details) > 1 else []
        return [left for alone in each_alone for left in await _write_or_return(store, alone)]
    return []


def _add_all(uow: UnitOfWork, details: list[LogDetail]) -> None:
    for detail in details:
        session_id, owner = _find_owner(uow, detail)
        uow.error_details.add(
            ErrorDetail(detail.at, detail.reference, detail.logger, detail.text, session_id or None, owner)
        )


def _find_owner(uow: UnitOfWork, detail: LogDetail) -> tuple[str, str]:
    """Return session and owner of a text; those of its key if the record has no other."""
    if detail.session_id or detail.owner or not detail.key:
        return detail.session_id, detail.owner
    with suppress(BadKey):
        binding, session = uow.sessions.at(SessionKey.parse(detail.key))
        if session is not None:
            return session.id, session.owner
        if binding is not None:
            return "", binding.owner
    return "", ""
