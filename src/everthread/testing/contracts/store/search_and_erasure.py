"""Search, recall, forgetting and notes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from msgspec import structs
from msgspec.structs import replace

from everthread.domain.errors import Erased, NotFound, StoreError
from everthread.domain.events import Event, ForgetScope, Forgotten
from everthread.domain.model import (
    Message,
    NoteAction,
    NoteTarget,
    Role,
    SessionKind,
    TurnStatus,
)
from everthread.lifecycle import ForgetFact, ForgetOwner, ForgetSession, NoteChange
from everthread.store.derived_text import WRITTEN
from everthread.store.search_index import Hit
from everthread.store.unit_of_work import UnitOfWork
from everthread.testing import in_loop
from everthread.testing.contracts.store.fixtures import (
    KEY,
    OTHER_KEY,
    OpenStore,
    StoreConversation,
    StoreFixture,
    event_at,
    on_store,
    plain_session,
    present,
    session_id_of,
)


class SearchAndErasureContract(StoreFixture):
    # Search ----------------------------------------------------------------------------------------------------------

    @on_store
    async def test_search_finds_all_words_newest_first(self, talk: StoreConversation) -> None:
        texts = ["the green boat", "a boat, green as grass", "the red boat", "Grüne Boote"]
        for text in texts:
            await talk.say(text, KEY)
        assert await talk.search("boat") == [texts[2], texts[1], texts[0]]
        assert await talk.search("GREEN boat") == [texts[1], texts[0]]
        assert await talk.search('"green boat"') == [texts[0]]
        assert await talk.search("grune") == [texts[3]]
        assert await talk.search("boo*") == [texts[3]]
        assert await talk.search("boat", limit=1) == [texts[2]]
        assert await talk.search("yacht") == []
        hit = (await talk.hits("red", limit=1))[0]
        session = session_id_of(await talk.lifecycle.current(KEY))
        assert hit == Hit(session, 3, 0, "user", "the red boat", talk.clock.time)

    @in_loop
    async def test_a_search_finds_every_message_once_whenever_it_was_indexed(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = StoreConversation(store)
            for n in range(40):
                await talk.say(f"zanzibar {n}", KEY)
                # Skip some searches, so that more than one message waits for indexing.
                if n % 7 == 0 or n > 30:
                    assert len(await talk.search("zanzibar", limit=99)) == n + 1
            await self.crash(store)
        async with aclosing(await open_store()) as after:
            talk = StoreConversation(after)
            assert await talk.search("zanzibar", limit=99) == [f"zanzibar {n}" for n in reversed(range(40))]

    @on_store
    async def test_search_finds_parts_of_unspaced_text(self, talk: StoreConversation) -> None:
        for text in ("私は東京都に住んでいます", "京都へ行く", "서울에서 만나요"):
            await talk.say(text, KEY)
        assert await talk.search("東京都") == ["私は東京都に住んでいます"]
        assert await talk.search("京都") == ["京都へ行く", "私は東京都に住んでいます"]
        assert await talk.search("京") == ["京都へ行く", "私は東京都に住んでいます"]
        assert await talk.search("서울") == ["서울에서 만나요"]
        assert await talk.search("大阪") == []

    @on_store
    async def test_search_never_crosses_from_one_owner_to_another(self, talk: StoreConversation) -> None:
        await talk.say("ann's secret", KEY, "ann")
        await talk.say("bob's secret", OTHER_KEY, "bob")
        for ranked in (False, True):
            assert await talk.search("secret", "ann", ranked=ranked) == ["ann's secret"]
            assert await talk.search("secret", "bob", ranked=ranked) == ["bob's secret"]
            for nosy in ("an", "ann ", "ANN", "%", "", "ann OR bob"):
                assert await talk.search("secret", nosy, ranked=ranked) == []
        assert await talk.search('secret" OR scope : "', "ann") == []
        # The limit must count only the owner's own matches.
        for n in range(20):
            await talk.say(f"bob's secret {n}", OTHER_KEY, "bob")
        for ranked in (False, True):
            assert await talk.search("secret", "ann", limit=1, ranked=ranked) == ["ann's secret"]

    @on_store
    async def test_a_ranked_search_puts_the_best_first(self, talk: StoreConversation) -> None:
        await talk.say("tea tea tea", KEY)
        for n in range(5):
            await talk.say(f"we spoke of many things, of ships and wax and also of tea, on day {n}", KEY)
        assert (await talk.search("tea", ranked=True))[0] == "tea tea tea"
        assert await talk.search("tea", ranked=True, limit=1) == ["tea tea tea"]
        assert (await talk.search("tea"))[-1] == "tea tea tea"

    @on_store
    async def test_any_query_returns_a_result(self, talk: StoreConversation) -> None:
        await talk.say('so "it" goes AND NOT (well) near*', KEY)
        for query in ("", " ", '"', "*", "AND", "NOT", "NEAR(", "a:b", "^x", "-", "\x00", "(" * 99, "x " * 999):
            await talk.search(query)
        assert len(await talk.search("AND NOT")) == 1

    @on_store
    async def test_an_undone_turn_is_not_found(self, talk: StoreConversation) -> None:
        for n in range(12):
            await talk.say(f"boat {n}", KEY)
        await talk.rewind(KEY, 10)
        for ranked in (False, True):
            assert sorted(await talk.search("boat", limit=2, ranked=ranked)) == ["boat 0", "boat 1"]
        assert sorted(await talk.recall("boat", limit=2)) == ["boat 0", "boat 1"]

    @on_store
    async def test_a_rewind_in_a_continuation_hides_turns_from_search_and_one_in_a_branch_does_not(
        self, talk: StoreConversation
    ) -> None:
        for text in ("the old boat", "the red boat"):
            await talk.say(text, KEY)
        await talk.compress(KEY, "of boats", 1)
        await talk.rewind(KEY)
        assert await talk.search("boat") == ["the old boat"]
        await talk.say("the blue boat", KEY)
        await talk.branch(KEY)
        await talk.rewind(KEY)
        assert await talk.search("boat") == ["the blue boat", "the old boat"]
        assert sorted(await talk.recall("boat")) == ["the blue boat", "the old boat"]

    @on_store
    async def test_a_rewound_turn_number_of_a_continuation_does_not_hide_the_parents_turn(
        self, talk: StoreConversation
    ) -> None:
        parent = await talk.session((await talk.say("the old boat", KEY)).session_id)
        await talk.compress(KEY, "of boats", 1)
        await talk.say("the red boat", KEY)
        await talk.rewind(KEY)
        late = [Message(Role.USER, "the late boat")]
        await talk.write(lambda uow: uow.turns.add(parent, 2, "t2", TurnStatus.LATE, late, 1.0))
        assert await talk.search("boat") == ["the late boat", "the old boat"]

    # Recall ----------------------------------------------------------------------------------------------------------

    @on_store
    async def test_a_question_finds_turns_with_other_words(self, talk: StoreConversation) -> None:
        for text in ("My dog is called Bruno", "The weather is nice", "Ich wohne in Köln", "我的狗叫旺财"):
            await talk.say(text, KEY)
        assert await talk.recall("what was the name of my dog again?") == ["My dog is called Bruno"]
        assert await talk.recall("What's the WEATHER?") == ["The weather is nice"]
        assert await talk.recall("Wo in Koln habe ich gewohnt?") == ["Ich wohne in Köln"]
        assert await talk.recall("你记得我的狗叫什么名字吗") == ["我的狗叫旺财"]
        assert await talk.recall("my cats") == []
        hit = (await talk.read(lambda uow: uow.search.recall("ann", "which dog?", limit=1)))[0]
        session = session_id_of(await talk.lifecycle.current(KEY))
        assert (hit.session_id, hit.number, hit.index, hit.role, hit.at) == (session, 1, 0, "user", talk.clock.time)
        assert 0 < hit.score <= 1

    @on_store
    async def test_recall_ranks_by_number_and_rarity_of_words_and_lists_a_turn_once(
        self, talk: StoreConversation
    ) -> None:
        await talk.say("the harbour has a lighthouse", KEY, answer="a lighthouse, in the harbour?")
        await talk.say("a lighthouse", KEY)
        for n in range(8):
            await talk.say(f"we went to the harbour on day {n}", KEY)
        found = await talk.recall("is there a lighthouse in the harbour?", limit=3)
        assert "harbour" in found[0]
        assert "lighthouse" in found[0]
        assert found[1] == "a lighthouse"
        assert found[2] == "we went to the harbour on day 7"
        await talk.say("harbour " + "and more of it " * 200, KEY)
        assert not (await talk.recall("harbour", limit=1))[0].endswith("more of it ")

    @on_store
    async def test_two_frequent_words_are_found_together(self, talk: StoreConversation) -> None:
        await talk.say("the red boat", KEY)

        def fill(uow: UnitOfWork) -> None:
            session = present(uow.sessions.get(session_id_of(uow.sessions.ref(KEY))))
            for n in range(1100):
                messages = [Message(Role.USER, "red" if n % 2 else "boat")]
                uow.turns.add(session, n + 2, f"t{n}", TurnStatus.DONE, messages, 1.0)

        await talk.write(fill)
        assert await talk.recall("red boat", limit=1) == ["the red boat"]

    @on_store
    async def test_recall_excludes_visible_and_rewound_turns_of_the_session(self, talk: StoreConversation) -> None:
        await talk.say("an early boat", KEY)
        await talk.say("a later boat", KEY)
        tip = await talk.compress(KEY, "of boats", 1)
        for n in range(3):
            await talk.say(f"boat {n}", KEY)
        await talk.say("another boat", OTHER_KEY)
        assert sorted(await talk.recall("boat", beside=tip)) == ["an early boat", "another boat"]
        assert await talk.recall("boat", limit=1, beside=tip) != []
        branch = await talk.branch(KEY)
        await talk.rewind(KEY)
        assert sorted(await talk.recall("boat", beside=branch)) == ["an early boat", "another boat"]
        await talk.say("boat of the branch", KEY)
        assert "boat of the branch" in await talk.recall("boat", beside=tip)

    @on_store
    async def test_recall_covers_user_and_assistant_messages_of_chats(self, talk: StoreConversation) -> None:
        ref = await talk.say("the boat of the chat", KEY)

        def add(uow: UnitOfWork) -> None:
            chat = present(uow.sessions.get(ref.session_id))
            for kind in (SessionKind.CRON, SessionKind.SUBAGENT):
                session = structs.replace(plain_session(f"a {kind}"), kind=kind)
                uow.sessions.add(session)
                uow.turns.add(session, 1, f"t {kind}", TurnStatus.DONE, [Message(Role.USER, "boat")], 1.0)
            for number, status in enumerate((TurnStatus.HIDDEN, TurnStatus.SET_ASIDE), 2):
                uow.turns.add(chat, number, f"t{number}", status, [Message(Role.USER, "boat")], 1.0)
            tool = [Message(Role.SYSTEM, "boat"), Message(Role.TOOL, "boat", tool_call_id="1")]
            uow.turns.add(chat, 4, "t4", TurnStatus.DONE, tool, 1.0)

        await talk.write(add)
        assert await talk.recall("boat") == ["the boat of the chat"]

    @on_store
    async def test_recall_never_crosses_from_one_owner_to_another(self, talk: StoreConversation) -> None:
        mine = (await talk.say("ann's secret", KEY, "ann")).session_id
        for n in range(20):
            await talk.say(f"bob's secret {n}", OTHER_KEY, "bob")
        assert await talk.recall("secret", "ann") == ["ann's secret"]
        assert len(await talk.recall("secret", "bob", limit=99, beside=mine)) == 20
        for nosy in ("an", "ann ", "ANN", "%", "", "ann OR bob"):
            assert await talk.recall("secret", nosy) == []
        await talk.lifecycle.forget(ForgetSession(mine), owner="ann")
        assert await talk.recall("secret", "ann") == []

    @on_store
    async def test_any_question_returns_a_result(self, talk: StoreConversation) -> None:
        await talk.say('so "it" goes AND NOT (well) near*', KEY)
        for question in ("", " ", '"', "*", "NOT", "NEAR(", "a:b", "^x", "\x00", "\ud800", "(" * 99, "xyz " * 999):
            await talk.recall(question)
        assert len(await talk.recall('NEAR("well", 3)')) == 1

    @on_store
    async def test_a_part_of_a_view_can_be_read(self, talk: StoreConversation) -> None:
        for n in range(1, 5):
            await talk.say(f"boat {n}", KEY)
        branch = await talk.branch(KEY)
        await talk.say("boat 5", KEY)

        def some(uow: UnitOfWork, after: int, up_to: int) -> list[str]:
            session = present(uow.sessions.get(branch))
            return [turn.user_text for turn in uow.turns.view(session, after=after, up_to=up_to).turns]

        assert await talk.read(lambda uow: some(uow, 2, 5)) == ["boat 3", "boat 4", "boat 5"]
        assert await talk.read(lambda uow: some(uow, 4, 4)) == []
        assert await talk.read(lambda uow: some(uow, 4, 9)) == ["boat 5"]

    # Forgetting ------------------------------------------------------------------------------------------------------

    @on_store
    async def test_a_forgotten_session_is_not_found_and_does_not_come_back(self, talk: StoreConversation) -> None:
        session = await talk.new(KEY, title="Zanzibar")
        ref = await talk.say("zanzibar please", KEY, answer="zanzibar it is")
        await talk.lifecycle.put_prefix(ref, b"zanzibar", 0)
        note = await talk.lifecycle.write_note(
            NoteChange(NoteAction.ADD, NoteTarget.MEMORY, "zanzibar in May"), owner="ann", ref=ref
        )
        child = await talk.compress(KEY, "all about zanzibar", 1)
        await talk.say("and zanzibar again", KEY)
        await talk.say("zanzibar too", OTHER_KEY)
        assert await talk.lifecycle.forget(ForgetSession(session), owner="ann") == 1
        assert await talk.search("zanzibar") == ["zanzibar too", "and zanzibar again"]
        assert await talk.search("forgotten") == []
        assert "zanzibar" not in str(await talk.view(session))
        assert await talk.texts(child) == ["[[forgotten]]", "and zanzibar again"]

        def look(uow: UnitOfWork) -> None:
            assert uow.turns.prefix(session) is None
            assert uow.notes.current("ann", NoteTarget.MEMORY) == ()
            assert "zanzibar" not in str(uow.notes.versions(note.note_id))
            assert uow.erasure.has_tombstone("session", session)
            assert not uow.erasure.has_tombstone("session", child)
            assert "Zanzibar" not in [s.title for s in uow.sessions.titled("ann", "Zanzibar")]
            forgotten_seq = present(present(uow.sessions.get(session)).forgotten_seq)
            assert isinstance(event_at(uow, session, forgotten_seq), Forgotten)

        await talk.read(look)
        with pytest.raises(Erased):
            await talk.resume(KEY, session)

    @on_store
    async def test_forgetting_a_person_erases_their_rows_only(self, talk: StoreConversation) -> None:
        await talk.say("zanzibar", KEY)
        await talk.say("zanzibar", OTHER_KEY, "bob")
        await talk.accept("zanzibar waits", KEY)
        for owner in ("ann", "bob"):
            await talk.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "zanzibar"), owner=owner)
        assert await talk.lifecycle.forget(ForgetOwner(), owner="ann") == 1
        assert await talk.search("zanzibar", "ann") == []
        assert await talk.search("zanzibar", "bob") == ["zanzibar"]
        notes = [await talk.read(lambda uow, o=o: uow.notes.current(o, NoteTarget.USER)) for o in ("ann", "bob")]
        assert [len(one) for one in notes] == [0, 1]
        assert await talk.read(lambda uow: uow.inbox.first_waiting(KEY)) is None
        assert await talk.read(lambda uow: uow.erasure.has_tombstone("owner", "ann"))

    @on_store
    async def test_forgetting_a_fact_erases_its_words_everywhere(self, talk: StoreConversation) -> None:
        fact = 'the code is "4711"'
        ref = await talk.say(f"remember: {fact}!", KEY, answer=f"noted, {fact}")
        await talk.say(fact, OTHER_KEY, "bob")
        await talk.lifecycle.put_prefix(ref, f"system: {fact}".encode(), 0)
        note = await talk.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, fact), owner="ann", ref=ref)
        await talk.lifecycle.record_delegation(ref, f"use that {fact}", "done", "child")
        await talk.lifecycle.forget(ForgetFact(note.note_id), owner="ann")
        turn = (await talk.view(ref.session_id)).turns[0]
        assert (turn.user_text, turn.assistant_text) == ("remember: [forgotten]!", "noted, [forgotten]")
        assert await talk.search("4711") == []
        assert await talk.search("4711", "bob") == [fact]
        assert await talk.read(lambda uow: uow.turns.prefix(ref.session_id)) is None
        assert "4711" not in str([entry.detail for entry in await talk.entries(ref.session_id)])
        assert await talk.read(lambda uow: uow.notes.current("ann", NoteTarget.USER)) == ()
        with pytest.raises(NotFound):
            await talk.lifecycle.forget(ForgetFact(note.note_id), owner="ann")

    @on_store
    async def test_the_log_keeps_a_forgotten_fact_until_all_providers_received_the_forget(
        self, talk: StoreConversation
    ) -> None:
        await talk.write_each(("one", "two"), lambda uow, p: uow.cursors.register(p))
        note = await talk.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "4711"), owner="ann")
        await talk.lifecycle.forget(ForgetFact(note.note_id), owner="ann")
        entry = (await talk.entries(note.session_id))[-1]
        assert await talk.read(lambda uow: uow.log.event(entry, ())) == Forgotten(
            entry.ref, ForgetScope.FACT, "4711", note.note_id
        )

        async def deliver(provider: str) -> Event:
            def read_event(uow: UnitOfWork) -> Event:
                uow.cursors.discover(provider, 5.0, 100)
                cursor = present(uow.cursors.get(provider, note.session_id))
                uow.cursors.save(replace(cursor, seq=entry.seq))
                uow.erasure.remove_delivered_request_text(note.session_id, entry.seq)
                return event_at(uow, note.session_id, entry.seq)

            return await talk.write(read_event)

        assert await deliver("one") == Forgotten(entry.ref, ForgetScope.FACT, "4711", note.note_id)
        assert await deliver("two") == Forgotten(entry.ref, ForgetScope.FACT, "", note.note_id)

    @on_store
    async def test_a_fact_that_no_provider_needs_leaves_the_log_at_once(self, talk: StoreConversation) -> None:
        note = await talk.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "4711"), owner="ann")
        await talk.lifecycle.forget(ForgetFact(note.note_id), owner="ann")
        assert "4711" not in str(await talk.entries(note.session_id))

    @in_loop
    async def test_a_tombstone_stays(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            await store.write(lambda uow: uow.erasure.add_tombstone("fact", "x", "ann", 1.0))
            await store.write(lambda uow: uow.erasure.add_tombstone("fact", "x", "ann", 2.0))
            await self.crash(store)
        async with aclosing(await open_store()) as after:
            found = await after.read(
                lambda uow: [uow.erasure.has_tombstone(*what) for what in (("fact", "x"), ("note", "x"), ("fact", "y"))]
            )
            assert found == [True, False, False]

    @on_store
    async def test_purging_ends(self, talk: StoreConversation) -> None:
        for n in range(30):
            await talk.say(f"word{n} zanzibar", KEY)
        async with asyncio.timeout(10):
            more = await talk.write(lambda uow: uow.search.purge(begin=True))
            while more:
                more = await talk.write(lambda uow: uow.search.purge(begin=False))
        assert len(await talk.search("zanzibar", limit=99)) == 30

    # Notes -----------------------------------------------------------------------------------------------------------

    @on_store
    async def test_a_note_keeps_all_its_versions_and_shows_the_last(self, talk: StoreConversation) -> None:
        async def change(action: NoteAction, content: str = "", note_id: str = "", owner: str = "ann") -> str:
            wanted = NoteChange(action, NoteTarget.USER, content, note_id)
            talk.clock.time += 1
            return (await talk.lifecycle.write_note(wanted, owner=owner)).note_id

        tea = await change(NoteAction.ADD, "likes tea")
        cake = await change(NoteAction.ADD, "likes cake")
        await change(NoteAction.ADD, "bob's own", owner="bob")
        await change(NoteAction.REPLACE, "likes green tea", tea)

        async def current(target: NoteTarget = NoteTarget.USER) -> list[str]:
            return [n.content for n in await talk.read(lambda uow: uow.notes.current("ann", target))]

        assert await current() == ["likes green tea", "likes cake"]
        assert await current(NoteTarget.MEMORY) == []
        with pytest.raises(NotFound):
            await change(NoteAction.REPLACE, "mine now", tea, owner="bob")
        await change(NoteAction.REMOVE, note_id=cake)
        assert await current() == ["likes green tea"]
        versions = await talk.read(lambda uow: uow.notes.versions(tea))
        assert [(v.version, v.action, v.content) for v in versions] == [
            (1, NoteAction.ADD, "likes tea"),
            (2, NoteAction.REPLACE, "likes green tea"),
        ]
        assert await talk.read(lambda uow: uow.notes.get(tea)) == versions[-1]
        with pytest.raises(StoreError):
            await talk.write(lambda uow: uow.derived.put_note(versions[0], WRITTEN))
        history = await talk.read(lambda uow: uow.notes.history("ann", 10))
        assert [(v.note_id, v.version) for v in history] == [(cake, 2), (tea, 2), (cake, 1), (tea, 1)]
        assert await talk.read(lambda uow: uow.notes.history("ann", 1)) == history[:1]
        assert await talk.read(lambda uow: uow.notes.history("nobody", 9)) == ()

    @on_store
    async def test_the_digest_of_a_note_file_is_stored_per_owner_and_target(self, talk: StoreConversation) -> None:
        await talk.write_each(("abc", "def"), lambda uow, d: uow.notes.set_file_digest("ann", NoteTarget.USER, d))
        assert await talk.read(lambda uow: uow.notes.file_digest("ann", NoteTarget.USER)) == "def"
        assert await talk.read(lambda uow: uow.notes.file_digest("ann", NoteTarget.MEMORY)) is None
        assert await talk.read(lambda uow: uow.notes.file_digest("bob", NoteTarget.USER)) is None
