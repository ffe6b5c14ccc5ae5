"""Print the log of every session, oldest session first."""

import asyncio

from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import load


def entries(uow):
    for session in sorted(uow.sessions.recent(owner=None, limit=100), key=lambda session: session.id):
        entry = uow.log.after(session.id, 0)
        while entry is not None:
            yield session.id, entry.seq, entry.kind.value, entry.number, entry.detail
            entry = uow.log.after(session.id, entry.seq)


async def main():
    async with Runtime(load()) as runtime:
        for session_id, seq, kind, turn, detail in await runtime.store.read(lambda uow: list(entries(uow))):
            print(session_id, seq, kind, f"turn {turn}" if turn else detail)


asyncio.run(main())
