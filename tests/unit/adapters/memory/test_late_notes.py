"""Late deliveries of notes: versions that were replaced in another lane change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.honcho import FakeHoncho
from tests.fakes.supermemory import FakeSupermemory
from tests.runtime import CLI, ME, AsyncDiary, Call, CoreFixture

from everthread.adapters.memory.hindsight.provider import Hindsight
from everthread.adapters.memory.honcho.provider import Honcho
from everthread.adapters.memory.supermemory.provider import Supermemory
from everthread.domain.errors import Unavailable
from everthread.domain.events import Delivery
from everthread.domain.model import NoteAction, NoteTarget, SessionRef
from everthread.lifecycle import NoteChange
from everthread.memory.delivery_results import Limits
from everthread.ports.memory import MemoryProvider, is_outdated

PATIENT = Limits(attempt_s_max=5.0, backoff_s=0.01, backoff_s_max=0.05, breaker_s=0.05)
Making = Callable[[], MemoryProvider]


async def added_then_removed_elsewhere(core: CoreFixture) -> None:
    """Add a note in a session and remove it outside of any session."""
    ref = (await core.turn(CLI, "hello")).ref
    added = await core.lifecycle.write_note(
        NoteChange(NoteAction.ADD, NoteTarget.USER, "has seven hives"), owner=ME, ref=ref
    )
    await core.lifecycle.write_note(NoteChange(NoteAction.REMOVE, NoteTarget.USER, note_id=added.note_id), owner=ME)


async def test_a_delivered_note_says_if_its_version_is_outdated(tmp_path: Path) -> None:
    diary = AsyncDiary()
    down = True

    async def refuse(call: Call) -> None:
        if down and call.session != f"notes:{ME}":
            raise ConnectionError("down")

    diary.before = refuse
    async with CoreFixture(tmp_path, diary) as core:
        await added_then_removed_elsewhere(core)
        while not diary.book.of("on_memory_write", f"notes:{ME}"):
            await core.clock.sleep(0.01)
        down = False
        await core.settled()
    told = [(call.more["action"], is_outdated(call.more)) for call in diary.book.of("on_memory_write")]
    assert told == [("remove", False), ("add", True)]


@pytest.mark.parametrize("make", [Hindsight, Honcho, Supermemory])
async def test_an_outdated_note_is_skipped_without_a_request(make: Making) -> None:
    provider, delivery = make(), Delivery("s1:1:x:0", 1)
    ref = SessionRef("s1", 0, CLI, 1, ME)
    about = {"note_id": "n1", "version": 1, "newest": 2}
    written = provider.on_memory_write("add", "user", "old", about, ref=ref, delivery=delivery)
    assert written is not None
    await written
    current = provider.on_memory_write("add", "user", "old", {**about, "newest": 1}, ref=ref, delivery=delivery)
    assert current is not None
    with pytest.raises(Unavailable):
        await current


@pytest.mark.parametrize("make", [Honcho, Supermemory])
async def test_a_delayed_lane_does_not_restore_a_removed_note(tmp_path: Path, make: Making) -> None:
    fake = FakeHoncho() if make is Honcho else FakeSupermemory()
    with fake:
        provider = make()
        settings = {provider.name: {"url": fake.address, "api_key": "k"}}
        telling = type(provider).on_memory_write
        held = True

        class GatedModel(make):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
            async def on_memory_write(self, *args: object, ref: SessionRef, delivery: Delivery) -> None:
                if held and ref.session_id != f"notes:{ME}":
                    raise ConnectionError("down")
                await telling(self, *args, ref=ref, delivery=delivery)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]

        async with CoreFixture(tmp_path, GatedModel(), settings=settings, limits=PATIENT) as core:
            await added_then_removed_elsewhere(core)
            while (await core.memory.journal.status())[0].lanes.waiting_entries > 1:
                await core.clock.sleep(0.01)
            held = False
            await core.settled()
        kept = fake.conclusions if isinstance(fake, FakeHoncho) else map(dict.values, fake.spaces.values())
        assert not [one for one in kept if "hives" in str(one)]
