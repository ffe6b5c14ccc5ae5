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
from everthread.web.responses import EventStream, encode_named_event

POLL_S = 0.25
HEARTBEAT_S = 15.0
WINDOW = 1000
LISTENERS_MAX = 16
"""Of one owner."""
_ID = re.compile(r"b(\d{1,15})-l(\d{1,15})")


async def follow(call: ApiCall) -> Response:
    """Stream the events of your conversations."""
    end = await call.gateway.store.read_inline(lambda uow: uow.activity.end())
    position = _parse_position(call.header("last-event-id"), end)
    listeners, owner = call.state.listeners, call.caller.owner
    if listeners.get(owner, 0) >= LISTENERS_MAX:
        raise HttpError(
            429, f"At most {LISTENERS_MAX} streams may be open at once.", "too_many_listeners", {"Retry-After": "30"}
        )
    listeners[owner] = listeners.get(owner, 0) + 1
    queue = call.state.add_queue(call.state.followers)

    async def leave() -> None:
        call.state.followers.discard(queue)
        listeners[owner] -= 1

    return EventStream(_events(call, position, queue), ended=leave)


def _parse_position(text: str | None, end: FeedPosition) -> FeedPosition:
    """Parse the position of a listener. A position past the end is from a store that was replaced since."""
    if text is None:
        return end
    found = _ID.fullmatch(text.strip())
    if found is None:
        raise HttpError(400, "Last-Event-ID must be the id of an event of this gateway.", "bad_event_id")
    return FeedPosition(min(int(found[1]), end.boundary), min(int(found[2]), end.pos))


def _read_new(
    uow: UnitOfWork, caller: ApiCaller, position: FeedPosition, now: float
) -> tuple[tuple[BoundaryRow | TurnActivity, ...], FeedPosition, FeedPosition] | None:
    """Read new activity, the position it reaches and the end; `None` if the caller is no longer authorized."""
    if not caller.may_stay(uow, now):
        return None
    return (*uow.activity.after(caller.owner, position, WINDOW), uow.activity.end())


async def _events(call: ApiCall, position: FeedPosition, queue: asyncio.Queue[object]) -> AsyncGenerator[bytes, None]:
    store, loop = call.gateway.store, asyncio.get_running_loop()
    yield encode_named_event("listening", _id(position), {})
    seen, sent_at = -1, loop.time()
    while True:
        # Read the counter before the query: a commit in between is seen in the next round.
        changed, now = await store.changed(), call.gateway.clock.now()
        while seen != changed:
            new = await store.read(lambda uow, at=position, now=now: _read_new(uow, call.caller, at, now))
            if new is None:
                return
            activity, reached, end = new
            for one in activity:
                position = _after(position, one)
                sent_at = loop.time()
                yield _encode(one, position)
            position = reached
            seen = changed if reached == end else seen
        if loop.time() - sent_at >= HEARTBEAT_S:
            sent_at = loop.time()
            # Read again: a token also expires while nothing happens.
            seen = -1
            # The position also moves past the activity of other owners.
            yield f": still here\nid: {_id(position)}\n\n".encode()
        try:
            async with asyncio.timeout(POLL_S):
                if isinstance(await queue.get(), ServerStopping):
                    return
        except TimeoutError:
            pass


def _after(position: FeedPosition, one: BoundaryRow | TurnActivity) -> FeedPosition:
    if isinstance(one, BoundaryRow):
        return FeedPosition(max(position.boundary, one.id), position.pos)
    return FeedPosition(position.boundary, max(position.pos, one.pos))


def _encode(one: BoundaryRow | TurnActivity, position: FeedPosition) -> bytes:
    if isinstance(one, BoundaryRow):
        fields = {"kind": one.kind, "from": one.from_session, "to": one.to_session, "actor": one.actor}
        name = "boundary"
    else:
        fields = {"session": one.session_id, "turn": one.number, "turn_id": one.turn_id, "status": one.status.value}
        name = "turn"
    return encode_named_event(name, _id(position), {**fields, "key": str(one.key), "at": one.at})


def _id(position: FeedPosition) -> str:
    return f"b{position.boundary}-l{position.pos}"
