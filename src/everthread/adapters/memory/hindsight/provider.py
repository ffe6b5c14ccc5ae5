"""Hindsight as a memory: a person is a bank, and each entry of a session's log is a document of its own in it.

A turn is the document `SESSION/0003`. Nothing is ever appended, and no document stands for a whole session: so a later
session, or half a write, has nothing to overwrite. Uses plain HTTP: see docs/how-to/memory/hindsight.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from everthread.adapters.memory.common.encoding import encoded, named
from everthread.adapters.memory.common.http import NotThere, Sleep, Wire
from everthread.adapters.memory.common.tools import Question, Questions, listed
from everthread.adapters.memory.hindsight.client import Banks, Found
from everthread.adapters.memory.hindsight.codec import (
    OPENED,
    Document,
    all_of,
    common,
    note_document_id,
    note_of,
    of_session,
    opened_of,
    origin,
    turn_id,
    turn_of,
    work_of,
)
from everthread.domain.errors import ProviderError, Unavailable
from everthread.domain.events import Delivery, ForgetScope
from everthread.domain.model import FORGOTTEN, Cause, SessionRef
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard, is_outdated

HINDSIGHT = "hindsight"
ADDRESS = "http://127.0.0.1:8888"
BANK = "everthread"
QUERY_CHARS_MAX = 500
"""The server refuses more than 500 tokens."""
FORGET_ROUNDS_MAX = 100
"""The server lists no more than some of the documents that hold a word, so the rest is looked for again."""

_RECALL, _REFLECT = "hindsight_recall", "hindsight_reflect"
_TOOLS = (
    Question(
        _RECALL,
        "Search what was said with this user, and what was learned of them, in all their conversations.",
        "query",
    ),
    Question(
        _REFLECT,
        "Ask for an answer that is put together from all that is remembered of this user; takes a while.",
        "query",
    ),
)


class Hindsight(MemoryProvider):
    def __init__(self, *, sleep: Sleep = asyncio.sleep) -> None:  # noqa: TID251 - providers are made without a clock
        super().__init__()
        self.name = HINDSIGHT
        self.capabilities = Capability.RECALL | Capability.FORGET | Capability.HEALTH | Capability.DEDUPLICATES
        self.scorecard = Scorecard(redelivery="done", order="done", forget="done")
        self._sleep = sleep
        self._questions = Questions(self.name, _TOOLS, chars_max=QUERY_CHARS_MAX)
        self._prefix = BANK
        self._open: Banks | None = None

    async def initialize(
        self, *, address: str = ADDRESS, key: str = "", bank: str = BANK, profile: str = "", **settings: Any
    ) -> None:
        """Nothing is asked of the server yet: one that is down now may be up for the first entry."""
        await self.shutdown()
        self._prefix = named(encoded(bank), encoded(profile)) if profile else encoded(bank)
        self._open = Banks(self.name, Wire(self.name, address, key=key), self._sleep)

    async def shutdown(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            await opened.aclose()

    # What is told -----------------------------------------------------------------------------------------------------

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        document = turn_of(ref.session_id, int(more.get("turn", delivery.seq)), user, assistant, more.get("at"))
        await self._keep(document, ref, delivery)

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        child_id = str(more.get("child_session_id", ""))
        await self._keep(work_of(ref.session_id, delivery.seq, task, result, child_id), ref, delivery)

    async def on_session_switch(
        self, new_session_id: str, *, parent_session_id: str = "", ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        if more.get("rewound"):
            for number in more.get("turns", ()):
                await self._drop(self._bank(ref), turn_id(ref.session_id, number))
        elif parent_session_id and more.get("reason") != Cause.RESUME:
            # Who resumes a session comes from another one, which is no parent of it.
            await self._keep(opened_of(ref.session_id, parent_session_id), ref, delivery)

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
        """A note's newest wording takes the place of what it said before, in whichever session that was."""
        if is_outdated(metadata):
            return
        note_id, version = str(metadata.get("note_id", "")), int(metadata.get("version", 0))
        document = note_of(ref.session_id, note_id, version, target, content, metadata.get("at"))
        bank = self._bank(ref)
        async with self._banks.alone(bank, document.id):
            before = await self._banks.get(bank, document.id)
            if before is not None and before.version > version:
                # Sessions do not wait for each other: this one comes late.
                return
            if action == "remove":
                await self._banks.delete(bank, document.id)
                return
            await self._banks.put(bank, document, delivery.replay)
            if before is not None and before.operation != document.signed(bank, delivery.replay).operation:
                await self._banks.drop_operation(bank, before.operation)

    async def forget(
        self, scope: ForgetScope, *, ref: SessionRef, delivery: Delivery, text: str = "", note_id: str = ""
    ) -> None:
        bank = self._bank(ref)
        match scope:
            case ForgetScope.SESSION:
                await self._banks.drop_unfinished(bank, beginning=all_of(ref.session_id))
                for document_id in await self._banks.ids(bank, tag=of_session(ref.session_id)):
                    await self._drop(bank, document_id)
            case ForgetScope.OWNER:
                await self._banks.delete_bank(bank)
            case ForgetScope.FACT:
                if note_id:
                    await self._drop(bank, note_document_id(note_id))
                if text.strip():
                    await self._banks.drop_unfinished(bank, holding=text)
                    await self._take_out(bank, text, delivery)

    # What is asked ----------------------------------------------------------------------------------------------------

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        asked = query.strip()[:QUERY_CHARS_MAX]
        # It refuses to look for what has no word in it.
        if limit < 1 or not any(character.isalnum() for character in asked):
            return ()
        recalled = await self._banks.recall(self._bank(ref), asked)
        items = [_item(one, recalled.behind(one), rank) for rank, one in enumerate(recalled.results)]
        return [item for item in items if item is not None][:limit]

    async def health(self) -> str:
        try:
            await self._banks.health()
        except ProviderError as error:
            return str(error)
        return "ok"

    def get_tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return self._questions.schemas

    async def handle_tool_call(self, name: str, args: Mapping[str, Any], *, ref: SessionRef) -> str:
        """Each acts on the person of its own turn."""
        words = self._questions.words(name, args)
        if name == _RECALL:
            return listed(item.text for item in await self.prefetch(words, ref=ref, limit=10))
        try:
            return await self._banks.reflect(self._bank(ref), words) or "Nothing is remembered of that."
        except NotThere:
            return "Nothing is remembered of that."

    # ------------------------------------------------------------------------------------------------------------------

    async def _keep(self, document: Document, ref: SessionRef, delivery: Delivery) -> None:
        if not document.content.strip():
            return
        bank = self._bank(ref)
        async with self._banks.alone(bank, document.id):
            await self._banks.put(bank, document, delivery.replay)

    async def _drop(self, bank: str, document_id: str) -> None:
        async with self._banks.alone(bank, document_id):
            await self._banks.delete(bank, document_id)

    async def _take_out(self, bank: str, words: str, delivery: Delivery) -> None:
        """The words leave every document that has them, literally; the rest of it stays."""
        for _ in range(FORGET_ROUNDS_MAX):
            changed = [
                await self._take_out_of(bank, each, words, delivery) for each in await self._holding(bank, words)
            ]
            if not any(changed):
                return

    async def _holding(self, bank: str, words: str) -> Sequence[str]:
        return await self._banks.ids(bank, holding=words)

    async def _take_out_of(self, bank: str, document_id: str, words: str, delivery: Delivery) -> bool:
        async with self._banks.alone(bank, document_id):
            document = await self._banks.get(bank, document_id)
            if document is None or words not in document.content:
                return False
            rest = document.without(words)
            if rest.content.strip() == FORGOTTEN:
                await self._banks.delete(bank, document_id)
            else:
                await self._banks.put(bank, rest, delivery.replay)
                await self._banks.drop_operation(bank, document.operation)
            return True

    def _bank(self, ref: SessionRef) -> str:
        return named(self._prefix, encoded(ref.owner))

    @property
    def _banks(self) -> Banks:
        if self._open is None:
            raise Unavailable(self.name, "is shut down")
        return self._open


def _item(found: Found, behind: Sequence[Found], rank: int) -> RecallItem | None:
    where = common([origin(one.document_id or "", one.metadata or {}) for one in behind])
    # That a conversation continues another is kept for those who look, and says nothing in a prompt.
    if not found.text.strip() or where.kind == OPENED:
        return None
    # Best first; its scores are not comparable from one question to the next.
    return RecallItem(
        found.text, 1 / (1 + rank), session_id=where.session_id, turn=where.turn, at=_seconds(found.mentioned_at)
    )


def _seconds(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None
