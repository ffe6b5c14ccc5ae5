"""OpenViking as a memory: each person is a user there, a session is a session, and a close is a commit.

Memories are drawn from what is committed, in the background. The log counts a close as delivered only when that is
done; until then the transcript can be said again. Uses plain HTTP: see docs/how-to/memory/openviking.md.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from everthread.adapters.memory.common.encoding import encoded, named
from everthread.adapters.memory.common.http import Sleep, Wire
from everthread.adapters.memory.common.tools import Question, Questions, listed
from everthread.adapters.memory.openviking.client import Api, Found
from everthread.adapters.memory.openviking.codec import (
    TURN,
    WORK,
    lines_of,
    memories_of,
    origin,
    person,
    said_in,
    sessions_of,
    sought_in_messages,
)
from everthread.adapters.memory.openviking.memories import Memories
from everthread.adapters.memory.openviking.sessions import Rooms
from everthread.domain.errors import BadConfig, ProviderError, ToolFailed, Unavailable
from everthread.domain.events import Delivery, ForgetScope, View
from everthread.domain.model import Cause, Message, SessionRef
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard, is_outdated

OPENVIKING = "openviking"
ADDRESS = "http://127.0.0.1:1933"
ACCOUNT = "everthread"
QUERY_CHARS_MAX = 2_000
RESULTS_MAX = 100
LOOKED_UP_MAX = 20

_SEARCH, _READ, _LOOK_UP = "openviking_search", "openviking_read", "openviking_look_up"
_TOOLS = (
    Question(_SEARCH, "Search by meaning what is remembered of this user, from all their conversations.", "query"),
    Question(
        _READ, "Read one memory in full, by the address that openviking_search has given for it.", "uri", "viking://…"
    ),
    Question(_LOOK_UP, "Find exact words in what was said with this user, also in the last minutes.", "words"),
)


class OpenViking(MemoryProvider):
    def __init__(self, *, sleep: Sleep = asyncio.sleep) -> None:  # noqa: TID251 - providers are made without a clock
        super().__init__()
        self.name = OPENVIKING
        self.capabilities = Capability.RECALL | Capability.FORGET | Capability.HEALTH | Capability.DEDUPLICATES
        self.scorecard = Scorecard(redelivery="done", order="done", forget="done")
        self._sleep = sleep
        self._questions = Questions(self.name, _TOOLS, chars_max=QUERY_CHARS_MAX)
        self._open: tuple[Api, Memories, Rooms] | None = None

    async def initialize(
        self, *, url: str = ADDRESS, api_key: str = "", account: str = ACCOUNT, profile: str = "", **settings: Any
    ) -> None:
        """Nothing is asked of the server yet: one that is down now may be up for the first entry."""
        await self.shutdown()
        if not re.match(r"[A-Za-z0-9]", account):
            raise BadConfig(f"{self.name}: the account must begin with a letter or a digit; change it in the settings")
        whole = named(encoded(account), encoded(profile)) if profile else encoded(account)
        api = Api(self.name, Wire(self.name, url, key=api_key), whole)
        memories = Memories(api)
        self._open = (api, memories, Rooms(self.name, api, memories, self._sleep))

    async def shutdown(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            await opened[0].aclose()

    # What is told -----------------------------------------------------------------------------------------------------

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        sides = (("user", user), ("assistant", assistant))
        number = int(more.get("turn", delivery.seq))
        lines = lines_of(sides, seq=delivery.seq, kind=TURN, turn=number, at=more.get("at"))
        await self._rooms.tell(person(ref.owner), ref.session_id, lines)

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        said = f"Handed over: {task}\nCame back: {result}"
        lines = lines_of([("assistant", said)], seq=delivery.seq, kind=WORK, turn=0, at=None)
        await self._rooms.tell(person(ref.owner), ref.session_id, lines)

    async def on_session_switch(
        self, new_session_id: str, *, parent_session_id: str = "", ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        if more.get("rewound"):
            await self._rooms.take_back(person(ref.owner), ref.session_id, tuple(more.get("turns", ())))
        elif parent_session_id and more.get("reason") != Cause.RESUME:
            # Who resumes a session comes from another one, which is no parent of it.
            await self._rooms.begin(person(ref.owner), ref.session_id, parent_session_id)

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        view: View | None = more.get("view")
        visible = None if view is None else {turn.number for turn in view.turns if turn.session_id == ref.session_id}
        missing = tuple(more.get("missing", ()))
        await self._rooms.close(person(ref.owner), ref.session_id, delivery.seq, missing, visible)

    async def on_memory_write(
        self,
        action: str,
        target: str,
        content: str,
        metadata: Mapping[str, Any],
        *,
        ref: SessionRef,
        delivery: Delivery,
    ) -> None:
        if is_outdated(metadata):
            return
        user, note_id, version = person(ref.owner), str(metadata.get("note_id", "")), int(metadata.get("version", 0))
        async with self._rooms.alone(user, f"note {note_id}"):
            words = content if action != "remove" else ""
            await self._memories.note(user, ref.session_id, note_id, version, words)

    async def forget(
        self, scope: ForgetScope, *, ref: SessionRef, delivery: Delivery, text: str = "", note_id: str = ""
    ) -> None:
        user = person(ref.owner)
        match scope:
            case ForgetScope.SESSION:
                await self._rooms.forget(user, ref.session_id)
            case ForgetScope.OWNER:
                await self._rooms.forget_person(user)
            case ForgetScope.FACT:
                if note_id:
                    await self._memories.forget_note(user, note_id)
                if text.strip():
                    await self._rooms.take_out(user, text)
                    await self._memories.take_out(user, text)

    # What is asked ----------------------------------------------------------------------------------------------------

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        return [_item(one) for one in await self._found(query, ref, limit)]

    async def health(self) -> str:
        try:
            await self._api.check()
        except ProviderError as error:
            return str(error)
        return "ok"

    def get_tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return self._questions.schemas

    async def handle_tool_call(self, name: str, args: Mapping[str, Any], *, ref: SessionRef) -> str:
        """Each acts on the person of its own turn."""
        words = self._questions.words(name, args)
        if name == _SEARCH:
            return listed(f"{one.text}\n  ({one.uri})" for one in await self._found(words, ref, 10))
        if name == _LOOK_UP:
            return listed(await self._looked_up(person(ref.owner), words), "Nobody has said that.")
        if not words.startswith(f"{memories_of(person(ref.owner))}/") or "/.." in words:
            raise ToolFailed("that is no address of a memory; take one that openviking_search has given")
        return await self._api.read(person(ref.owner), words) or "There is no such memory any more."

    # ------------------------------------------------------------------------------------------------------------------

    async def _found(self, query: str, ref: SessionRef, limit: int) -> list[Found]:
        asked, most = query.strip()[:QUERY_CHARS_MAX], min(limit, RESULTS_MAX)
        if not asked or most < 1:
            return []
        return [one for one in await self._api.find(person(ref.owner), asked, most) if one.text.strip()][:most]

    async def _looked_up(self, user: str, words: str) -> list[str]:
        matches = await self._api.grep(user, sessions_of(user), sought_in_messages(words))
        said = (said_in(match.content) for match in matches if match.uri.endswith("/messages.jsonl"))
        return [*dict.fromkeys(line for line in said if line)][:LOOKED_UP_MAX]

    @property
    def _api(self) -> Api:
        return self._opened()[0]

    @property
    def _memories(self) -> Memories:
        return self._opened()[1]

    @property
    def _rooms(self) -> Rooms:
        return self._opened()[2]

    def _opened(self) -> tuple[Api, Memories, Rooms]:
        if self._open is None:
            raise Unavailable(self.name, "is shut down")
        return self._open


def _item(found: Found) -> RecallItem:
    session_id, turn = origin(found.tags)
    return RecallItem(found.text, found.score, session_id=session_id, turn=turn)
