import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import CLI, ME, TELEGRAM, AsyncDiary, Call, CoreFixture, Gate, ThreadDiary, opened, until

from everthread.domain.boundary import Branch, New, Resume
from everthread.domain.errors import Erased, Fenced, NotFound, Rejected
from everthread.domain.events import ForgetScope
from everthread.domain.model import (
    Inbound,
    InboxState,
    Message,
    NoteAction,
    NoteTarget,
    ReplyState,
    Role,
    SessionKey,
    Thought,
    ToolCall,
)
from everthread.lifecycle import ForgetFact, ForgetOwner, ForgetSession, NoteChange
from everthread.lifecycle.forget import Forgettable, fact_identity
from everthread.store.compression_pauses import CompressionPause

SECRET = "rumpelstiltskin"


async def forget(core: CoreFixture, what: Forgettable, owner: str = ME) -> int:
    return await core.lifecycle.forget(what, owner=owner)


async def write_note(
    core: CoreFixture, content: str, *, key: SessionKey | None = None, owner: str = ME, note_id: str = ""
) -> str:
    ref = await core.lifecycle.current(key) if key else None
    action = NoteAction.REPLACE if note_id else NoteAction.ADD
    change = NoteChange(action, NoteTarget.MEMORY, content, note_id)
    return (await core.lifecycle.write_note(change, owner=owner, ref=ref)).note_id


async def compress(core: CoreFixture, key: SessionKey, summary: str) -> str:
    return opened(await core.cross(key, await core.compression(key, summary)))


async def tell_everywhere(core: CoreFixture) -> str:
    """Say the secret in every way in which a session can hold it; the session's id."""
    await core.cross(CLI, New(f"about {SECRET}"))
    for update_id in ("u1", None):
        await core.lifecycle.accept(Inbound(CLI, ME, f"I am {SECRET}", update_id=update_id))
        ticket = await core.lifecycle.begin_turn(CLI)
        assert ticket is not None
        await core.lifecycle.start_tool(ticket, "c1", "look", f'{{"for": "{SECRET}"}}')
        await core.lifecycle.finish_tool(ticket, "c1", f"found {SECRET}")
        call = ToolCall("c1", "look", f'{{"for": "{SECRET}"}}')
        messages = [
            Message(Role.USER, f"I am {SECRET}"),
            Message(Role.ASSISTANT, "", (call,), reasoning=f"so it is {SECRET}"),
            Message(Role.TOOL, f"found {SECRET}", tool_call_id="c1", name="look"),
            Message(Role.ASSISTANT, f"hello {SECRET}"),
        ]
        await core.lifecycle.commit_turn(ticket, messages, f"hello {SECRET}")
    ref = await core.at(CLI)
    await core.lifecycle.put_prefix(ref, f"You talk to {SECRET}.".encode(), 0)
    await core.lifecycle.record_delegation(ref, f"find {SECRET}", f"found {SECRET}", "child")
    await write_note(core, f"the name is {SECRET}", key=CLI)
    await compress(core, CLI, f"{SECRET} introduced himself")
    await core.lifecycle.put_prefix(await core.at(CLI), f"You know {SECRET}.".encode(), 0)
    # One turn more that is still running, with a tool at work and a draft on its way.
    await core.cross(CLI, Branch(f"more of {SECRET}"))
    await core.cross(CLI, Resume(ref.session_id))
    return ref.session_id


def stored_words(core: CoreFixture) -> bytes:
    """Everything that is in the files of a closed store."""
    return b"".join(path.read_bytes() for path in core.path.parent.iterdir() if path.name.startswith(core.path.name))


async def test_no_text_of_a_forgotten_session_stays_in_the_database_file(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        session = await tell_everywhere(core)
        for one in await core.store.read(lambda uow: uow.sessions.descendants(session)):
            await forget(core, ForgetSession(one.id))
        await forget(core, ForgetSession(session))
        assert await core.search(ME, SECRET, limit=9) == ()
    assert SECRET.encode() not in stored_words(core)


async def test_descendants_lose_their_summaries_and_prefixes_and_keep_their_own_turns(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        parent = (await core.turn(CLI, f"I am {SECRET}")).ref.session_id
        child = await compress(core, CLI, f"{SECRET} introduced himself")
        await core.lifecycle.put_prefix(await core.at(CLI), f"You know {SECRET}.".encode(), 0)
        await core.turn(CLI, "the weather")
        grandchild = await compress(core, CLI, f"{SECRET} and the weather")
        await forget(core, ForgetSession(parent))
        for session_id in (child, grandchild):
            session = await core.session(session_id)
            view = await core.store.read(lambda uow, session=session: uow.turns.view(session))
            assert view.summary == "[forgotten]"
            assert await core.store.read(lambda uow, session=session: uow.turns.prefix(session.id)) is None
        assert await core.shown(child) == ["the weather"]
        assert (await core.at(CLI)).session_id == grandchild
    assert SECRET.encode() not in stored_words(core)


async def test_a_branch_shows_a_placeholder_for_forgotten_turns(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        parent = (await core.turn(CLI, f"I am {SECRET}")).ref.session_id
        await core.cross(CLI, Branch())
        await core.turn(CLI, "mine")
        await forget(core, ForgetSession(parent))
        assert await core.shown((await core.at(CLI)).session_id) == ["[forgotten]", "mine"]


async def test_keys_of_a_forgotten_session_start_a_new_one_at_the_next_message(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        first = (await core.turn(CLI, "hello")).ref
        await core.cross(TELEGRAM, Resume(first.session_id))
        await forget(core, ForgetSession(first.session_id))
        assert await core.lifecycle.current(CLI) is None
        assert await core.lifecycle.current(TELEGRAM) is None
        again = (await core.turn(CLI, "hello again")).ref
        assert again.session_id != first.session_id
        assert again.epoch > first.epoch
        assert (await core.session(first.session_id)).end_reason == "forgotten"


async def test_a_turn_that_runs_in_a_forgotten_session_is_fenced(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        row, _ = await core.lifecycle.accept(Inbound(CLI, ME, SECRET))
        ticket = await core.lifecycle.begin_turn(CLI)
        assert ticket is not None
        await core.lifecycle.start_tool(ticket, "c1", "look", SECRET)
        await core.lifecycle.draft_reply(ticket, SECRET)
        await forget(core, ForgetSession(ticket.ref.session_id))
        with pytest.raises(Fenced):
            await core.lifecycle.commit_turn(ticket, [Message(Role.USER, SECRET)], SECRET)
        kept = await core.store.read(lambda uow: uow.inbox.get(row.id))
        reply = await core.store.read(lambda uow: uow.outbox.reply(ticket.turn_id))
        assert kept is not None
        assert reply is not None
        assert (kept.state, reply.state) == (InboxState.SET_ASIDE, ReplyState.WITHHELD)
    assert SECRET.encode() not in stored_words(core)


async def test_a_ready_reply_of_a_forgotten_session_is_not_sent(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        ref = (await core.turn(CLI, SECRET)).ref
        assert len(await core.store.read(lambda uow: uow.outbox.replies(ReplyState.READY, 9))) == 1
        await forget(core, ForgetSession(ref.session_id))
        assert await core.store.read(lambda uow: uow.outbox.replies(ReplyState.READY, 9)) == ()


async def test_forget_skips_queued_entries_and_follows_the_delivery_in_flight(tmp_path: Path) -> None:
    slow, quick = ThreadDiary("slow"), AsyncDiary("quick")
    with Gate() as gate:
        slow.before = gate.holds(lambda call: call.text == "one")
        async with CoreFixture(tmp_path, slow, quick) as core:
            ref = (await core.turn(CLI, "one")).ref
            await core.turn(CLI, SECRET)
            await until(gate.reached.is_set)
            await until(lambda: quick.book.told(ref.session_id) == ["switch", "one", SECRET])
            await forget(core, ForgetSession(ref.session_id))
            await until(lambda: quick.book.of("forget"))
            assert not slow.book.of("forget")
            gate.open()
            await core.settled()
    assert slow.book.told(ref.session_id) == ["switch", "one", "forget"]
    assert quick.book.told(ref.session_id) == ["switch", "one", SECRET, "forget"]
    for book in (slow.book, quick.book):
        [call] = book.of("forget")
        assert (call.more["scope"], call.session) == (ForgetScope.SESSION, ref.session_id)


async def test_a_replay_of_a_forgotten_session_delivers_only_the_forget(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        ref = (await core.turn(CLI, SECRET)).ref
        await core.settled()
        await forget(core, ForgetSession(ref.session_id))
        await core.settled()
        diary.book.calls.clear()
        await core.memory.journal.replay("diary")
        await core.settled()
    assert diary.book.told(ref.session_id) == ["forget"]
    assert diary.book.of("forget")[0].more["scope"] is ForgetScope.SESSION


async def test_a_retry_of_parked_entries_delivers_nothing_of_a_forgotten_session(tmp_path: Path) -> None:
    diary = AsyncDiary()

    async def refuse(call: Call) -> None:
        if call.hook in ("sync_turn", "forget"):
            raise Rejected("diary", "no") if call.hook == "sync_turn" else ConnectionError("down")

    diary.before = refuse
    async with CoreFixture(tmp_path, diary) as core:
        ref = (await core.turn(CLI, SECRET)).ref
        await core.settled()
        await forget(core, ForgetSession(ref.session_id))
        diary.before = None
        await core.memory.journal.retry("diary")
        await core.settled()
    assert diary.book.told(ref.session_id) == ["switch", "forget"]


async def test_a_forgotten_session_can_not_be_opened_again(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        first = (await core.turn(CLI, SECRET)).ref.session_id
        await forget(core, ForgetSession(first))
        with pytest.raises(Erased):
            await core.cross(CLI, Resume(first))
        with pytest.raises(Erased):
            await forget(core, ForgetSession(first))
        assert await core.store.read(lambda uow: uow.erasure.has_tombstone("session", first))


async def test_an_ancestor_is_resumed_itself_when_its_continuation_was_forgotten(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        first = (await core.turn(CLI, "one")).ref.session_id
        await forget(core, ForgetSession(await compress(core, CLI, "so far")))
        crossing = await core.cross(CLI, Resume(first))
        assert crossing.ref is not None
        assert crossing.ref.session_id == first


async def test_an_owner_can_not_forget_another_owners_data(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        theirs = (await core.turn(CLI, SECRET, owner="you")).ref.session_id
        note = await write_note(core, "theirs", owner="you")
        for what in (ForgetSession(theirs), ForgetFact(note)):
            with pytest.raises(NotFound):
                await forget(core, what)
        assert await forget(core, ForgetOwner()) == 0
        assert await core.shown(theirs) == [SECRET]


async def test_notes_of_a_forgotten_session_do_not_come_back_from_an_edited_file(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        first = (await core.turn(CLI, "hello")).ref.session_id
        await write_note(core, f"the name is {SECRET}", key=CLI)
        await assert_stays_away(core, tmp_path, ForgetSession(first))


async def assert_stays_away(core: CoreFixture, folder: Path, what: Forgettable) -> None:
    """Project the notes, forget, and edit the file before it is written again."""

    note_files = core.note_files(lambda owner: folder / owner)
    await note_files.sync(ME)
    file = folder / ME / "MEMORY.md"
    assert SECRET in file.read_text()
    await forget(core, what)
    file.write_text(file.read_text() + "§\nfrom the person\n")
    await note_files.sync(ME)
    assert file.read_text() == "from the person\n"


async def test_no_text_of_a_forgotten_person_stays_in_the_database_file(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await tell_everywhere(core)
        await write_note(core, f"general {SECRET}")
        for number in range(2):
            await core.lifecycle.accept(Inbound(TELEGRAM, ME, f"{SECRET} waits {number}"))
        command, _ = await core.lifecycle.accept(Inbound(TELEGRAM, ME, "/search me", command=True))
        assert await core.lifecycle.answer_command(command, f"found {SECRET}")
        assert await forget(core, ForgetOwner()) == 3
        assert await core.lifecycle.begin_turn(TELEGRAM) is None
        assert await core.search(ME, SECRET, limit=9) == ()
    assert SECRET.encode() not in stored_words(core)


async def test_forgetting_a_person_leaves_other_owners_unchanged(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        theirs = (await core.turn(TELEGRAM, "the weather", owner="you")).ref.session_id
        await write_note(core, "theirs", owner="you")
        await core.turn(CLI, "the weather")
        await forget(core, ForgetOwner())
        assert await core.shown(theirs) == ["the weather"]
        assert len(await core.search("you", "weather", limit=9)) == 2
        assert len(await core.store.read(lambda uow: uow.notes.current("you", NoteTarget.MEMORY))) == 1


async def test_forgetting_a_person_reaches_providers_per_session_and_per_owner(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        sessions = {(await core.turn(key, "hello")).ref.session_id for key in (CLI, TELEGRAM)}
        await write_note(core, "general")
        await core.settled()
        await forget(core, ForgetOwner())
        await core.settled()
    told = {(call.more["scope"], call.session) for call in diary.book.of("forget")}
    assert told == {*((ForgetScope.SESSION, session) for session in sessions), (ForgetScope.OWNER, f"notes:{ME}")}


async def test_a_forgotten_persons_notes_do_not_come_back_from_the_file(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await write_note(core, f"the name is {SECRET}")
        await assert_stays_away(core, tmp_path, ForgetOwner())


async def test_forgetting_a_person_removes_a_fact_that_was_not_delivered_yet(tmp_path: Path) -> None:
    diary = AsyncDiary()

    async def down(call: Call) -> None:
        raise ConnectionError("down")

    async with CoreFixture(tmp_path, diary) as core:
        note = await write_note(core, SECRET)
        await core.settled()
        diary.before = down
        await forget(core, ForgetFact(note))
        await forget(core, ForgetOwner())
        diary.before = None
        await core.settled()
    assert SECRET.encode() not in stored_words(core)


async def test_a_forgotten_person_can_start_again(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, "hello")
        await write_note(core, "old")
        await forget(core, ForgetOwner())
        await core.turn(CLI, "hello again")
        await write_note(core, "new")
        await core.settled()
        current = await core.store.read(lambda uow: uow.notes.current(ME, NoteTarget.MEMORY))
        assert [note.content for note in current] == ["new"]
    assert "new" in diary.book.words()


async def test_a_forgotten_fact_is_removed_everywhere_its_owner_has_the_exact_words(tmp_path: Path) -> None:
    fact = f'the "name" is {SECRET}'
    async with CoreFixture(tmp_path) as core:
        ref = (await core.turn(CLI, f"Listen: {fact}, you know")).ref
        note = await write_note(core, fact)
        await write_note(core, f"{fact}, really", note_id=note)
        await core.lifecycle.put_prefix(ref, f"You know that {fact}.".encode(), 0)
        await core.lifecycle.record_delegation(ref, f"check that {fact}", "it is so", "child")
        call = ToolCall("c1", "save", json.dumps({"text": fact}))
        await core.lifecycle.accept(Inbound(CLI, ME, fact))
        ticket = await core.lifecycle.begin_turn(CLI)
        assert ticket is not None
        await core.lifecycle.commit_turn(
            ticket, [Message(Role.USER, fact), Message(Role.ASSISTANT, "", (call,), reasoning=fact)], fact
        )
        await compress(core, CLI, f"He said that {fact}.")
        await forget(core, ForgetFact(note))
        assert await core.search(ME, SECRET, limit=9) == ()
        assert (await core.shown(ref.session_id))[0] == "Listen: [forgotten], you know"
    assert SECRET.encode() not in stored_words(core)


async def test_a_forgotten_fact_is_removed_from_the_reasoning_of_a_running_turn(tmp_path: Path) -> None:
    fact = f'the "name" is {SECRET}'
    async with CoreFixture(tmp_path) as core:
        note = await write_note(core, fact)
        await core.lifecycle.accept(Inbound(CLI, ME, "hello"))
        ticket = await core.lifecycle.begin_turn(CLI)
        assert ticket is not None
        thought = Thought(json.dumps({"reasoning_content": json.dumps(fact)}), "a/one")
        await core.lifecycle.start_tool(ticket, "c1", "look", "{}", thought)
        assert (await core.store.read(lambda uow: uow.slots.tools(ticket.turn_id)))[0].thought == thought
        await forget(core, ForgetFact(note))
        assert (await core.store.read(lambda uow: uow.slots.tools(ticket.turn_id)))[0].thought is None
    assert SECRET.encode() not in stored_words(core)


@pytest.mark.parametrize("fact", ["turn", "parent", "e", '"', "\\", "{", "1", "true", "close"])
async def test_a_fact_that_equals_stored_keywords_damages_no_record(tmp_path: Path, fact: str) -> None:
    diary = AsyncDiary()

    async def down(call: Call) -> None:
        raise ConnectionError("down")

    diary.before = down
    async with CoreFixture(tmp_path, diary) as core:
        ref = (await core.turn(CLI, "hello there")).ref
        await core.lifecycle.record_delegation(ref, f"look for {fact}", "found", "child")
        await core.cross(CLI, New())
        await forget(core, ForgetFact(await write_note(core, fact)))
        diary.before = None
        await core.settled()
    assert [call.hook for call in diary.book.effects if call.session == ref.session_id] == [
        "on_session_switch",
        "sync_turn",
        "on_delegation",
        "on_session_end",
    ]
    [told] = diary.book.of("on_delegation")
    assert told.text == "look for [forgotten]"


async def test_the_log_drops_the_words_of_a_fact_after_providers_received_it(tmp_path: Path) -> None:
    diary, slow = AsyncDiary(), ThreadDiary()
    with Gate() as gate:
        async with CoreFixture(tmp_path, diary, slow) as core:
            note = await write_note(core, SECRET)
            await core.settled()
            slow.before = gate.holds()
            await forget(core, ForgetFact(note))
            await until(lambda: diary.book.of("forget"))
            await until(gate.reached.is_set)
            gate.open()
            await core.settled()
    for book in (diary.book, slow.book):
        [call] = book.of("forget")
        assert (call.more["scope"], call.more["fact"], call.more["note_id"]) == (ForgetScope.FACT, SECRET, note)
    assert SECRET.encode() not in stored_words(core)


async def test_without_providers_the_log_drops_the_words_of_a_fact_at_once(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await forget(core, ForgetFact(await write_note(core, SECRET)))
    assert SECRET.encode() not in stored_words(core)


async def test_a_queued_note_that_is_forgotten_is_skipped_and_blocks_nothing(tmp_path: Path) -> None:
    diary = AsyncDiary()

    async def down(call: Call) -> None:
        raise ConnectionError("down")

    async with CoreFixture(tmp_path, diary) as core:
        ref = (await core.turn(CLI, "hello")).ref
        await core.settled()
        diary.before = down
        note = await write_note(core, SECRET, key=CLI)
        await forget(core, ForgetFact(note))
        diary.before = None
        await core.settled()
        await core.turn(CLI, "after")
        await core.settled()
    assert diary.book.told(ref.session_id) == ["switch", "hello", "after"]
    assert not diary.book.of("on_memory_write")


async def test_a_parked_note_is_not_delivered_after_it_is_forgotten(tmp_path: Path) -> None:
    diary = AsyncDiary()

    async def refuse(call: Call) -> None:
        raise Rejected("diary", "no")

    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, "hello")
        await core.settled()
        diary.before = refuse
        note = await write_note(core, SECRET, key=CLI)
        await core.settled()
        diary.before = None
        await forget(core, ForgetFact(note))
        await core.memory.journal.retry("diary")
        await core.settled()
    assert not diary.book.of("on_memory_write")


async def test_a_replay_does_not_deliver_a_forgotten_fact(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, f"I say {SECRET}")
        note = await write_note(core, SECRET, key=CLI)
        await core.settled()
        await forget(core, ForgetFact(note))
        await core.settled()
        diary.book.calls.clear()
        await core.memory.journal.replay("diary")
        await core.settled()
    assert SECRET not in diary.book.words()
    assert not diary.book.of("on_memory_write")
    [call] = diary.book.of("forget")
    assert (call.more["scope"], call.more["note_id"]) == (ForgetScope.FACT, note)


async def test_a_fact_is_forgotten_once_and_can_not_be_edited_later(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        note = await write_note(core, SECRET)
        await forget(core, ForgetFact(note))
        with pytest.raises(NotFound):
            await forget(core, ForgetFact(note))
        with pytest.raises(NotFound):
            await write_note(core, "again", note_id=note)


@pytest.mark.parametrize("whole", [ForgetSession, ForgetOwner])
async def test_a_note_removed_with_its_session_or_person_is_no_longer_a_fact(tmp_path: Path, whole: Any) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        session = (await core.turn(CLI, "hello")).ref.session_id
        note_id = await write_note(core, SECRET, key=CLI)
        await forget(core, whole(session) if whole is ForgetSession else whole())
        with pytest.raises(NotFound):
            await forget(core, ForgetFact(note_id))
        await core.settled()
        assert ForgetScope.FACT not in [call.more["scope"] for call in diary.book.of("forget")]


async def test_an_earlier_version_of_a_note_can_be_forgotten(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, f"I am {SECRET}")
        note_id = await write_note(core, SECRET, key=CLI)
        await core.cross(CLI, New())
        session = (await core.turn(CLI, "hello")).ref.session_id
        await write_note(core, "something else", key=CLI, note_id=note_id)
        await forget(core, ForgetSession(session))
        await forget(core, ForgetFact(note_id))
        await core.settled()
        assert [call.more["fact"] for call in diary.book.of("forget") if call.more["note_id"]] == [SECRET]
        found = await core.store.read(lambda uow: uow.search.search(ME, SECRET, limit=5))
        assert found == ()


def test_a_tombstone_matches_a_fact_and_does_not_reveal_it() -> None:
    assert fact_identity(ME, "Likes  Tea\n") == fact_identity(ME, "likes tea")
    assert fact_identity(ME, "likes tea") != fact_identity("you", "likes tea")
    assert "tea" not in fact_identity(ME, "likes tea")


async def test_forgetting_and_other_writes_do_not_block_each_other(tmp_path: Path) -> None:
    hanging = ThreadDiary()
    with Gate() as gate:
        hanging.before = gate.holds()
        async with CoreFixture(tmp_path, hanging) as core:
            first = (await core.turn(CLI, SECRET)).ref.session_id
            await until(gate.reached.is_set)
            async with asyncio.timeout(2):
                await asyncio.gather(forget(core, ForgetSession(first)), core.turn(TELEGRAM, "meanwhile"))
            gate.open()
            await core.settled()
    assert hanging.book.told(first) == ["switch", "forget"]


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_forgetting_a_session_erases_the_errors_of_its_deliveries(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:

        async def refuse(call: Call) -> None:
            if call.hook == "sync_turn":
                raise Rejected("diary", f"I will not keep {call.text!r}")

        diary.before = refuse
        session = (await core.turn(CLI, "the elephant in Odense")).ref.session_id
        await core.reported("memory:diary", "elephant")
        await core.lifecycle.forget(ForgetSession(session), owner="me")
        assert not [text for text in await core.incidents() if "elephant" in text]
        assert b"elephant" not in stored(tmp_path)


async def test_forgetting_a_session_erases_why_it_was_not_compressed(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        session_id = (await core.turn(CLI, "hello")).ref.session_id
        pause = CompressionPause(session_id, "small", 1, 10.0, f"could not summarise {SECRET}")
        await core.store.write(lambda uow: uow.compression_pauses.put(pause))
        assert await core.store.read(lambda uow: uow.compression_pauses.get(session_id)) == pause
        await forget(core, ForgetSession(session_id))
        assert await core.store.read(lambda uow: uow.compression_pauses.get(session_id)) is None


async def test_forgetting_a_fact_changes_titles_and_keeps_the_text_around_it_searchable(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        session = (await core.turn(CLI, "my cat Mog sleeps on the piano")).ref
        await core.lifecycle.rename(session.session_id, "cat Mog", owner="me")
        change = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, "cat Mog")
        note = await core.lifecycle.write_note(change, owner="me", ref=session)
        await core.lifecycle.forget(ForgetFact(note.note_id), owner="me")
        assert (await core.session(session.session_id)).title is None
        hits = await core.search("me", "piano", limit=5)
        assert "my [forgotten] sleeps on the piano" in [hit.content for hit in hits]
        assert await core.search("me", "Mog", limit=5) == ()
