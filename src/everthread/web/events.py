"""`/api/events`: stream the activity of the caller's sessions from the store, from any position."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator

from starlette.responses import Response

from everthread.store.activity import FeedPosition, TurnActivity
from everthread.store.sessions import BoundaryRow
from everthread.store.unit_of_work import UnitOfWork
from everthread.web.errors import HttpError
from everthread.web.request import ApiCall, ApiCaller, ServerStopping
from everthread.web.sse import EventStream, named_event

POLL_S = 0.25
HEARTBEAT_S = 15.0
WINDOW = 1000
LISTENERS_MAX = 16
"""Of one owner."""
_ID = re.compile(r"b(\d{1,15})-l(\d{1,15})")


async def follow(call: ApiCall) -> Response:
    end = await call.gateway.store.read_inline(lambda uow: uow.activity.end())
    mark = _mark_of(call.header("last-event-id"), end)
    listeners, owner = call.site.listeners, call.caller.owner
    if listeners.get(owner, 0) >= LISTENERS_MAX:
        raise HttpError(429, f"at most {LISTENERS_MAX} may listen at once", "too_many_listeners", {"Retry-After": "30"})
    listeners[owner] = listeners.get(owner, 0) + 1
    news = call.site.follow()

    async def leave() -> None:
        call.site.followers.discard(news)
        listeners[owner] -= 1

    return EventStream(_events(call, mark, news), ended=leave)


def _mark_of(text: str | None, end: FeedPosition) -> FeedPosition:
    """Parse the position of a listener. A position past the end is from a store that was replaced since."""
    if text is None:
        return end
    found = _ID.fullmatch(text.strip())
    if found is None:
        raise HttpError(400, "Last-Event-ID must be the id of an event from here", "bad_event_id")
    return FeedPosition(min(int(found[1]), end.boundary), min(int(found[2]), end.pos))


def _news(
    uow: UnitOfWork, caller: ApiCaller, mark: FeedPosition
) -> tuple[tuple[BoundaryRow | TurnActivity, ...], FeedPosition, FeedPosition] | None:
    """Read new activity, the position it reaches and the end; `None` if the caller is no longer authorized."""
    return (*uow.activity.after(caller.owner, mark, WINDOW), uow.activity.end()) if caller.may_stay(uow) else None


async def _events(call: ApiCall, mark: FeedPosition, news: asyncio.Queue[object]) -> AsyncGenerator[bytes, None]:
    store, loop = call.gateway.store, asyncio.get_running_loop()
    yield named_event("listening", _id(mark), {})
    seen, sent_at = -1, loop.time()
    while True:
        # Read the counter before the query: a commit in between is seen in the next round.
        now = await store.changed()
        while seen != now:
            looked = await store.read(lambda uow, at=mark: _news(uow, call.caller, at))
            if looked is None:
                return
            found, to, end = looked
            for one in found:
                mark = _behind(mark, one)
                sent_at = loop.time()
                yield _event(one, mark)
            mark = to
            seen = now if to == end else seen
        if loop.time() - sent_at >= HEARTBEAT_S:
            sent_at = loop.time()
            # The position also moves past the activity of other owners.
            yield f": still here\nid: {_id(mark)}\n\n".encode()
        try:
            async with asyncio.timeout(POLL_S):
                if isinstance(await news.get(), ServerStopping):
                    return
        except TimeoutError:
            pass


def _behind(mark: FeedPosition, one: BoundaryRow | TurnActivity) -> FeedPosition:
    if isinstance(one, BoundaryRow):
        return FeedPosition(max(mark.boundary, one.id), mark.pos)
    return FeedPosition(mark.boundary, max(mark.pos, one.pos))


def _event(one: BoundaryRow | TurnActivity, mark: FeedPosition) -> bytes:
    if isinstance(one, BoundaryRow):
        said = {"kind": one.kind, "from": one.from_session, "to": one.to_session, "actor": one.actor}
        name = "boundary"
    else:
        said = {"session": one.session_id, "turn": one.number, "turn_id": one.turn_id, "status": one.status.value}
        name = "turn"
    return named_event(name, _id(mark), {**said, "key": str(one.key), "at": one.at})


def _id(mark: FeedPosition) -> str:
    return f"b{mark.boundary}-l{mark.pos}"
