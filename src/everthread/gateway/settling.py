"""What is done about a part that may be out, by what was found of it (see `finding`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec.structs import replace

from everthread.domain.errors import PlatformError, PlatformUnavailable
from everthread.domain.model import Reply, ReplyState
from everthread.gateway import outgoing
from everthread.gateway.finding import Finding, NobodyKnows, Nowhere, Sighting, There, doubtful
from everthread.gateway.ledger import Ledger
from everthread.gateway.places import at
from everthread.ports import Clock, Platform
from everthread.ports.platform import Finder, Outbound

log = logging.getLogger("everthread.gateway")

PATIENT_TIMES = 5
PATIENT_S = 0.5
PATIENT_S_MAX = 60.0
TOLD_TO_WAIT_S_MAX = 60.0
"""Whoever is told to wait each time would begin to look for ever: after that, nobody can say."""

T = TypeVar("T")


class Settling:
    def __init__(self, finding: Finding, ledger: Ledger, clock: Clock) -> None:
        self._finding = finding
        self._ledger = ledger
        self._clock = clock
        self._since: dict[str, float] = {}
        """Replies whose next part may be out, and since when nobody has it in hand any more, by the loop's clock."""
        self._told_to_wait: dict[str, float] = {}
        """Since when, of those that could not be looked for."""

    def is_open(self, turn_id: str) -> bool:
        return turn_id in self._since

    def open(self, turn_id: str) -> None:
        """Nobody has its next part in hand from now on, and it may be out."""
        self._since[turn_id] = asyncio.get_running_loop().time()

    def leave(self, turn_id: str) -> None:
        """Nothing is to become of it any more."""
        self._since.pop(turn_id, None)
        self._told_to_wait.pop(turn_id, None)

    async def settle(self, platform: Platform, reply: Reply, message: Outbound, last: bool) -> bool | None:
        """Whether that was the last of it; `None` if it is not out, and is to be sent again. Raises
        `PlatformUnavailable` if that can't be told yet.
        """
        seen = await self._look(platform, reply, message)
        if not isinstance(seen, There) and not await self._ledger.has_its_words(reply):
            return True
        where = at(reply.key, reply.session_id, reply.turn_id)
        match seen:
            case There(message_id, is_without_files):
                await self._ledger.mark(outgoing.sent(reply, message_id, last))
                if is_without_files:
                    place = f"{reply.key.platform} chat {reply.key.chat}"
                    await self._ledger.tell(reply, f"a file of a reply may not have reached {place}")
                log.info("%s: a reply was found to be out", platform.name, extra=where)
                settled = last
            case Nowhere():
                log.info("%s: a reply was not out, and is sent again", platform.name, extra=where)
                settled = None
            case NobodyKnows(why):
                settled = await self._send_in_doubt(platform, reply, message, last, why)
        return settled

    async def _look(self, platform: Platform, reply: Reply, message: Outbound) -> Sighting:
        try:
            return await self._finding.look(platform, message, reply, self._since[reply.turn_id])
        except PlatformUnavailable as error:
            now = asyncio.get_running_loop().time()
            if not error.retry_after or now - self._told_to_wait.setdefault(reply.turn_id, now) < TOLD_TO_WAIT_S_MAX:
                raise
            return NobodyKnows(str(error))

    async def only_one(self, platform: Platform, finder: Finder, reply: Reply, message: Outbound, again_id: str) -> str:
        """What has gone out again may have been there all the time, where nobody had looked: then one of them is taken
        back. The id of the other.
        """
        try:
            seen = await self._patiently(lambda: self._finding.look_before(platform, finder, message, reply, again_id))
            if isinstance(seen, There):
                await self._patiently(lambda: finder.take_back(message.to, again_id))
                where = at(reply.key, reply.session_id, reply.turn_id)
                log.info("%s: a reply was there after all, and the second was taken back", platform.name, extra=where)
                return seen.message_id
            why = seen.why if isinstance(seen, NobodyKnows) else ""
        except PlatformError as error:
            why = str(error)
        if why:
            await self._ledger.tell(reply, f"a reply may be twice in {reply.key.platform} chat {reply.key.chat}: {why}")
        return again_id

    async def _send_in_doubt(self, platform: Platform, reply: Reply, message: Outbound, last: bool, why: str) -> bool:
        """Marked before it is sent again: whatever becomes of that, it is not sent a third time."""
        await self._ledger.give_up(reply, ReplyState.AMBIGUOUS, why)
        message_id = ""
        try:
            for one in doubtful(message, platform):
                if (out := await self._whenever(reply, lambda one=one: platform.send(one))) is None:
                    return True
                message_id = out
        except PlatformError as error:
            where = at(reply.key, reply.session_id, reply.turn_id)
            log.warning("%s: a reply that may be out was not sent again: %s", platform.name, error, extra=where)
            return True
        await self._ledger.mark(outgoing.sent(reply, message_id, last))
        return last

    async def _whenever(self, reply: Reply, act: Callable[[], Awaitable[T]]) -> T | None:
        """However long the platform is away; `None` if it was forgotten meanwhile. As long as it has certainly not gone
        out, whoever comes next is to take it up; but not with a file, which is gone once it is marked.
        """
        pause_s = PATIENT_S
        while await self._ledger.has_its_words(reply):
            try:
                return await act()
            except PlatformUnavailable as error:
                if not reply.file:
                    await self._ledger.mark(replace(reply, state=ReplyState.SENDING))
                await self._clock.sleep(max(error.retry_after, pause_s))
                pause_s = min(2 * pause_s, PATIENT_S_MAX)
                if not reply.file:
                    await self._ledger.mark(replace(reply, state=ReplyState.AMBIGUOUS))
        return None

    async def _patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        """If it is told to wait, it waits: what was done before would be done again otherwise."""
        for _ in range(PATIENT_TIMES):
            try:
                return await act()
            except PlatformUnavailable as error:
                await self._clock.sleep(max(error.retry_after, PATIENT_S))
        return await act()
