"""Worker process that stops itself inside a transaction, and so holds the write lock of the store."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from everthread.adapters.sqlite.store import SqliteStore
from everthread.config.schema import Settings
from everthread.store.incidents import Incident
from everthread.store.unit_of_work import UnitOfWork


def stop_inside(uow: UnitOfWork) -> None:
    uow.incidents.add(Incident(1.0, "test", None, "written around the stop"))
    sys.stdout.write("inside\n")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGSTOP)


async def main(home: str) -> None:
    store = await SqliteStore.open(Settings(Path(home)).db_path)
    await store.write(stop_inside)
    await store.aclose()


asyncio.run(main(sys.argv[1]))
