"""Agent process for the kill tests of background work: reviews and compression.

The test passes the orders as JSON in the only argument. The worker resumes the work of the previous process, answers
one message, and runs until no work is left. The clock is an hour further ahead in each process, so that no test waits
for a lease to expire or for the retry of a review.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.e2e.agent_worker import KEY, LIFE_S, OWNER, FastClock

from everthread.agent.turn_options import TurnOptions
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import CompressionSettings, ProviderSettings, ReviewSettings, Settings
from everthread.domain.model import Inbound
from everthread.store.unit_of_work import UnitOfWork

CONTEXT_TOKENS = 50_000
REVIEW_EVERY = 2
QUIET_S = 0.2


def settings(home: Path, url: str, *, compresses: bool) -> Settings:
    return Settings(
        home,
        model="stub/one",
        providers={"stub": ProviderSettings(base_url=url, context_tokens=CONTEXT_TOKENS)},
        compression=CompressionSettings(enabled=compresses, share=0.5, tail_tokens=200),
        review=ReviewSettings(every_turns=0 if compresses else REVIEW_EVERY),
    )


def _is_at_rest(uow: UnitOfWork) -> bool:
    sessions = uow.sessions.of_owner(OWNER)
    rows = [row for session in sessions for row in uow.reviews.of_session(session.id)]
    return all(row.state.value not in ("waiting", "running") for row in rows)


async def work(home: Path, url: str, life: int, message: str, *, compresses: bool) -> None:
    clock = FastClock(life * LIFE_S)
    async with Runtime(settings(home, url, compresses=compresses), clock=clock) as runtime:
        await runtime.ready()
        options = TurnOptions(runtime.choices())
        if message:
            await runtime.lifecycle.accept(Inbound(KEY, OWNER, message, update_id=message))
        runtime.agent.start_reviews()
        for turn_id in await runtime.lifecycle.recover():
            await runtime.agent.resume(turn_id, options)
        while await runtime.agent.answer(KEY, options):
            pass
        here = await runtime.lifecycle.current(KEY)
        assert here is not None
        while await runtime.agent.compression_status(here.session_id) or not await runtime.store.read(_is_at_rest):
            await clock.sleep(0.01)
        await asyncio.sleep(QUIET_S)


if __name__ == "__main__":
    orders = json.loads(sys.argv[1])
    asyncio.run(work(Path(orders.pop("home")), **orders))
