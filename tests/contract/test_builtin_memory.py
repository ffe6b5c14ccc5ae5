"""Test the built-in memory against the provider contract, as far as it applies without deliveries.

The tests write the kit's deliveries to the store as turns and notes. Recall runs from a later session, because recall
skips the content that a session already shows.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from everthread.adapters.memory.builtin import BuiltinMemory
from everthread.adapters.sqlite.store import SqliteStore
from everthread.adapters.sqlite.store import prepare as prepare_file
from everthread.domain.events import Delivery
from everthread.domain.model import (
    Cause,
    Message,
    NoteAction,
    NoteTarget,
    NoteVersion,
    Role,
    Session,
    SessionKind,
    SessionRef,
    TurnStatus,
)
from everthread.ports.memory import RecallItem, receives_events
from everthread.store.derived_text import WRITTEN
from everthread.store.unit_of_work import Store, UnitOfWork
from everthread.testing.contracts.memory_provider import EffectsOf, ProviderContract
from everthread.testing.contracts.store.fixtures import StillClock
from everthread.testing.recording_provider import StoredEntry


class ManualBuiltinMemory(BuiltinMemory):
    def __init__(self, store: Store) -> None:
        super().__init__(store, StillClock())
        self.store = store

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        messages = [Message(Role.USER, user), Message(Role.ASSISTANT, assistant)]

        def add(uow: UnitOfWork) -> None:
            if uow.sessions.get(ref.session_id) is None:
                uow.sessions.add(Session(ref.session_id, ref.owner, ref.key, SessionKind.CHAT, Cause.NEW, 1.0))
            session = uow.sessions.get(ref.session_id)
            assert session is not None
            uow.turns.add(session, more["turn"], delivery.key, TurnStatus.DONE, messages, more["at"])

        await self.store.write(add)

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
        note = NoteVersion(
            *(metadata["note_id"], 1, ref.owner, NoteTarget(target), NoteAction(action)),
            *(content, ref.session_id, None, 1.0),
        )
        await self.store.write(lambda uow: uow.derived.put_note(note, WRITTEN))

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        return await super().prefetch(query, ref=replace(ref, session_id=f"after {ref.session_id}"), limit=limit)


class TestBuiltinMemory(ProviderContract):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> Iterator[ManualBuiltinMemory]:
        prepare_file(tmp_path / "everthread.db")
        provider = ManualBuiltinMemory(SqliteStore(tmp_path / "everthread.db"))
        yield provider
        asyncio.run(provider.store.aclose())

    @pytest.fixture
    def effects(self) -> EffectsOf:
        def read(uow: UnitOfWork) -> list[StoredEntry]:
            sessions = uow.sessions.recent(owner=None, limit=100)
            turns = [(one.id, turn) for one in sessions for turn in uow.turns.view(replace(one, last_turn=99)).turns]
            return [StoredEntry(session_id, "turn", turn.user_text) for session_id, turn in turns]

        async def effects(provider: ManualBuiltinMemory) -> Sequence[StoredEntry]:
            return await provider.store.read(read)

        return effects

    def test_the_built_in_memory_receives_no_deliveries(self, provider: ManualBuiltinMemory) -> None:
        assert not receives_events(BuiltinMemory(provider.store, StillClock()))
