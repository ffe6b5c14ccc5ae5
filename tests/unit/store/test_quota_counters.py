"""The counters equal a count from scratch after any history."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.runtime import ME, CoreFixture

from everthread.domain.boundary import Branch, New, Rewind
from everthread.domain.errors import EverthreadError
from everthread.domain.media import Media
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role, SessionKey, ToolCall
from everthread.domain.quota import Quotas
from everthread.lifecycle import ForgetFact, ForgetOwner, ForgetSession, NoteChange
from everthread.lifecycle.archive import prunable

PEOPLE = ("anna", "ben", ME)
QUOTAS = Quotas(ME, 10**6, 10**6, 10**12, 20, 10**12)
STEPS = 120


def key(person: str, number: int) -> SessionKey:
    return SessionKey.parse(f"agent:main:http:dm:{person}{number}")


class History:
    """Random changes of the data of three people, one of whom has no quota."""

    def __init__(self, core: CoreFixture, chance: random.Random) -> None:
        self.core, self.chance = core, chance
        self.number = 0

    async def step(self) -> None:
        person = self.chance.choice(PEOPLE)
        steps: list[Callable[[str], Awaitable[object]]] = [
            *(self.turn, self.turn, self.turn, self.new, self.branch, self.rewind, self.compress, self.attach),
            *(self.set_aside, self.fetch, self.forget, self.forget_fact, self.prune),
            *(self.note, self.change_note, self.undo_note),
        ]
        if self.chance.random() < 0.02:
            steps = [self.forget_owner]
        try:
            await self.chance.choice(steps)(person)
        except EverthreadError:
            # Nothing to undo, to compress or to forget yet.
            pass

    def key(self, person: str) -> SessionKey:
        return key(person, self.chance.randrange(3))

    async def turn(self, person: str) -> None:
        lifecycle, here = self.core.lifecycle, self.key(person)
        await lifecycle.accept(Inbound(here, person, "tea for two"))
        claim = await lifecycle.begin_turn(here)
        if claim is None:
            return
        call = ToolCall("c", "shell", '{"a": "tea"}')
        text = self.chance.choice(("tea", "ü" * self.chance.randrange(2000)))
        messages = [Message(Role.USER, text), Message(Role.ASSISTANT, "", (call,)), Message(Role.ASSISTANT, "yes")]
        await lifecycle.commit_turn(claim, messages, "yes")

    async def new(self, person: str) -> None:
        await self.core.cross(self.key(person), New(), owner=person)

    async def branch(self, person: str) -> None:
        await self.core.cross(self.key(person), Branch(), owner=person)

    async def rewind(self, person: str) -> None:
        await self.core.cross(self.key(person), Rewind(1), owner=person)

    async def compress(self, person: str) -> None:
        here = self.key(person)
        if await self.core.lifecycle.current(here) is not None:
            await self.core.cross(here, await self.core.compression(here), owner=person)

    async def attach(self, person: str) -> None:
        self.number += 1
        size = self.chance.choice((None, self.chance.randrange(10**6)))
        media = Media("file", "x", size=size, handle="h", path=f"http/{self.number}")
        await self.core.lifecycle.accept(Inbound(self.key(person), person, "look", media=(media,)))

    async def fetch(self, person: str) -> None:
        for row in await self.core.store.read(lambda uow: uow.inbox.waiting(key(person, 0))):
            kept = tuple(Media(media.kind, path=media.path) for media in row.inbound.media)
            size = self.chance.randrange(10**6)
            await self.core.store.write(
                lambda uow, row=row, kept=kept, size=size: uow.inbox.unpack(row.id, "look", kept, size if kept else 0)
            )

    async def set_aside(self, person: str) -> None:
        await self.attach(person)
        await self.new(person)

    async def forget(self, person: str) -> None:
        sessions = await self.core.store.read(lambda uow: uow.sessions.of_owner(person))
        if sessions:
            await self.core.lifecycle.forget(ForgetSession(self.chance.choice(sessions).id), owner=person)

    async def forget_fact(self, person: str) -> None:
        note = await self.core.note("tea", owner=person)
        await self.core.lifecycle.forget(ForgetFact(note.note_id), owner=person)

    async def note(self, person: str) -> None:
        ref = await self.core.lifecycle.current(self.key(person))
        text = self.chance.choice(("likes tea", "ü" * self.chance.randrange(1, 2000)))
        await self.core.note(text, ref if ref is not None and ref.owner == person else None, owner=person)

    async def change_note(self, person: str) -> None:
        notes = await self.core.store.read(lambda uow: uow.notes.current(person, NoteTarget.MEMORY))
        if notes:
            action = self.chance.choice((NoteAction.REPLACE, NoteAction.REMOVE))
            change = NoteChange(action, NoteTarget.MEMORY, "no ü", self.chance.choice(notes).note_id)
            await self.core.lifecycle.write_note(change, owner=person)

    async def undo_note(self, person: str) -> None:
        for last in await self.core.store.read(lambda uow: uow.notes.history(person, 1)):
            await self.core.lifecycle.undo_note(last.note_id, last.version, owner=person)

    async def forget_owner(self, person: str) -> None:
        await self.core.lifecycle.forget(ForgetOwner(), owner=person)

    async def prune(self, person: str) -> None:
        self.core.clock.advance(10.0)
        later = self.core.clock.now()
        found = await self.core.store.read(lambda uow: prunable(uow, later))
        await self.core.lifecycle.prune([session.id for session in found.sessions], before=later)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.timeout(60)
async def test_the_counters_equal_a_count_from_scratch(tmp_path: Path, seed: int) -> None:
    async with CoreFixture(tmp_path, quotas=QUOTAS) as core:
        await core.stop_lanes()
        history = History(core, random.Random(seed))
        compared = 0
        for step in range(STEPS):
            await history.step()
            for person in PEOPLE:
                counted, kept = await core.store.read(
                    lambda uow, person=person: (uow.quota_counters.count(person), uow.quota_counters.get(person))
                )
                if person == ME:
                    assert kept is None
                elif kept is not None:
                    compared += 1
                    assert kept == counted, (seed, step, person)
        assert compared > STEPS


async def test_the_counters_of_a_person_are_first_made_from_their_data(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        for number in range(3):
            await core.turn(key("anna", number), "hello", owner="anna")
        await core.note("likes tea", owner="anna")
        assert await core.store.read(lambda uow: uow.quota_counters.get("anna")) is None
    async with CoreFixture(tmp_path, quotas=QUOTAS) as core:
        await core.turn(key("anna", 0), "hello", owner="anna")
        counts = await core.store.read(lambda uow: uow.quota_counters.get("anna"))
        assert counts is not None
        assert (counts.sessions, counts.stored_bytes) == (3, 4 * len("hellore hello") + len("likes tea"))
