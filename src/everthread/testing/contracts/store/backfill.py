"""Backfill of sessions that began before the provider was registered."""

from __future__ import annotations

from msgspec.structs import replace

from everthread.domain.boundary import New
from everthread.domain.model import NoteAction, NoteTarget, SessionKind
from everthread.lifecycle import ForgetSession, NoteChange
from everthread.store.cursors import BackfillCandidate, Cursor, Redelivery
from everthread.store.unit_of_work import UnitOfWork
from everthread.testing.contracts.store.fixtures import (
    KEY,
    OTHER_KEY,
    StoreConversation,
    StoreFixture,
    key_named,
    on_store,
    present,
    session_id_of,
)


class BackfillContract(StoreFixture):
    @on_store
    async def test_sessions_from_before_a_provider_are_backfill_candidates_with_their_size(
        self, talk: StoreConversation
    ) -> None:
        session = (await talk.say("bees", KEY, answer="hives")).session_id
        await talk.say("honey", KEY)
        await talk.write(lambda uow: uow.cursors.register("p"))
        assert await _to_copy(talk) == (
            BackfillCandidate(
                session, entries=len(await talk.entries(session)), turns=2, characters=14, is_at_rest=True
            ),
        )
        assert await talk.read(lambda uow: uow.cursors.backfill_candidates("unknown", "", 99)) == ()

    @on_store
    async def test_sessions_delivered_from_the_beginning_are_no_backfill_candidates(
        self, talk: StoreConversation
    ) -> None:
        begun = (await talk.say("before", KEY)).session_id
        await talk.write(lambda uow: uow.cursors.register("p"))
        heard = (await talk.say("after", OTHER_KEY)).session_id
        # The provider receives only the rest of this session, so it must be copied.
        await talk.say("more", KEY)
        # Before discovery, the first entry that the provider will receive is unknown.
        assert {one.session_id for one in await _to_copy(talk)} == {begun, heard}
        await talk.discover_all()
        assert [one.session_id for one in await _to_copy(talk)] == [begun]
        assert not await _copy(talk, heard)

    @on_store
    async def test_backfill_candidates_are_paged_by_id(self, talk: StoreConversation) -> None:
        sessions = sorted([await talk.new(key_named(str(n))) for n in range(5)])
        await talk.write(lambda uow: uow.cursors.register("p"))
        found, after = list[str](), ""
        while some := await talk.read(lambda uow, after=after: uow.cursors.backfill_candidates("p", after, 2)):
            assert len(some) <= 2
            found += [one.session_id for one in some]
            after = found[-1]
        assert found == sessions

    @on_store
    async def test_backfill_skips_scheduled_and_delegated_work_but_not_notes(self, talk: StoreConversation) -> None:
        crossings = [
            await talk.lifecycle.cross(key_named(str(n)), New(kind=kind), owner="ann")
            for n, kind in enumerate((SessionKind.CRON, SessionKind.SUBAGENT))
        ]
        note = await talk.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "tea"), owner="ann")
        await talk.write(lambda uow: uow.cursors.register("p"))
        assert [one.session_id for one in await _to_copy(talk)] == [note.session_id]
        for crossing in crossings:
            assert not await _copy(talk, session_id_of(crossing.ref))
        assert not await _copy(talk, "nobody")

    @on_store
    async def test_a_backfill_covers_the_log_as_it_was_at_its_start(self, talk: StoreConversation) -> None:
        session = (await talk.say("one", KEY)).session_id
        length = len(await talk.entries(session))
        await talk.write(lambda uow: uow.cursors.register("p"))
        assert await _copy(talk, session, now=7.0)
        assert await _cursor(talk, session) == Cursor("p", session, 0, due_at=7.0, copy_to=length)
        assert await talk.read(lambda uow: uow.cursors.due_sessions("p", 7.0, 9)) == (session,)
        # Later entries are not part of the copy and follow it.
        await talk.say("two", KEY)
        await talk.discover_all()
        cursor = await _cursor(talk, session)
        assert (cursor.seq, cursor.due_at, cursor.copy_to) == (0, 7.0, length)
        # A session is copied once.
        assert await _to_copy(talk) == ()
        assert not await _copy(talk, session)
        assert await _cursor(talk, session) == cursor

    @on_store
    async def test_a_backfill_of_a_partly_delivered_session_has_a_new_replay_number(
        self, talk: StoreConversation
    ) -> None:
        session = (await talk.say("before", KEY)).session_id
        await talk.write(lambda uow: uow.cursors.register("p"))
        await talk.say("after", KEY)
        await talk.discover_all()
        await _move_cursor(talk, session)
        assert await talk.write(lambda uow: uow.cursors.new_replay("p", session)) == 1
        assert await _copy(talk, session)
        cursor = await _cursor(talk, session)
        # Under a known replay number, the provider would discard the first entries as duplicates.
        assert (cursor.seq, cursor.replay, cursor.attempts, cursor.error) == (0, 2, 0, None)
        assert cursor.copy_to == len(await talk.entries(session))
        assert await talk.write(lambda uow: uow.cursors.new_replay("p", session)) == 3
        await _move_cursor(talk, session)
        assert await _to_copy(talk) == ()
        assert not await _copy(talk, session)

    @on_store
    async def test_a_session_with_waiting_entries_is_not_backfilled(self, talk: StoreConversation) -> None:
        session = (await talk.say("before", KEY)).session_id
        await talk.write(lambda uow: uow.cursors.register("p"))
        await talk.say("after", KEY)
        for waits in ("unseen", "seen"):
            assert [one.is_at_rest for one in await _to_copy(talk)] == [False], waits
            assert not await _copy(talk, session), waits
            await talk.discover_all()
        await _move_cursor(talk, session)
        assert [one.is_at_rest for one in await _to_copy(talk)] == [True]
        assert await _copy(talk, session)

    @on_store
    async def test_a_session_whose_lane_is_due_without_a_waiting_entry_is_backfilled(
        self, talk: StoreConversation
    ) -> None:
        session = (await talk.say("before", KEY)).session_id
        await talk.write(lambda uow: uow.cursors.register("p"))
        await talk.say("imported", KEY)
        await talk.write(lambda uow: uow.archive.mark_delivered(session))
        assert [one.is_at_rest for one in await _to_copy(talk)] == [True], "not yet discovered"
        await talk.discover_all()
        cursor = await _cursor(talk, session)
        assert (cursor.seq, cursor.due_at is None) == (len(await talk.entries(session)), False)
        assert [one.is_at_rest for one in await _to_copy(talk)] == [True], "discovered, and due"
        assert await _copy(talk, session)
        assert (await _cursor(talk, session)).seq == 0

    @on_store
    async def test_a_backfill_replaces_parked_entries_but_not_a_parked_forget(self, talk: StoreConversation) -> None:
        session = (await talk.say("before", KEY)).session_id
        await talk.write(lambda uow: uow.cursors.register("p"))
        await talk.lifecycle.forget(ForgetSession(session), owner="ann")
        await talk.say("after", KEY)
        await talk.discover_all()
        await _move_cursor(talk, session)
        entries = await talk.entries(session)
        forget = next(entry.seq for entry in entries if entry.kind.value == "forget")
        other = next(entry.seq for entry in entries if entry.seq != forget)
        for seq in (forget, other):
            row = Redelivery("p", session, seq, 0, "rejected")
            await talk.write(lambda uow, row=row: uow.cursors.add_redelivery(row))
        elsewhere = Redelivery("q", session, other, 0, "rejected")
        await talk.write(lambda uow: uow.cursors.add_redelivery(elsewhere))
        assert await _copy(talk, session)
        left = await talk.read(lambda uow: uow.cursors.redeliveries("p"))
        assert [row.seq for row in left] == [forget]
        assert await talk.read(lambda uow: uow.cursors.redeliveries("q")) == (elsewhere,)

    @on_store
    async def test_a_forgotten_session_is_backfilled_only_from_after_the_forget(self, talk: StoreConversation) -> None:
        session = (await talk.say("before", KEY)).session_id
        await talk.lifecycle.forget(ForgetSession(session), owner="ann")
        await talk.write(lambda uow: uow.cursors.register("p"))
        stored = await talk.session(session)
        [one] = [one for one in await _to_copy(talk) if one.session_id == session]
        assert one.entries == stored.log_seq - present(stored.forgotten_seq)

    @on_store
    async def test_backfill_progress_counts_only_backfilled_entries(self, talk: StoreConversation) -> None:
        a, b = [(await talk.say("before", key)).session_id for key in (KEY, OTHER_KEY)]
        await talk.write(lambda uow: uow.cursors.register("p"))
        await talk.write(lambda uow: uow.cursors.register("q"))
        # A lane that is no copy, and another provider's lane.
        await talk.say("new", key_named("third"))
        await talk.discover_all()
        assert await talk.read(lambda uow: uow.cursors.copying("p")) == (0, 0)
        for session in (a, b):
            assert await _copy(talk, session)
        lengths = [len(await talk.entries(session)) for session in (a, b)]
        assert await talk.read(lambda uow: uow.cursors.copying("p")) == (2, sum(lengths))
        assert await talk.read(lambda uow: uow.cursors.copying("q")) == (0, 0)
        await _move_cursor(talk, a, seq=1, due_at=11.0)
        assert await talk.read(lambda uow: uow.cursors.copying("p")) == (2, sum(lengths) - 1)
        await _move_cursor(talk, a)
        assert await talk.read(lambda uow: uow.cursors.copying("p")) == (1, lengths[1])
        # Entries after the start of the copy do not count.
        await talk.say("later", OTHER_KEY)
        await talk.discover_all()
        assert await talk.read(lambda uow: uow.cursors.copying("p")) == (1, lengths[1])

    @on_store
    async def test_a_replay_includes_the_backfill(self, talk: StoreConversation) -> None:
        session = (await talk.say("before", KEY)).session_id
        await talk.write(lambda uow: uow.cursors.register("p"))
        assert await _copy(talk, session)
        assert await talk.write(lambda uow: uow.cursors.restart("p", session, 8.0)) == 1
        assert await talk.read(lambda uow: uow.cursors.copying("p")) == (0, 0)
        assert await _to_copy(talk) == ()

    @on_store
    async def test_restarting_an_owner_begins_at_the_first_delivered_entry(self, talk: StoreConversation) -> None:
        begun = (await talk.say("before", KEY)).session_id
        heard_from = len(await talk.entries(begun))
        await talk.write(lambda uow: uow.cursors.register("p"))
        await talk.say("after", KEY)
        gone = (await talk.say("gone", OTHER_KEY)).session_id
        await talk.discover_all()
        for session in (begun, gone):
            await _move_cursor(talk, session)
        await talk.lifecycle.forget(ForgetSession(gone), owner="ann")
        await talk.discover_all()
        await _move_cursor(talk, gone)
        await talk.write(lambda uow: uow.cursors.add_redelivery(Redelivery("p", begun, heard_from + 1, 0, "no")))
        kept = await _cursor(talk, gone)
        assert await talk.write(lambda uow: uow.cursors.restart_owner("p", "somebody else", 9.0)) == 0
        assert await talk.write(lambda uow: uow.cursors.restart_owner("p", "ann", 9.0)) == 1
        cursor = await _cursor(talk, begun)
        assert (cursor.seq, cursor.replay, cursor.due_at, cursor.copy_to) == (heard_from, 1, 9.0, 0)
        assert await talk.read(lambda uow: uow.cursors.redeliveries("p")) == ()
        assert await _cursor(talk, gone) == kept


async def _to_copy(talk: StoreConversation) -> tuple[BackfillCandidate, ...]:
    return await talk.read(lambda uow: uow.cursors.backfill_candidates("p", "", 99))


async def _copy(talk: StoreConversation, session_id: str, now: float = 10.0) -> bool:
    return await talk.write(lambda uow: uow.cursors.copy("p", session_id, now))


async def _cursor(talk: StoreConversation, session_id: str) -> Cursor:
    return present(await talk.read(lambda uow: uow.cursors.get("p", session_id)))


async def _move_cursor(
    talk: StoreConversation, session_id: str, seq: int | None = None, due_at: float | None = None
) -> None:
    """Move the provider's cursor to `seq`, or to the end of the log."""

    def move(uow: UnitOfWork) -> None:
        cursor, session = present(uow.cursors.get("p", session_id)), present(uow.sessions.get(session_id))
        uow.cursors.save(replace(cursor, seq=session.log_seq if seq is None else seq, due_at=due_at))

    await talk.write(move)
