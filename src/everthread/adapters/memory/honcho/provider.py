"""Honcho as a memory: each person is a peer with conversations, and Honcho draws conclusions about them.

A profile is a workspace. A person and the agent as this person knows it are two peers, a session is a session, the two
sides of a turn are messages, and a note is a conclusion. Uses plain HTTP: see docs/how-to/memory/honcho.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from everthread.adapters.memory.common.encoding import encoded, split
from everthread.adapters.memory.common.http import NotThere, Sleep, Wire
from everthread.adapters.memory.common.tools import Question, Questions, listed
from everthread.adapters.memory.honcho.client import Api
from everthread.adapters.memory.honcho.codec import CONTENT_CHARS_MAX, agent, person, recalled, sayings
from everthread.adapters.memory.honcho.sessions import Homes
from everthread.domain.errors import ProviderError, Unavailable
from everthread.domain.events import Delivery, ForgetScope
from everthread.domain.model import Cause, Message, SessionRef
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard, is_outdated

HONCHO = "honcho"
QUERY_CHARS_MAX = 2_000
RESULTS_MAX = 100

_SEARCH, _ASK, _PROFILE = "honcho_search", "honcho_ask", "honcho_profile"
_TOOLS = (
    Question(_SEARCH, "Search what this user said and what is known of them, in all their conversations.", "query"),
    Question(_ASK, "Ask what is known of this user, as a question in plain words; takes a few seconds.", "question"),
    Question(_PROFILE, "The most important facts about this user, in a few lines."),
)


class Honcho(MemoryProvider):
    def __init__(self, *, sleep: Sleep = asyncio.sleep) -> None:  # noqa: TID251 - providers are made without a clock
        super().__init__()
        self.name = HONCHO
        self.capabilities = Capability.RECALL | Capability.FORGET | Capability.HEALTH | Capability.DEDUPLICATES
        self.scorecard = Scorecard(redelivery="done", order="done", forget="done")
        self._sleep = sleep
        self._questions = Questions(self.name, _TOOLS, chars_max=QUERY_CHARS_MAX)
        self._open: tuple[Api, Homes] | None = None

    async def initialize(
        self, *, url: str, api_key: str = "", workspace: str = "", profile: str = "main", **settings: Any
    ) -> None:
        """Nothing is asked of the server yet: one that is down now may be up for the first entry."""
        await self.shutdown()
        api = Api(Wire(self.name, url, key=api_key), encoded(workspace or f"everthread-{profile}"))
        self._open = (api, Homes(self.name, api, self._sleep))

    async def shutdown(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            await opened[0].aclose()

    # What is told -----------------------------------------------------------------------------------------------------

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        sides = ((person(ref.owner), user), (agent(ref.owner), assistant))
        said = sayings(sides, ref=ref, seq=delivery.seq, kind="turn", at=more.get("at"), turn=more.get("turn"))
        async with self._homes.alone(ref.session_id):
            await self._homes.append(ref, said)

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        sides = ((agent(ref.owner), f"Handed over: {task}"), (agent(ref.owner), f"Came back: {result}"))
        async with self._homes.alone(ref.session_id):
            await self._homes.append(ref, sayings(sides, ref=ref, seq=delivery.seq, kind="delegation", at=None))

    async def on_session_switch(
        self, new_session_id: str, *, parent_session_id: str = "", ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        turns: tuple[int, ...] = tuple(more.get("turns", ()))
        async with self._homes.alone(ref.session_id):
            if more.get("rewound"):
                await self._homes.undo(ref, turns)
            else:
                # Who resumes a session comes from another one, which is no parent of it.
                is_resumed = more.get("reason") == Cause.RESUME
                await self._homes.of_session(ref, "" if is_resumed else parent_session_id)

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        """Honcho has no commit: all that came before is there. How far that is gets written down."""
        async with self._homes.alone(ref.session_id):
            await self._homes.close(ref, int(more.get("through_seq", 0)), tuple(more.get("missing", ())))

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
        """A note's newest wording takes the place of all that it said before, wherever that was written."""
        if is_outdated(metadata):
            return
        note_id = str(metadata.get("note_id", ""))
        pieces = split(content, CONTENT_CHARS_MAX) if action != "remove" else ()
        # A note is changed in several sessions: two at once would each take the other's words back.
        async with self._homes.alone(ref.session_id), self._homes.alone(f"note/{note_id}"):
            home = await self._homes.of_note(ref, note_id)
            there = [one.content for one in await self._api.conclusions(session_id=home.id)]
            if lacking := [piece for piece in pieces if piece not in there]:
                await self._api.conclude(lacking, person(ref.owner), home.id)
            await self._homes.empty(home, but=pieces)
            await self._homes.take_back_note(ref.owner, note_id, but=home.id)

    async def forget(
        self, scope: ForgetScope, *, ref: SessionRef, delivery: Delivery, text: str = "", note_id: str = ""
    ) -> None:
        match scope:
            case ForgetScope.SESSION:
                await self._homes.forget_session(ref.session_id)
            case ForgetScope.OWNER:
                await self._homes.forget_person(ref.owner)
            case ForgetScope.FACT:
                await self._homes.forget_fact(ref.owner, text, note_id)

    # What is asked ----------------------------------------------------------------------------------------------------

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        asked, most = query.strip()[:QUERY_CHARS_MAX], min(limit, RESULTS_MAX)
        if not asked or most < 1:
            return ()
        peers = (person(ref.owner), agent(ref.owner))
        try:
            async with asyncio.TaskGroup() as tasks:
                concluded = tasks.create_task(self._api.query(asked, peers[0], most))
                said = tasks.create_task(self._api.search(asked, peers, most))
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
        return recalled(concluded.result(), said.result(), ref.owner, most)

    async def health(self) -> str:
        try:
            await self._api.waiting()
        except NotThere:
            return "there is no such workspace"
        except ProviderError as error:
            return str(error)
        return "ok"

    def get_tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return self._questions.schemas

    async def handle_tool_call(self, name: str, args: Mapping[str, Any], *, ref: SessionRef) -> str:
        """Each acts on the person of its own turn."""
        words = self._questions.words(name, args)
        if name == _PROFILE:
            return "\n".join(await self._card(ref.owner)) or "Nothing is known yet."
        if name == _SEARCH:
            return listed(item.text for item in await self.prefetch(words, ref=ref, limit=10))
        try:
            return await self._api.chat(person(ref.owner), words) or "Nothing is known of that."
        except NotThere:
            return "Nothing is known of that."

    # ------------------------------------------------------------------------------------------------------------------

    async def _card(self, owner: str) -> list[str]:
        try:
            return await self._api.card(person(owner))
        except NotThere:
            return []

    @property
    def _api(self) -> Api:
        return self._opened()[0]

    @property
    def _homes(self) -> Homes:
        return self._opened()[1]

    def _opened(self) -> tuple[Api, Homes]:
        if self._open is None:
            raise Unavailable(self.name, "is shut down")
        return self._open
