"""Recall of the built-in memory: matches, ranking, limits and excluded turns."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.runtime import CLI, ME, TELEGRAM, CoreFixture

from everthread.adapters.memory.builtin import NOTE_CHARS_MAX, SIDE_CHARS_MAX, BuiltinMemory
from everthread.adapters.sqlite.store import SqliteStore
from everthread.domain.boundary import Branch, New, Rewind
from everthread.domain.model import (
    Cause,
    Message,
    NoteAction,
    NoteTarget,
    Role,
    Session,
    SessionKind,
    SessionRef,
    TurnStatus,
)
from everthread.lifecycle import ForgetFact, ForgetOwner, ForgetSession, NoteChange
from everthread.ports.memory import RecallItem
from everthread.store.unit_of_work import UnitOfWork
from everthread.testing.contracts.store.fixtures import KEY, OTHER_KEY, StoreConversation, key_named

DAY_S = 86_400.0


class Remembering:
    """Conversations in a store, with the built-in memory."""

    def __init__(self, store: SqliteStore) -> None:
        self.talk = StoreConversation(store)
        self.store = store
        self.memory = BuiltinMemory(store, self.talk.clock)

    async def ask(self, question: str, *, owner: str = "ann", limit: int = 10) -> list[RecallItem]:
        """Ask from a session without turns."""
        return await self.ask_in(SessionRef("elsewhere", 0, key_named("9"), 1, owner), question, limit=limit)

    async def ask_in(self, ref: SessionRef, question: str, *, limit: int = 10) -> list[RecallItem]:
        return list(await self.memory.prefetch(question, ref=ref, limit=limit))

    async def here(self) -> SessionRef:
        ref = await self.talk.lifecycle.current(KEY)
        assert ref is not None
        return ref

    async def note(self, content: str, owner: str = "ann") -> str:
        change = NoteChange(NoteAction.ADD, NoteTarget.USER, content)
        return (await self.talk.lifecycle.write_note(change, owner=owner)).note_id


@asynccontextmanager
async def remembering(folder: Path) -> AsyncIterator[Remembering]:
    store = await SqliteStore.open(folder / "everthread.db")
    try:
        yield Remembering(store)
    finally:
        await store.aclose()


def texts(items: list[RecallItem]) -> list[str]:
    return [item.text for item in items]


def users(items: list[RecallItem]) -> list[str]:
    return [item.text.split("\n")[0].removeprefix("user: ") for item in items]


# --- Matches ---------------------------------------------------------------------------------------------------------

SAID = [
    "My dog is called Bruno",
    "I live in Aarhus, near the harbour",
    "my sister Katrine lives in Copenhagen and works as a nurse",
    "I'm allergic to peanuts",
    "We had dinner at a Thai restaurant called Lotus yesterday",
    "The deploy script is in tools/deploy.sh and needs the VPN",
    "Mein Auto ist ein blauer Volvo",
    "mon anniversaire est le 3 mai",
    "Mi madre se llama Carmen",
    "我的狗叫旺财",
    "私の犬の名前はポチです",
    "내 강아지 이름은 초코예요",
    "How do I sort a list in Python?",
    "thanks, that was helpful",
    "what is the weather like",
    "please write a poem about the name of the rose",
]

QUESTIONS = {
    "what was the name of my dog again?": "My dog is called Bruno",
    "do you remember what my dog is called": "My dog is called Bruno",
    "Which harbour do I live near?": "I live in Aarhus, near the harbour",
    "where does my sister work?": "my sister Katrine lives in Copenhagen and works as a nurse",
    "what am I allergic to?": "I'm allergic to peanuts",
    "can you tell me which thai restaurants we've been to": "We had dinner at a Thai restaurant called Lotus yesterday",
    "how do I deploy?": "The deploy script is in tools/deploy.sh and needs the VPN",
    "Welche Farbe hat mein Auto?": "Mein Auto ist ein blauer Volvo",
    "C'est quand, mon anniversaire ?": "mon anniversaire est le 3 mai",
    "¿Cómo se llama mi madre?": "Mi madre se llama Carmen",
    "你还记得我的狗叫什么名字吗？": "我的狗叫旺财",
    "你能不能告诉我上次说过的那只我很喜欢的狗叫什么名字": "我的狗叫旺财",
    "犬の名前を覚えていますか": "私の犬の名前はポチです",
    "강아지 이름이 뭐였지?": "내 강아지 이름은 초코예요",
}


async def test_natural_questions_find_the_matching_turns(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:
        for n, text in enumerate(SAID):
            await here.talk.say(text, key_named(str(n % 3)), answer="I see.")
        found = {question: users(await here.ask(question, limit=1)) for question in QUESTIONS}
    assert found == {question: [said] for question, said in QUESTIONS.items()}


@pytest.mark.parametrize("question", ["how are you?", "yes, please do that", "", "thanks!!", "zebra"])
async def test_a_message_without_search_terms_recalls_nothing(tmp_path: Path, question: str) -> None:
    async with remembering(tmp_path) as here:
        for text in SAID[:6]:
            await here.talk.say(text, KEY, answer="how are you? please do")
        assert await here.ask(question) == []


async def test_an_item_has_session_time_and_both_sides_of_the_turn(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:
        await here.talk.say("hello", KEY)
        ref = await here.talk.say(
            "who wrote it? " + "x " * 1000, KEY, answer="y " * 1000 + "Karen Blixen did " + "z " * 999
        )
        [item] = await here.ask("what did Blixen write")
    assert (item.session_id, item.turn, item.at) == (ref.session_id, 2, here.talk.clock.time)
    user, assistant = item.text.split("\n")
    assert user.startswith("user: who wrote it? x x")
    assert "Karen Blixen did z" in assistant
    assert len(item.text) <= 2 * SIDE_CHARS_MAX + len("user: \nassistant: ")


async def test_matching_notes_are_recalled(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:
        await here.note("keeps bees, seven hives")
        await here.note("likes tea " + "very much " * 200)
        items = await here.ask("how many hives?")
        assert texts(items) == ["noted: keeps bees, seven hives"]
        assert items[0].turn is None
        assert items[0].at == here.talk.clock.time
        assert len((await here.ask("tea"))[0].text) <= NOTE_CHARS_MAX + len("noted: ")


async def test_a_note_is_recalled_in_the_only_session(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:
        await here.talk.say("hello", KEY)
        ref = await here.here()
        assert await here.ask_in(ref, "How many hives are there?") == []
        await here.note("keeps bees, seven hives")
        assert texts(await here.ask_in(ref, "How many hives are there?")) == ["noted: keeps bees, seven hives"]


async def test_ranking_prefers_more_matching_words_and_then_newer_turns(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:
        for text in ("the boat is red", "the boat is blue", "the small boat is green"):
            await here.talk.say(text, KEY)
            here.talk.clock.time += 30 * DAY_S
        newest_first = ["the small boat is green", "the boat is blue", "the boat is red"]
        assert users(await here.ask("which boat?")) == newest_first
        assert users(await here.ask("which boat is red?"))[0] == "the boat is red"


async def test_matches_far_worse_than_the_best_are_left_out(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:
        await here.talk.say("the key of the garden shed hangs behind the clock", KEY)
        for n in range(40):
            await here.talk.say(f"the clock {n} " + "and more words that say little " * 40, KEY)
        items = await here.ask("garden shed key clock", limit=20)
        assert len(items) == 1


async def test_the_limit_is_kept(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:
        for n in range(8):
            await here.talk.say(f"boat {n}", KEY)
            await here.note(f"boat {n}")
        assert len(await here.ask("boat", limit=3)) == 3


# --- Excluded turns --------------------------------------------------------------------------------------------------


async def test_turns_of_the_same_session_are_not_recalled(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:
        await here.talk.say("an old boat", OTHER_KEY)
        for n in range(50):
            await here.talk.say(f"boat {n}", KEY)
        assert users(await here.ask_in(await here.here(), "boat")) == ["an old boat"]


async def test_a_branch_does_not_recall_inherited_turns(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:
        for n in range(3):
            await here.talk.say(f"boat {n}", KEY)
        parent = await here.here()
        await here.talk.branch(KEY)
        assert await here.ask_in(await here.here(), "boat") == []
        await here.talk.say("boat of the branch", KEY)
        assert users(await here.ask_in(parent, "boat")) == ["boat of the branch"]
        # Another session recalls each turn once, although two sessions contain it.
        assert sorted(users(await here.ask("boat"))) == ["boat 0", "boat 1", "boat 2", "boat of the branch"]


async def test_compressed_turns_are_recalled(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:
        for n in range(3):
            await here.talk.say(f"boat {n}", KEY)
        await here.talk.compress(KEY, "of boats", 2)
        assert sorted(users(await here.ask_in(await here.here(), "boat"))) == ["boat 0", "boat 1"]


async def test_undone_turns_are_not_recalled(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:
        await here.talk.say("the red boat", KEY)
        await here.talk.say("the blue boat", KEY)
        await here.talk.rewind(KEY)
        assert users(await here.ask("boat")) == ["the red boat"]
        assert await here.ask_in(await here.here(), "boat") == []


async def test_turns_of_another_owner_are_not_recalled(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:
        ref = await here.talk.say("the password is larkspur", KEY, "ann")
        await here.note("password: larkspur", "ann")
        await here.talk.say("the password is foxglove", OTHER_KEY, "bob")
        assert users(await here.ask("password", owner="bob")) == ["the password is foxglove"]
        # A ref to a session of another owner neither shows nor hides turns.
        assert users(await here.ask_in(replace(ref, owner="bob"), "password")) == ["the password is foxglove"]
        assert await here.ask("password larkspur foxglove", owner="eve") == []


async def test_scheduled_and_subagent_sessions_are_not_recalled(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:

        def add(uow: UnitOfWork) -> None:
            for kind in (SessionKind.CRON, SessionKind.SUBAGENT):
                session = Session(kind.value, "ann", KEY, kind, Cause.NEW, 1.0)
                uow.sessions.add(session)
                uow.turns.add(session, 1, f"t-{kind}", TurnStatus.DONE, [Message(Role.USER, "boat")], 1.0)

        await here.store.write(add)
        assert await here.ask("boat") == []


@pytest.mark.parametrize("scope", ["session", "owner", "fact"])
async def test_forgotten_turns_are_not_recalled(tmp_path: Path, scope: str) -> None:
    async with remembering(tmp_path) as here:
        ref = await here.talk.say("the code is 4711", KEY, answer="the code is 4711, I see")
        note = await here.note("the code is 4711")
        assert len(await here.ask("code 4711")) == 2
        match scope:
            case "session":
                what, left = ForgetSession(ref.session_id), ["noted: the code is 4711"]
            case "owner":
                what, left = ForgetOwner(), []
            case _:
                what, left = ForgetFact(note), []
        await here.talk.lifecycle.forget(what, owner="ann")
        assert texts(await here.ask("code 4711")) == left


# --- Integration -----------------------------------------------------------------------------------------------------


async def test_new_turns_of_other_sessions_are_recalled_at_once(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:
        for n in range(40):
            await here.talk.say(f"my word is w{n:03}", key_named(str(n % 4)))
            assert users(await here.ask(f"w{n:03}")) == [f"my word is w{n:03}"]


async def test_recall_in_the_same_session_does_not_update_the_index(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here:
        await here.talk.say("the first boat", KEY)
        await here.ask("boat")
        for n in range(3):
            ref = await here.talk.say(f"boat {n}", KEY)
            before = await here.store.changed()
            assert await here.ask_in(ref, "boat") == []
            assert await here.store.changed() == before
        assert len(await here.ask("boat")) == 4


async def test_the_builtin_memory_uses_no_cursor_and_no_lane(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as bare:
        store = bare.store
        async with CoreFixture(tmp_path, BuiltinMemory(store, bare.clock)) as core:
            await core.turn(CLI, "my dog is called Bruno")
            await core.cross(CLI, New())
            await core.settled()
            assert await core.memory.journal.status() == ()
            recall = await core.memory.recall("which dog?", ref=await core.at(CLI))
            assert [(item.provider, item.turn) for item in recall.items] == [("builtin", 1)]
            await core.cross(CLI, Branch())
            await core.cross(CLI, Rewind(1))
            assert await core.memory.health() == {"builtin": "ok"}
            assert recall.missing == ()
        assert await store.read(lambda uow: uow.search.search(ME, "nothing", limit=1)) == ()


async def test_recall_in_a_large_memory_is_fast(tmp_path: Path) -> None:
    """Catch a slowdown of ten times; the benchmarks measure the exact figures."""
    async with remembering(tmp_path) as here:
        await here.talk.say("My dog is called Bruno", KEY)
        session = await here.talk.session((await here.here()).session_id)
        filler = "we spoke of this and of that, of my work and the name of things"

        def fill(uow: UnitOfWork) -> None:
            for n in range(5_000):
                said = [Message(Role.USER, f"{filler} {n}"), Message(Role.ASSISTANT, f"{filler}, {n * 7}")]
                uow.turns.add(session, n + 2, f"t{n}", TurnStatus.DONE, said, 1.0)

        await here.store.write(fill)
        await here.ask("dog")
        begun = time.process_time()
        items = await here.ask("what was the name of my dog again?", limit=3)
        assert time.process_time() - begun < 0.1
    assert "My dog is called Bruno" in users(items)


async def test_a_session_under_another_key_is_recognised(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        memory = BuiltinMemory(core.store, core.clock)
        first = (await core.turn(CLI, "the boat")).ref
        other = replace(first, key=TELEGRAM, epoch=9)
        assert list(await memory.prefetch("boat", ref=other, limit=5)) == []
