"""The tools of the model for notes, session search and recall."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.runtime import CLI, ME, TELEGRAM, CoreFixture

from everthread.adapters.memory.builtin import BuiltinMemory
from everthread.agent.tools import memory as tools_module
from everthread.agent.tools.memory import CONTENT_CHARS_MAX, HITS_MAX, QUERY_CHARS_MAX, memory_tools
from everthread.domain.boundary import New, Rewind
from everthread.domain.errors import DuplicateNote, NotesFull, ToolFailed
from everthread.domain.model import Message, NoteAction, NoteTarget, Role, SessionRef, TurnStatus
from everthread.lifecycle import ForgetSession, NoteChange
from everthread.memory.recall import Recall
from everthread.ports.memory import RecallItem
from everthread.ports.tools import ToolUse

MEMORY, USER = NoteTarget.MEMORY, NoteTarget.USER


class MemoryToolsFixture:
    """The three tools, used from one turn."""

    def __init__(self, core: CoreFixture, ref: SessionRef, notes_chars: int, user_chars: int) -> None:
        self.core = core
        self.ref = ref
        self.written: list[str] = []

        async def written(owner: str) -> None:
            self.written.append(owner)

        limits = {NoteTarget.MEMORY: notes_chars, NoteTarget.USER: user_chars}
        tools = memory_tools(core.lifecycle, core.store, core.memory, limits, written)
        self.tools = {tool.name: tool for tool in tools}

    async def call(self, name: str, /, *, ref: SessionRef | None = None, **arguments: Any) -> str:
        return await self.tools[name].run(arguments, ToolUse(ref or self.ref, "turn-7", "call-1"))

    async def fails(self, name: str, /, **arguments: Any) -> str:
        with pytest.raises(ToolFailed) as failure:
            await self.call(name, **arguments)
        return str(failure.value)

    async def add(self, content: str, target: NoteTarget = MEMORY) -> str:
        return await self.call("memory", action="add", target=target.value, content=content)

    async def notes(self, target: NoteTarget = MEMORY, owner: str = ME) -> list[str]:
        return [note.content for note in await self.core.store.read(lambda uow: uow.notes.current(owner, target))]


@asynccontextmanager
async def benched(
    folder: Path, *, notes_chars: int = 8000, user_chars: int = 4000
) -> AsyncIterator[MemoryToolsFixture]:
    async with (
        CoreFixture(folder / "bare") as bare,
        CoreFixture(folder / "bare", BuiltinMemory(bare.store, bare.clock)) as core,
    ):
        ref = (await core.turn(CLI, "hello")).ref
        yield MemoryToolsFixture(core, ref, notes_chars, user_chars)


# --- Notes ---


async def test_a_note_is_stored_with_the_turn_that_requested_it(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        assert await bench.add("  keeps bees ") == "noted; MEMORY (what you noted) 10/8,000 characters"
        assert await bench.add("likes tea", USER) == "noted; USER (what you know of the user) 9/4,000 characters"
        [note] = await bench.core.store.read(lambda uow: uow.notes.current(ME, MEMORY))
        assert (note.content, note.turn_id, note.session_id) == ("keeps bees", "turn-7", bench.ref.session_id)
        assert bench.written == [ME, ME]


async def test_a_note_is_replaced_and_removed_by_a_part_of_its_text(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        await bench.add("keeps bees in Aarhus")
        await bench.add("has a dog")
        answer = await bench.call(
            "memory", action="replace", target="memory", old_text="bees", content="keeps seven hives"
        )
        assert answer.startswith("replaced; ")
        assert await bench.notes() == ["keeps seven hives", "has a dog"]
        assert (await bench.call("memory", action="remove", target="memory", old_text="dog")).startswith("removed; ")
        assert await bench.notes() == ["keeps seven hives"]


async def test_the_full_text_of_a_note_selects_it_even_if_other_notes_contain_it(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        await bench.add("tea")
        await bench.add("green tea")
        await bench.call("memory", action="remove", target="memory", old_text="tea")
        assert await bench.notes() == ["green tea"]


async def test_the_same_text_is_stored_once(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        await bench.add("keeps bees")
        assert (await bench.add("keeps   bees\n")).startswith("already noted; MEMORY")
        assert await bench.notes() == ["keeps bees"]
        assert (await bench.add("keeps bees", USER)).startswith("noted; ")
        await bench.add("has a dog")
        again = await bench.call("memory", action="replace", target="memory", old_text="dog", content="keeps bees")
        assert again.startswith("already noted")
        assert await bench.notes() == ["keeps bees", "has a dog"]


async def test_an_ambiguous_or_unknown_text_is_answered_with_candidates(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        for text in ("likes green tea", "likes black tea", "has a dog"):
            await bench.add(text)
        said = await bench.fails("memory", action="remove", target="memory", old_text="tea")
        assert "2 notes hold 'tea'" in said
        assert "- likes green tea\n- likes black tea" in said
        assert "dog" not in said
        said = await bench.fails("memory", action="replace", target="memory", old_text="cat", content="x")
        assert "no note of target `memory` holds 'cat'" in said
        assert "- has a dog" in said
        assert "(none)" in await bench.fails("memory", action="remove", target="user", old_text="dog")
        assert len(await bench.notes()) == 3


async def test_a_full_collection_reports_its_size_and_content(tmp_path: Path) -> None:
    async with benched(tmp_path, notes_chars=30) as bench:
        await bench.add("x" * 20)
        said = await bench.fails("memory", action="add", target="memory", content="y" * 11)
        assert "these 11 characters do not fit" in said
        assert "20/30 characters" in said
        assert "x" * 20 in said
        assert "remove one" in said
        await bench.add("y" * 10)
        said = await bench.fails("memory", action="replace", target="memory", old_text="y", content="z" * 11)
        assert "30/30" in said
        await bench.call("memory", action="replace", target="memory", old_text="x", content="z" * 5)
        assert await bench.notes() == ["z" * 5, "y" * 10]
        assert bench.written == [ME] * 3


async def test_notes_over_the_limit_can_be_shortened(tmp_path: Path) -> None:
    async with benched(tmp_path, notes_chars=10) as bench:
        await bench.core.lifecycle.write_note(NoteChange(NoteAction.ADD, MEMORY, "x" * 50), owner=ME)
        await bench.call("memory", action="replace", target="memory", old_text="x", content="y" * 40)
        await bench.fails("memory", action="replace", target="memory", old_text="y", content="z" * 40)
        assert await bench.notes() == ["y" * 40]


async def test_concurrent_writes_do_not_exceed_the_limit(tmp_path: Path) -> None:
    async with benched(tmp_path, notes_chars=10) as bench:
        answers = await asyncio.gather(*(bench.add(f"{n}" * 6) for n in range(8)), return_exceptions=True)
        assert len([answer for answer in answers if isinstance(answer, ToolFailed)]) == 7
        assert sum(map(len, await bench.notes())) <= 10
        answers = await asyncio.gather(*(bench.add("the same", USER) for _ in range(8)))
        assert sorted(answer.split(";")[0] for answer in answers) == ["already noted"] * 7 + ["noted"]


async def test_the_limit_applies_to_each_owner(tmp_path: Path) -> None:
    async with benched(tmp_path, notes_chars=10) as bench:
        await bench.add("x" * 10)
        theirs = (await bench.core.turn(TELEGRAM, "hi", owner="bob")).ref
        await bench.call("memory", ref=theirs, action="add", target="memory", content="b" * 10)
        with pytest.raises(ToolFailed, match="no note"):
            await bench.call("memory", ref=theirs, action="remove", target="memory", old_text="x")
        assert (await bench.notes(), await bench.notes(owner="bob")) == (["x" * 10], ["b" * 10])


async def test_a_forgotten_session_accepts_no_note(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        await bench.core.lifecycle.forget(ForgetSession(bench.ref.session_id), owner=ME)
        assert "forgotten" in await bench.fails("memory", action="add", target="memory", content="x")
        assert bench.written == []


async def test_note_limits_are_enforced_by_the_lifecycle(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        write = bench.core.lifecycle.write_note
        with pytest.raises(NotesFull) as full:
            await write(NoteChange(NoteAction.ADD, MEMORY, "abcdef", limit_chars=5), owner=ME)
        assert (full.value.used, full.value.limit) == (0, 5)
        await write(NoteChange(NoteAction.ADD, MEMORY, "abcdef"), owner=ME)
        with pytest.raises(DuplicateNote):
            await write(NoteChange(NoteAction.ADD, MEMORY, "abcdef", once=True), owner=ME)
        await write(NoteChange(NoteAction.ADD, MEMORY, "abcdef"), owner=ME)


# --- Bad input ---

BAD: list[tuple[str, Mapping[str, Any], str]] = [
    ("memory", {}, "missing required field `action`"),
    ("memory", {"action": "add"}, "missing required field `target`"),
    ("memory", {"action": "forget", "target": "user"}, "add | replace | remove"),
    ("memory", {"action": "add", "target": "world", "content": "x"}, "memory | user"),
    ("memory", {"action": 5, "target": "user"}, "Expected `str`"),
    ("memory", {"action": "add", "target": "user"}, "`content` is missing"),
    ("memory", {"action": "add", "target": "user", "content": None}, "`content` is missing"),
    ("memory", {"action": "add", "target": "user", "content": " \n"}, "`content` is missing"),
    ("memory", {"action": "add", "target": "user", "content": ["x"]}, "$.content"),
    ("memory", {"action": "add", "target": "user", "content": "x" * (CONTENT_CHARS_MAX + 1)}, "length <="),
    ("memory", {"action": "replace", "target": "user", "content": "x"}, "`old_text` is missing"),
    ("memory", {"action": "replace", "target": "user", "old_text": "x"}, "`content` is missing"),
    ("memory", {"action": "remove", "target": "user", "old_text": ""}, "`old_text` is missing"),
    ("session_search", {}, "give `query`"),
    ("session_search", {"query": " "}, "give `query`"),
    ("session_search", {"query": "x", "session": "y"}, "give `query`"),
    ("session_search", {"query": 5}, "$.query"),
    ("session_search", {"query": "x" * (QUERY_CHARS_MAX + 1)}, "length <="),
    ("session_search", {"query": "x", "limit": 0}, "$.limit"),
    ("session_search", {"query": "x", "limit": HITS_MAX + 1}, "$.limit"),
    ("session_search", {"query": "x", "limit": "5"}, "$.limit"),
    ("session_search", {"query": "x", "limit": True}, "$.limit"),
    ("session_search", {"query": "x", "order": "oldest"}, "best | newest"),
    ("session_search", {"session": "no such session"}, "there is no session"),
    ("session_search", {"session": "x", "turn": 0}, "$.turn"),
    ("session_search", {"session": "x", "turn": 2**80}, "$.turn"),
    ("recall", {}, "missing required field `query`"),
    ("recall", {"query": ""}, "`query` is empty"),
    ("recall", {"query": {"x": 1}}, "$.query"),
    ("recall", {"query": "x" * (QUERY_CHARS_MAX + 1)}, "length <="),
]


async def test_bad_input_is_answered_with_an_explanation(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        for name, arguments, expected in BAD:
            said = await bench.fails(name, **arguments)
            assert said.startswith(f"{name}: "), said
            assert expected in said
            assert len(said) < 500
        assert (await bench.notes(), await bench.notes(USER)) == ([], [])


async def test_read_only_tools_may_run_concurrently(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        assert {name: tool.parallel for name, tool in bench.tools.items()} == {
            "memory": False,
            "session_search": True,
            "recall": True,
        }
        assert not any(tool.dangerous for tool in bench.tools.values())


# --- Past conversations ---


async def test_a_search_shows_session_time_author_and_context(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        core = bench.core
        await core.cross(CLI, New("Trip to Lisbon"))
        for text in ("which airline?", "the flight is on Tuesday", "and the hotel?"):
            ref = (await core.turn(CLI, text)).ref
        said = await bench.call("session_search", query="flight tuesday", limit=1, order="best")
        assert f'session {ref.session_id} "Trip to Lisbon", turn 2, 20' in said
        assert "UTC\n> " in said
        assert "flight is on Tuesday" in said
        assert "(before) user: which airline?" in said
        assert "(same turn) " in said
        assert "(after) user: and the hotel?" in said
        assert "nothing was found" in await bench.call("session_search", query="flight zebra")


async def test_a_search_is_ordered_as_asked(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        for text in ("tea tea tea", "we spoke of ships and of tea and much more that has nothing to do with it"):
            await bench.core.turn(CLI, text)
        best = await bench.call("session_search", query="tea", limit=1)
        newest = await bench.call("session_search", query="tea", limit=1, order="newest")
        assert "tea tea tea" in best.split("\n")[1]
        assert "ships" in newest.split("\n")[1]


async def test_a_search_shows_no_undone_turns_and_no_other_owners(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        core = bench.core
        await core.turn(CLI, "the red boat")
        await core.turn(CLI, "the secret")
        await core.cross(CLI, Rewind(1))
        theirs = (await core.turn(TELEGRAM, "the boat of bob", owner="bob")).ref
        said = await bench.call("session_search", query="boat")
        assert "red boat" in said
        assert "secret" not in said
        assert "bob" not in said
        assert "nothing was found" in await bench.call("session_search", query="secret")
        assert "there is no session" in await bench.fails("session_search", session=theirs.session_id)


async def test_a_session_is_read_at_its_end_or_around_a_turn(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        core = bench.core
        await core.cross(CLI, New("Numbers"))
        for n in range(1, 31):
            ref = (await core.turn(CLI, f"number {n}.")).ref
        at_end = await bench.call("session_search", session="numbers")
        assert "user: number 30." in at_end
        assert "user: number 23." not in at_end
        around = await bench.call("session_search", session=ref.session_id, turn=10)
        assert [n for n in range(1, 31) if f"user: number {n}." in around] == list(range(4, 17))
        assert "no turns at that place" in await bench.call("session_search", session="numbers", turn=500)


async def test_a_compressed_session_names_the_session_of_its_beginning(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        core = bench.core
        parent = bench.ref.session_id
        await core.cross(CLI, await core.compression(CLI))
        tip = (await core.turn(CLI, "and on")).ref.session_id
        assert f"turns up to 1 are in session {parent}" in await bench.call("session_search", session=tip)
        assert "user: hello" in await bench.call("session_search", session=parent)


async def test_search_output_is_bounded(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        core = bench.core
        session = await core.session(bench.ref.session_id)

        def fill(uow: Any) -> None:
            for n in range(2, 40):
                long = [Message(Role.USER, "boat " * 20_000), Message(Role.ASSISTANT, "ship " * 20_000)]
                uow.turns.add(session, n, f"t{n}", TurnStatus.DONE, long, 1.0)
            uow.sessions.save(replace(session, last_turn=39))

        await core.store.write(fill)
        assert len(await bench.call("session_search", query="boat", limit=HITS_MAX)) < 30_000
        assert len(await bench.call("session_search", session=session.id, turn=20)) < 30_000


# --- Memory ---


async def test_recall_uses_the_session_of_the_turn(tmp_path: Path) -> None:
    async with benched(tmp_path) as bench:
        core = bench.core
        await core.turn(CLI, "my dog is called Bruno")
        assert await bench.call("recall", query="which dog?") == "nothing was found"
        await core.cross(CLI, New())
        bench.ref = await core.at(CLI)
        said = await bench.call("recall", query="which dog?")
        assert "my dog is called Bruno" in said
        assert "from builtin" in said
        assert said.startswith("<recalled>\n")


async def test_providers_that_do_not_answer_are_named() -> None:
    async def ask(query: str, *, ref: SessionRef) -> Recall:
        return Recall(ref, (RecallItem(query, provider="one"),), ("two", "three"))

    ref = SessionRef("s1", 0, CLI, 1, ME)
    said = await tools_module.recall(ask).run({"query": " bees "}, ToolUse(ref, "t", "c"))
    assert "  bees\n" in said
    assert said.endswith("(no answer from two, three)")
