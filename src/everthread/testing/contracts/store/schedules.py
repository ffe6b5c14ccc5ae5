"""Scheduled tasks: unique names, ordering by due time, one row per occurrence."""

from __future__ import annotations

from contextlib import aclosing

from msgspec.structs import replace

from everthread.domain.model import Reply, ReplyState
from everthread.domain.recurrence import MissedPolicy
from everthread.domain.schedule import Occurrence, OccurrenceState, Schedule, ScheduleState, Target, TargetKind
from everthread.lifecycle import ForgetOwner
from everthread.testing import in_loop
from everthread.testing.contracts.store.fixtures import OpenStore, StoreConversation, StoreFixture, key_named, on_store

DAILY = Schedule("s1", "ann", "daily", "@daily", "UTC", 5.0, "Sum up", next_at=100.0)
WHOLE = Schedule(
    "s2",
    "bea",
    "daily",
    "every 2h",
    "Europe/Berlin",
    7.0,
    "Look",
    Target(TargetKind.WEBHOOK, "https://h/x", "SECRET"),
    "stub/one",
    ("a", "b"),
    MissedPolicy.ALL,
    True,
    0.5,
    ScheduleState.PAUSED,
    None,
)
TIME = Occurrence("s1", 100.0, "ann")


class ScheduleContract(StoreFixture):
    @in_loop
    async def test_a_task_is_stored_unchanged_under_a_unique_name(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store, aclosing(await open_store()) as other:
            added = [await store.write(lambda uow, s=s: uow.schedules.add(s)) for s in (WHOLE, DAILY)]
            assert added == [True, True]
            assert not await store.write(lambda uow: uow.schedules.add(replace(DAILY, id="s3")))
            assert await other.read(lambda uow: uow.schedules.get("s2")) == WHOLE
            assert await other.read(lambda uow: uow.schedules.named("ann", "daily")) == DAILY
            assert await other.read(lambda uow: uow.schedules.named("ann", "other")) is None
            assert await other.read(lambda uow: uow.schedules.all()) == (DAILY, WHOLE)
            assert await other.read(lambda uow: uow.schedules.all("bea")) == (WHOLE,)
            await store.write(lambda uow: uow.schedules.add_occurrence(TIME))
            removed = [await store.write(lambda uow: uow.schedules.remove("s1")) for _ in range(2)]
            assert removed == [True, False]
            assert await other.read(lambda uow: uow.schedules.occurrences("s1", 9)) == ()

    @on_store
    async def test_due_tasks_come_in_order_and_paused_ones_never(self, talk: StoreConversation) -> None:
        for number, at in enumerate((300.0, 100.0, 200.0, None)):
            task = replace(DAILY, id=f"s{number}", name=f"n{number}", next_at=at)
            await talk.write(lambda uow, task=task: uow.schedules.add(task))
        assert await talk.read(lambda uow: uow.schedules.next_at()) == 100.0
        assert await talk.read(lambda uow: uow.schedules.due(200.0, 9)) == ("s1", "s2")
        assert await talk.read(lambda uow: uow.schedules.due(999.0, 1)) == ("s1",)
        await talk.write(lambda uow: uow.schedules.save(replace(DAILY, id="s1", next_at=None)))
        assert await talk.read(lambda uow: uow.schedules.due(999.0, 9)) == ("s2", "s0")

    @in_loop
    async def test_an_occurrence_is_stored_once(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store, aclosing(await open_store()) as other:
            assert await store.write(lambda uow: uow.schedules.add_occurrence(TIME))
            assert not await other.write(
                lambda uow: uow.schedules.add_occurrence(replace(TIME, state=OccurrenceState.DONE))
            )
            assert await other.read(lambda uow: uow.schedules.occurrence("s1", 100.0)) == TIME
            running = replace(TIME, state=OccurrenceState.RUNNING, inbox_id=7)
            await other.write(lambda uow: uow.schedules.save_occurrence(running))
            assert await store.read(lambda uow: uow.schedules.is_running("s1"))
            later = replace(TIME, due_at=200.0, state=OccurrenceState.DELIVERING, attempts=2, retry_at=500.0)
            await store.write(lambda uow: uow.schedules.add_occurrence(later))
            assert await store.read(lambda uow: uow.schedules.open_occurrences(499.0, 9)) == (running,)
            assert await store.read(lambda uow: uow.schedules.open_occurrences(500.0, 9)) == (running, later)
            whole = replace(running, state=OccurrenceState.FAILED, session_id="x", ended_at=9.0, problem="no")
            await store.write(lambda uow: uow.schedules.save_occurrence(whole))
            assert await store.read(lambda uow: uow.schedules.occurrences("s1", 9)) == (later, whole)
            assert not await store.read(lambda uow: uow.schedules.is_running("s1"))

    @on_store
    async def test_trimming_removes_old_occurrences_but_not_open_ones(self, talk: StoreConversation) -> None:
        for at in range(6):
            state = OccurrenceState.WAITING if at == 1 else OccurrenceState.DONE
            time = replace(TIME, due_at=float(at), state=state)
            await talk.write(lambda uow, time=time: uow.schedules.add_occurrence(time))
        await talk.write(lambda uow: uow.schedules.trim("s1", 3))
        left = await talk.read(lambda uow: uow.schedules.occurrences("s1", 9))
        assert [time.due_at for time in left] == [5.0, 4.0, 3.0, 1.0]

    @on_store
    async def test_an_attachment_is_stored_until_its_reply_is_sent(self, talk: StoreConversation) -> None:
        reply = Reply("send-1", key_named("1"), "", "ann", "here", ReplyState.READY, 1.0, file="a.bin")
        await talk.write(lambda uow: uow.outbox.attach("send-1", "ann", "a.bin", b"\x00\xff"))
        await talk.write(lambda uow: uow.outbox.put_reply(reply))
        await talk.write(lambda uow: uow.outbox.put_reply(replace(reply, state=ReplyState.SENDING)))
        assert (await talk.read(lambda uow: uow.outbox.reply("send-1"))) == replace(reply, state=ReplyState.SENDING)
        assert await talk.read(lambda uow: uow.outbox.attachment("send-1")) == b"\x00\xff"
        await talk.write(lambda uow: uow.outbox.put_reply(replace(reply, state=ReplyState.SENT)))
        assert await talk.read(lambda uow: uow.outbox.attachment("send-1")) is None

    @on_store
    async def test_forgetting_a_person_removes_their_tasks(self, talk: StoreConversation) -> None:
        await talk.write_each((DAILY, WHOLE), lambda uow, schedule: uow.schedules.add(schedule))
        await talk.write(lambda uow: uow.schedules.add_occurrence(TIME))
        await talk.write(lambda uow: uow.outbox.attach("send-1", "ann", "a", b"x"))
        await talk.lifecycle.forget(ForgetOwner(), owner="ann")
        assert await talk.read(lambda uow: uow.schedules.all()) == (WHOLE,)
        assert await talk.read(lambda uow: uow.schedules.occurrence("s1", 100.0)) is None
        assert await talk.read(lambda uow: uow.outbox.attachment("send-1")) is None
