"""Exported sessions: the file format, imports, and round trips."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from everthread.adapters.sqlite.store import SqliteStore
from everthread.cli.commands.sessions.export import write_lines
from everthread.cli.commands.sessions.import_ import ImportCounts, import_lines
from everthread.domain.errors import BadExport
from everthread.domain.export_format import ExportReader
from everthread.domain.model import Message, NoteAction, NoteTarget, Role, SessionRef, ToolCall
from everthread.lifecycle import ForgetSession, Lifecycle, NoteChange
from everthread.lifecycle import session_import as taking_in
from everthread.store.unit_of_work import Store, UnitOfWork
from everthread.testing import in_loop
from everthread.testing.contracts.store.fixtures import KEY, StoreConversation, key_named

HEADER = {"type": "everthread-export", "version": 1}
SESSION = {"type": "session", "id": "a", "owner": "me", "key": "agent:main:cli:dm:1", "opened_at": 1, "active_at": 2}
CHILD = SESSION | {"id": "b", "parent": "a", "cause": "branch", "base": {"turn": 1}}
TURN = {
    "type": "turn",
    "session": "a",
    "number": 1,
    "id": "t1",
    "at": 1,
    "messages": [{"role": "user", "content": "x"}],
}
REWIND = {"type": "rewind", "session": "a", "at": 1, "turns": [1]}
NOTE = {"type": "note", "id": "n", "owner": "me", "target": "user", "content": "likes tea", "at": 1}


def end(sessions: int = 1, turns: int = 0, notes: int = 0) -> dict[str, Any]:
    return {"type": "end", "sessions": sessions, "turns": turns, "notes": notes}


def read(*lines: dict[str, Any] | str) -> list[Any]:
    raw = [(line if isinstance(line, str) else json.dumps(line)).encode() + b"\n" for line in lines]
    return list(ExportReader("some.jsonl").lines(raw))


# --- File format -----------------------------------------------------------------------------------------------------


def test_a_valid_file_is_read_line_by_line() -> None:
    lines = read(HEADER, SESSION, TURN, REWIND, CHILD | {"base": {"turn": 1, "rewinds": 1}}, NOTE, end(2, 1, 1))
    assert [type(line).__name__ for line in lines] == [
        *("Header", "SessionLine", "TurnLine", "RewindLine", "SessionLine", "NoteLine", "EndLine"),
    ]


def test_unknown_names_are_ignored() -> None:
    read(HEADER | {"colour": "red"}, SESSION | {"colour": "red"}, end())


@pytest.mark.parametrize(
    ("lines", "number", "word"),
    [
        ([], 1, "cut off"),
        ([HEADER], 2, "cut off"),
        ([HEADER, SESSION, TURN], 4, "cut off"),
        ([SESSION], 1, "header"),
        ([HEADER, HEADER], 2, "header"),
        ([HEADER, SESSION, TURN | {"chat": "agent:main:cli:dm:1"}], 3, "group"),
        ([HEADER, SESSION, TURN | {"chat": "anything"}], 3, "group"),
        ([HEADER | {"version": 2}], 1, "version 2"),
        ([HEADER, "{"], 2, ""),
        ([HEADER, "[]"], 2, ""),
        ([HEADER, ""], 2, ""),
        ([HEADER, {"type": "surprise"}], 2, "surprise"),
        ([HEADER, SESSION | {"id": ""}], 2, "id"),
        ([HEADER, SESSION | {"id": "notes:me"}], 2, "id"),
        ([HEADER, SESSION | {"id": "a\nb"}], 2, "id"),
        ([HEADER, SESSION | {"id": "a\n"}], 2, "id"),
        ([HEADER, SESSION | {"key": "nowhere"}], 2, "key"),
        ([HEADER, SESSION | {"kind": "notes"}], 2, "notes"),
        ([HEADER, SESSION | {"kind": "party"}], 2, "kind"),
        ([HEADER, SESSION | {"title": " x "}], 2, "title"),
        ([HEADER, SESSION | {"title": "x" * 101}], 2, "title"),
        ([HEADER, SESSION | {"opened_at": -1}], 2, "opened_at"),
        ([HEADER, SESSION | {"opened_at": "now"}], 2, "opened_at"),
        ([HEADER, SESSION | {"ended_at": 3}], 2, "end_reason"),
        ([HEADER, SESSION | {"floor": 3}], 2, "floor"),
        ([HEADER, SESSION | {"base": {"turn": 3}}], 2, "base"),
        ([HEADER, SESSION, SESSION], 3, "twice"),
        ([HEADER, CHILD], 2, "parent"),
        ([HEADER, SESSION, CHILD], 3, "turns"),
        ([HEADER, SESSION, TURN, CHILD | {"base": {"turn": 1, "rewinds": 1}}], 4, "rewinds"),
        ([HEADER, SESSION, CHILD | {"base": {}, "summary_of": "a"}], 3, "summary"),
        ([HEADER, TURN], 2, "belongs"),
        ([HEADER, SESSION, TURN | {"session": "b"}], 3, "belongs"),
        ([HEADER, SESSION, TURN, TURN], 4, "turn 1"),
        ([HEADER, SESSION, TURN | {"number": 0}], 3, "number"),
        ([HEADER, SESSION, TURN | {"messages": [{"role": "king"}]}], 3, "role"),
        ([HEADER, SESSION, TURN | {"messages": [{"role": "user"}] * 4097}], 3, "messages"),
        ([HEADER, SESSION, TURN | {"status": "odd"}], 3, "status"),
        ([HEADER, SESSION, REWIND], 3, "rewind"),
        ([HEADER, SESSION, TURN, REWIND, REWIND], 5, "rewind"),
        ([HEADER, SESSION, TURN, REWIND | {"turns": []}], 4, "rewind"),
        ([HEADER, NOTE, SESSION], 3, "before notes"),
        ([HEADER, NOTE, NOTE], 3, "twice"),
        ([HEADER, NOTE | {"content": "  "}], 2, "the note is empty"),
        ([HEADER, SESSION, end(2)], 3, "end line"),
        ([HEADER, end(0), SESSION], 3, "follow"),
    ],
)
def test_an_invalid_line_is_reported_with_its_number(lines: list[Any], number: int, word: str) -> None:
    with pytest.raises(BadExport) as told:
        read(*lines)
    assert str(told.value).startswith(f"some.jsonl, line {number}: ")
    assert word in str(told.value)


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([HEADER, SESSION, CHILD, TURN, REWIND, end()]))))
@settings(max_examples=200, deadline=None)
def test_any_file_is_read_or_refused(lines: Sequence[Any]) -> None:
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    with suppress(BadExport):
        assert all(line is not None for line in ExportReader("any").lines(raw))


# --- A round trip ----------------------------------------------------------------------------------------------------


@dataclass
class Place:
    """The part of a runtime that export and import use."""

    store: Store
    lifecycle: Lifecycle
    clock: Any

    async def sync_notes(self, owner: str) -> str:
        return ""


def place(store: Store, holder: str = "there") -> Any:
    talk = StoreConversation(store, holder)
    return Place(store, talk.lifecycle, talk.clock)


async def exported(store: Store, *names: str, notes: bool = True) -> list[bytes]:
    lines: list[bytes] = []
    await write_lines(place(store), names, notes, lines.append)
    return lines


async def imported(store: Store, lines: list[bytes], mine: str | None = None, *, dry_run: bool = False) -> ImportCounts:
    return await import_lines(place(store), ExportReader("it").lines(lines), mine, dry_run=dry_run)


KEYS = [key_named("1"), key_named("2")]
STEP = st.tuples(st.sampled_from("tttbrcnsqafdw"), st.integers(0, 1), st.integers(1, 3))


async def live(talk: StoreConversation, steps: Sequence[tuple[str, int, int]]) -> None:
    """Create sessions with tools, branches, rewinds, compressions, resumes, set aside messages and notes."""
    opened: list[str] = []
    for number, (step, which, amount) in enumerate(steps):
        key, owner = KEYS[which], ("ann", "bob")[which]
        here = await talk.lifecycle.current(key)
        if here is None or step == "n":
            title = f"title {number}" if amount == 1 else ""
            opened.append(await talk.new(key, owner, title))
            continue
        talk.clock.time += 1.25
        if step == "s":
            target = opened[(number * amount) % len(opened)]
            session = await talk.session(target)
            if session.owner == owner and session.forgotten_seq is None:
                await talk.resume(key, target, owner)
        elif step in "bq":
            if step == "q":
                await talk.accept(f"queued {number}", key, owner)
            opened.append(await (talk.new if step == "q" else talk.branch)(key, owner))
        else:
            await STEPS[step](talk, here, number, amount)


async def _rewind(talk: StoreConversation, here: SessionRef, _: int, amount: int) -> None:
    await talk.rewind(here.key, amount, here.owner)


async def _compress(talk: StoreConversation, here: SessionRef, number: int, amount: int) -> None:
    last = (await talk.session(here.session_id)).last_turn
    await talk.compress(here.key, f"summary {number}", max(last - amount, 0), here.owner)


async def _note(talk: StoreConversation, here: SessionRef, number: int, _: int) -> None:
    change = NoteChange(NoteAction.ADD, NoteTarget.USER, f"note {number}")
    await talk.lifecycle.write_note(change, owner=here.owner, ref=here)


async def _delegate(talk: StoreConversation, here: SessionRef, number: int, _: int) -> None:
    await talk.lifecycle.record_delegation(here, f"task {number}", "result", "child")


async def _forget(talk: StoreConversation, here: SessionRef, _: int, amount: int) -> None:
    if amount == 3:
        await talk.lifecycle.forget(ForgetSession(here.session_id), owner=here.owner)


async def _late(talk: StoreConversation, here: SessionRef, number: int, amount: int) -> None:
    """Run a turn that ends after its session was rewound or left."""
    ticket = await talk.begin(f"late {number}", here.key, here.owner)
    await talk.rewind(here.key, 1, here.owner) if amount == 1 else await talk.new(here.key, here.owner)
    await talk.lifecycle.commit_turn(ticket, [Message(Role.USER, f"late {number}")], None)


async def _say(talk: StoreConversation, here: SessionRef, number: int, _: int) -> None:
    await say_with_tools(talk, here.key, here.owner, number)


STEPS = {"r": _rewind, "c": _compress, "a": _note, "d": _delegate, "f": _forget, "w": _late, "t": _say}


async def say_with_tools(talk: StoreConversation, key: Any, owner: str, number: int) -> None:
    ticket = await talk.begin(f"said {number} 東京 \x1b[1m\n", key, owner)
    call = ToolCall("c1", "look", '{"where": "here"}')
    messages = [
        Message(Role.USER, ticket.message.inbound.text),
        Message(Role.ASSISTANT, "", (call,), reasoning="hm"),
        Message(Role.TOOL, "found \u2028 it", tool_call_id="c1", name="look"),
        Message(Role.ASSISTANT, f"answer {number}"),
    ]
    await talk.lifecycle.commit_turn(ticket, messages, "answer", interrupted=number % 5 == 0)


async def round_trip(steps: Sequence[tuple[str, int, int]], folder: Path) -> None:
    async with (
        aclosing(await SqliteStore.open(folder / "one.db")) as one,
        aclosing(await SqliteStore.open(folder / "two.db")) as two,
    ):
        await live(StoreConversation(one), steps)
        await two.write(lambda uow: uow.cursors.register("p"))
        first = await exported(one)
        await imported(two, first)
        again = await exported(two)
        # The header contains the time of the export, and a note the time of its import.
        assert [_timeless(line) for line in again] == [_timeless(line) for line in first]
        for line in map(json.loads, first):
            if line["type"] == "session":
                views = [await StoreConversation(store).view(line["id"]) for store in (one, two)]
                if "parent" in line or "base" not in line or not line["base"]:
                    assert [turn.messages for turn in views[0].turns] == [turn.messages for turn in views[1].turns]
                    assert views[0].summary == views[1].summary
                assert await two.read(lambda uow, s=line["id"]: uow.archive.has_undelivered(s)) is False
        tally = await imported(two, first)
        assert (tally.sessions, tally.turns, tally.notes, tally.left_out) == (0, 0, 0, {})


def _timeless(line: bytes) -> Any:
    value = json.loads(line)
    value.pop("exported_at", None)
    return value | {"at": 0} if value["type"] == "note" else value


def steps_of(letters: str) -> list[tuple[str, int, int]]:
    return [(letter, 0, 1) for letter in letters]


@given(st.lists(STEP, max_size=25))
@example(steps_of("nttrbttrtb"))
@example(steps_of("nttbrtrbt"))
@example(steps_of("nttctbtrcdt"))
@example([*steps_of("nttb"), ("f", 0, 3), *steps_of("ntbtb")])
@example([*steps_of("nttbt"), ("s", 0, 3), ("f", 0, 3), *steps_of("nt")])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_imported_export_is_exported_unchanged(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(round_trip(steps, Path(folder)))


# --- Existing sessions -----------------------------------------------------------------------------------------------


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "one.db", tmp_path / "two.db"


@in_loop
async def test_importing_again_adds_only_what_is_new(homes: tuple[Path, Path]) -> None:
    async with aclosing(await SqliteStore.open(homes[0])) as one, aclosing(await SqliteStore.open(homes[1])) as two:
        talk = StoreConversation(one)
        session = await talk.new(KEY, title="Bees")
        await talk.say("one", KEY)
        await imported(two, await exported(one))
        await talk.say("two", KEY)
        await talk.say("three", KEY)
        await talk.rewind(KEY)
        lines = await exported(one)
        tally = await imported(two, lines, dry_run=True)
        assert (tally.sessions, tally.turns) == (1, 2)
        assert await StoreConversation(two).texts(session) == ["one"], "a dry run changes nothing"
        tally = await imported(two, lines)
        assert (tally.sessions, tally.turns, tally.same) == (1, 2, 0)
        assert await StoreConversation(two).texts(session) == ["one", "two"]
        assert (await imported(two, lines)).same == 1
        # An older file adds nothing either.
        assert [_timeless(line) for line in await exported(two)] == [_timeless(line) for line in lines]


@in_loop
async def test_a_diverged_session_and_its_children_are_left_out(homes: tuple[Path, Path]) -> None:
    async with aclosing(await SqliteStore.open(homes[0])) as one, aclosing(await SqliteStore.open(homes[1])) as two:
        talk = StoreConversation(one)
        session = await talk.new(KEY)
        await talk.say("one", KEY)
        await imported(two, await exported(one))
        other = StoreConversation(two, "other")
        await other.resume(KEY, session)
        await other.say("there", KEY)
        await talk.say("here", KEY)
        child = await talk.branch(KEY)
        await talk.say("in the child", KEY)
        tally = await imported(two, await exported(one))
        assert set(tally.left_out) == {session, child}
        assert "has other turns here" in tally.left_out[session]
        assert await other.texts(session) == ["one", "there"]


@in_loop
async def test_a_session_in_use_is_not_changed(homes: tuple[Path, Path]) -> None:
    async with aclosing(await SqliteStore.open(homes[0])) as one, aclosing(await SqliteStore.open(homes[1])) as two:
        talk = StoreConversation(one)
        session = await talk.new(KEY)
        await talk.say("one", KEY)
        await imported(two, await exported(one))
        await StoreConversation(two, "other").resume(KEY, session)
        await talk.say("two", KEY)
        tally = await imported(two, await exported(one))
        assert "in use" in tally.left_out[session]
        assert await StoreConversation(two).texts(session) == ["one"]


@in_loop
async def test_a_child_that_needs_turns_missing_from_a_parent_in_use_is_left_out(
    homes: tuple[Path, Path],
) -> None:
    async with aclosing(await SqliteStore.open(homes[0])) as one, aclosing(await SqliteStore.open(homes[1])) as two:
        talk = StoreConversation(one)
        parent = await talk.new(KEY)
        for text in ("one", "two"):
            await talk.say(text, KEY)
        await imported(two, await exported(one))
        other = StoreConversation(two, "other")
        await other.resume(KEY, parent)
        for text in ("three", "four"):
            await talk.say(text, KEY)
        child = await talk.branch(KEY)
        await talk.say("five", KEY)
        lines = await exported(one)
        for dry_run in (True, False):
            tally = await imported(two, lines, dry_run=dry_run)
            assert set(tally.left_out) == {parent, child}
            assert ("in use" in tally.left_out[parent], "continues a session" in tally.left_out[child]) == (True, True)
        assert await two.read(lambda uow: uow.sessions.get(child)) is None


@in_loop
async def test_a_child_of_a_parent_in_use_is_imported_if_its_inherited_turns_exist(homes: tuple[Path, Path]) -> None:
    async with aclosing(await SqliteStore.open(homes[0])) as one, aclosing(await SqliteStore.open(homes[1])) as two:
        talk = StoreConversation(one)
        parent = await talk.new(KEY)
        await talk.say("one", KEY)
        await imported(two, await exported(one))
        other = StoreConversation(two, "other")
        await other.resume(KEY, parent)
        middle = await talk.branch(KEY)
        child = await talk.branch(KEY)
        await talk.say("in the child", KEY)
        await talk.resume(KEY, parent)
        await talk.say("two", KEY)
        tally = await imported(two, await exported(one))
        assert set(tally.left_out) == {parent}
        await other.resume(key_named("2"), middle)
        await talk.resume(KEY, middle)
        await talk.say("three", KEY)
        lines = await exported(one)
        await other.say("something else", KEY)
        assert set((await imported(two, lines)).left_out) == {parent, middle, child}, "the session has diverged"
        assert await other.texts(child) == ["one", "in the child"]


@in_loop
async def test_a_child_of_an_empty_branch_in_use_is_imported(homes: tuple[Path, Path]) -> None:
    async with aclosing(await SqliteStore.open(homes[0])) as one, aclosing(await SqliteStore.open(homes[1])) as two:
        talk = StoreConversation(one)
        await talk.new(KEY)
        await talk.say("one", KEY)
        middle = await talk.branch(KEY)
        await imported(two, await exported(one))
        child = await talk.branch(KEY)
        await talk.resume(KEY, middle)
        await talk.say("two", KEY)
        await StoreConversation(two, "other").resume(KEY, middle)
        assert set((await imported(two, await exported(one))).left_out) == {middle}
        assert await StoreConversation(two).texts(child) == ["one"]


@in_loop
async def test_a_session_that_is_resumed_during_its_import_is_left_out_and_reported(
    homes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking_in, "ITEMS_AT_ONCE", 2)
    async with aclosing(await SqliteStore.open(homes[0])) as one, aclosing(await SqliteStore.open(homes[1])) as two:
        talk = StoreConversation(one)
        session = await talk.new(KEY)
        for number in range(1, 7):
            await talk.say(f"turn {number}", KEY)
        child = await talk.branch(KEY)
        other = StoreConversation(two, "other")
        store = Interrupting(two, 2, lambda: _take_up(other, session))
        lines = await exported(one)
        tally = await imported(store, lines)  # pyright: ignore[reportArgumentType]
        assert "in use" in tally.left_out[session]
        assert child in tally.left_out
        assert tally.turns == 2
        assert await other.texts(session) == ["turn 1", "turn 2", "something else"]


@in_loop
async def test_an_import_continues_once_a_session_is_not_in_use(
    homes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking_in, "ITEMS_AT_ONCE", 2)
    async with aclosing(await SqliteStore.open(homes[0])) as one, aclosing(await SqliteStore.open(homes[1])) as two:
        talk = StoreConversation(one)
        session = await talk.new(KEY)
        for number in range(1, 7):
            await talk.say(f"turn {number}", KEY)
        other = StoreConversation(two, "other")
        store = Interrupting(two, 2, lambda: other.resume(KEY, session))
        lines = await exported(one)
        assert "in use" in (await imported(store, lines)).left_out[session]  # pyright: ignore[reportArgumentType]
        await other.new(KEY)
        tally = await imported(two, lines)
        assert (tally.left_out, tally.turns) == ({}, 4)
        assert len(await other.texts(session)) == 6


class Interrupting:
    """A store that calls a function before one of its writes."""

    def __init__(self, store: Store, before: int, what: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._left = before
        self._what = what

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, work: Callable[[UnitOfWork], Any]) -> Any:
        self._left -= 1
        if self._left == 0:
            await self._what()
        return await self._store.write(work)


async def _take_up(other: StoreConversation, session: str) -> None:
    await other.resume(KEY, session)
    await other.say("something else", KEY)


@in_loop
async def test_a_forgotten_session_is_not_imported_again(homes: tuple[Path, Path]) -> None:
    async with aclosing(await SqliteStore.open(homes[0])) as one:
        talk = StoreConversation(one)
        session = await talk.new(KEY, title="Secret")
        await talk.say("the safe is behind the painting", KEY)
        change = NoteChange(NoteAction.ADD, NoteTarget.USER, "has a safe")
        await talk.lifecycle.write_note(change, owner="ann", ref=await talk.lifecycle.current(KEY))
        lines = await exported(one)
        await talk.lifecycle.forget(ForgetSession(session), owner="ann")
        tally = await imported(one, lines)
        assert "forgotten" in tally.left_out[session]
        assert (tally.turns, tally.notes) == (0, 0)
        assert await talk.search("painting") == []


@in_loop
async def test_imported_sessions_belong_to_the_importer_with_unused_ids_and_titles(
    homes: tuple[Path, Path],
) -> None:
    async with aclosing(await SqliteStore.open(homes[0])) as one:
        talk = StoreConversation(one)
        session = await talk.new(KEY, title="Bees")
        await talk.say("one", KEY)
        child = await talk.branch(KEY)
        await talk.say("two", KEY)
        await talk.new(key_named("9"), "bob", "Bees")
        lines = await exported(one, child)
        for again in range(2):
            tally = await imported(one, lines, "bob")
            assert (tally.sessions, tally.same) == ((2, 0) if again == 0 else (0, 2))
            assert set(tally.renamed) == {session, child}
        mine = await talk.session(tally.renamed[child])
        assert (mine.owner, mine.parent_id) == ("bob", tally.renamed[session])
        assert await talk.texts(mine.id) == ["one", "two"]
        assert {(await talk.session(s)).title for s in tally.renamed.values()} == {"Bees #2", "Bees #3"}
        assert (await talk.session(child)).owner == "ann"


@in_loop
async def test_turns_inherited_through_a_forgotten_session_are_exported_and_imported(homes: tuple[Path, Path]) -> None:
    async with aclosing(await SqliteStore.open(homes[0])) as one, aclosing(await SqliteStore.open(homes[1])) as two:
        talk = StoreConversation(one)
        root = await talk.new(KEY)
        for text in ("one", "two", "undone in the middle"):
            await talk.say(text, KEY)
        middle = await talk.branch(KEY)
        await talk.rewind(KEY)
        await talk.say("secret", KEY)
        await talk.say("secret too", KEY)
        last = await talk.branch(KEY)
        await talk.rewind(KEY)
        await talk.say("three", KEY)
        await talk.lifecycle.forget(ForgetSession(middle), owner="ann")
        seen = [text for text in await talk.texts(last) if text in ("one", "two", "three")]
        assert seen == ["one", "two", "three"]
        for names in ((), (last,)):
            lines = await exported(one, *names)
            assert middle not in b"".join(lines).decode()
            tally = await imported(one, lines)
            assert (tally.renamed, tally.left_out, tally.sessions) == ({}, {}, 0), (
                "nothing is new in the store of the export"
            )
        await imported(two, lines)
        assert await StoreConversation(two).texts(last) == seen
        assert await StoreConversation(two).texts(root) == ["one", "two", "undone in the middle"]
        assert [_timeless(line) for line in await exported(two)] == [_timeless(line) for line in await exported(one)]


@in_loop
async def test_an_export_of_one_session_contains_only_its_visible_turns(homes: tuple[Path, Path]) -> None:
    async with aclosing(await SqliteStore.open(homes[0])) as one:
        talk = StoreConversation(one)
        first = await talk.new(KEY)
        await talk.say("one", KEY)
        await talk.say("two", KEY)
        tip = await talk.compress(KEY, "so far", 2)
        await talk.say("three", KEY)
        branch = await talk.branch(KEY)
        lines = [json.loads(line) for line in await exported(one, branch, notes=False)]
        assert [line["id"] for line in lines if line["type"] == "session"] == [tip, branch]
        assert first not in json.dumps(lines)
        assert lines[1]["summary"] == "so far"
        assert lines[3]["summary_of"] == tip


@in_loop
async def test_providers_receive_only_the_turns_after_an_import(homes: tuple[Path, Path]) -> None:
    async with aclosing(await SqliteStore.open(homes[0])) as one, aclosing(await SqliteStore.open(homes[1])) as two:
        talk = StoreConversation(one)
        session = await talk.new(KEY)
        await talk.say("one", KEY)
        await two.write(lambda uow: uow.cursors.register("p"))
        await imported(two, await exported(one))

        def cursor(uow: UnitOfWork) -> tuple[int, int]:
            while uow.cursors.discover("p", 5.0, 100):
                pass
            found, here = uow.cursors.get("p", session), uow.sessions.get(session)
            assert found is not None
            assert here is not None
            return found.seq, here.log_seq

        seq, end_of_log = await two.write(cursor)
        assert seq == end_of_log > 0
        other = StoreConversation(two, "other")
        await other.resume(KEY, session)
        await other.say("two", KEY)
        assert await two.write(cursor) == (seq, end_of_log + 2)
