"""`/search`, `/export`, `/resume` and the recap, completion: looking at what was said, and finding the way there."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.agent_runtime import says_nothing, tool
from tests.commands import CommandFixture
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, TELEGRAM

from everthread.commands.completion import CANDIDATES_MAX, Candidate, candidates
from everthread.commands.context import Document
from everthread.commands.export import markdown
from everthread.commands.recap import RecapTurn, format_recap, recap
from everthread.commands.registry import COMMANDS
from everthread.commands.sessions import recap_current
from everthread.domain.boundary import Branch, Rewind
from everthread.domain.errors import StoreBusy
from everthread.domain.model import Cause, Session, SessionKind, ToolCall, TurnStatus
from everthread.lifecycle import ForgetSession
from everthread.store.unit_of_work import UnitOfWork

# --- /search ---------------------------------------------------------------------------------------------------------


async def test_search_finds_what_was_just_said_newest_first_with_where_it_stands(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["fine"])) as console:
        lisbon = await console.titled("Lisbon")
        await console.ask(f"{'filler ' * 60}the aubergine costs two euros")
        porto = (await console.order("/new"), (await console.ask("no aubergine here")).committed.ref.session_id)[1]
        await console.ask("something else")
        await console.ask("an aubergine of theirs", TELEGRAM, owner="them")
        said = await console.order("/search aubergine")
        lines = said.text.splitlines()
        assert lines[0].endswith(f"{porto}, turn 1")
        assert lines[1] == "  you: no aubergine here"
        assert lines[2].endswith('"Lisbon", turn 2')
        assert lines[3].startswith("  you: …")
        assert "the aubergine costs two euros" in lines[3]
        assert len(lines) == 5
        assert [offer.command for offer in said.menu] == [f"/resume {porto}", f"/resume {lisbon}"]
        assert said.menu[1].label.startswith("Lisbon  2")
        assert said.menu[1].label.endswith("the aubergine costs two euros")
        assert (await console.order(said.menu[1].command)).ok


async def test_search_leaves_out_what_was_undone_and_says_when_nothing_is_there(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.ask("an aubergine")
        await console.lifecycle.cross(CLI, Rewind(1), owner=ME)
        for query in ("aubergine", "nothing of the kind", '"', "***", "a" * 999, "\ud800"):
            said = await console.order(f"/search {query}")
            assert said.ok
            assert said.text == "Nothing found. Try fewer or other words."
            assert said.menu == ()
        await console.refuses("/search", "Usage: /search WORDS")
        await console.refuses(f"/search {'x' * 1001}", "at most 1000")


async def test_search_shows_and_offers_the_newest_of_many(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        # The best of them, but not the newest.
        await console.ask("aubergine")
        for number in range(12):
            session = (await console.ask(f"aubergine number {number}")).committed.ref.session_id
        said = await console.order("/search aubergine")
        assert said.text.count("you: aubergine number") == 10
        assert said.text.splitlines()[1] == "  you: aubergine number 11"
        assert "the newest 10 matches. Add words" in said.text
        assert {offer.command for offer in said.menu} == {f"/resume {session}"}
        assert len({offer.label for offer in said.menu}) == 10


async def test_what_is_found_can_move_no_cursor(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.ask("an \x1b[2J aubergine\r\nof two lines")
        text = (await console.order("/search aubergine")).text
        assert "an [2J aubergine of two lines" in text
        assert "\x1b" not in text


# --- /export ---------------------------------------------------------------------------------------------------------


async def test_export_is_the_whole_conversation_as_markdown_named_after_its_title(tmp_path: Path) -> None:
    model = FakeModel([[ToolCall("c1", "look", "{}"), ToolCall("c2", "look", "{}")], "fine,\n\n- one\n- two", "well"])
    async with CommandFixture(tmp_path, model, tools=(tool("look", says_nothing),)) as console:
        await console.order("/new Trip to Évora: Day 1/2")
        await console.ask("what is\nthere?\x1b[2J")
        said = await console.order("/export")
        assert said.document is not None
        assert said.document.name == "trip-to-évora-day-1-2.md"
        assert said.document.name in said.text
        assert "1 turn" in said.text
        text = said.document.text
        assert text.startswith("# Trip to Évora: Day 1/2\n\nSession ")
        assert "**You:**\n\nwhat is\nthere? [2J\n\n**Everthread:**\n\nfine,\n\n- one\n- two\n" in text
        assert "*Tools used: look x2*" in text
        assert "nothing" not in text
        # What was compressed is there in its own words, what was undone is not.
        await console.lifecycle.cross(CLI, await console.compression(CLI, "a summary"), owner=ME)
        await console.ask("second")
        await console.ask("third")
        await console.order("/undo")
        said = await console.order("/export notes/mine.md")
        assert said.document is not None
        assert (said.document.name, said.document.file_name) == ("notes/mine.md", "mine.md")
        assert said.document.text.count("**You:**") == 2
        assert "what is\nthere?" in said.document.text
        assert "second" in said.document.text
        assert "third" not in said.document.text
        assert "a summary" not in said.document.text


async def test_an_export_has_what_was_said_before_a_branch_and_says_what_was_interrupted(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["fine", StoreBusy("the endpoint is away")])) as console:
        await console.ask("before")
        branch = (await console.lifecycle.cross(CLI, Branch(), owner=ME)).ref
        assert branch is not None
        ticket = (await console.say("after"), await console.lifecycle.begin_turn(CLI))[1]
        assert ticket is not None
        await console.lifecycle.commit_turn(ticket, [], None, interrupted=True)
        said = await console.order("/export")
        assert said.document is not None
        assert said.document.name == f"{branch.session_id}.md"
        assert "before" in said.document.text
        assert said.document.text.rstrip().endswith("*This answer was interrupted.*")


async def test_a_long_conversation_is_exported_in_order_and_cut_where_it_is_too_long(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        for number in range(120):
            turn = await console.turn(CLI, f"message {number:03}.")
        session = await console.session(turn.ref.session_id)
        count, text = await console.store.read(lambda uow: markdown(uow, session))
        assert count == 120
        assert [text.index(f"message {number:03}.") for number in range(120)] == sorted(
            text.index(f"message {number:03}.") for number in range(120)
        )
        count, text = await console.store.read(lambda uow: markdown(uow, session, 1_000))
        assert 1 <= count < 120
        assert len(text) < 1_200
        assert "Cut off at 1000 characters" in text


async def test_there_is_nothing_to_export_at_first(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.refuses("/export", "no session here yet")
        await console.order("/new")
        await console.refuses("/export", "nothing to export")
        await console.ask("hello")
        await console.refuses("/export", "no session here yet", owner="them")
        await console.refuses(f"/export {'x' * 1001}", "Invalid file name")
        await console.refuses("/export a\x00b", "Invalid file name")


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("notes.md", "notes.md"),
        ("../../etc/passwd", "passwd"),
        ("C:\\files\\x.md", "x.md"),
        ("..", "conversation.md"),
        (".bashrc", "bashrc"),
        ("/", "conversation.md"),
    ],
)
def test_a_documents_file_name_leads_nowhere(name: str, safe: str) -> None:
    assert Document(name, "").file_name == safe


# --- The recap -------------------------------------------------------------------------------------------------------


async def test_a_recap_has_the_last_exchanges_with_their_tools_and_what_became_of_them(tmp_path: Path) -> None:
    model = FakeModel(
        [
            "answer one",
            "answer two",
            [ToolCall("c1", "look", "{}"), ToolCall("c2", "find", "{}"), ToolCall("c3", "look", "{}")],
            "answer\n\nthree " + "and more " * 100,
        ]
    )
    async with CommandFixture(
        tmp_path, model, tools=(tool("look", says_nothing), tool("find", says_nothing))
    ) as console:
        lisbon = await console.titled("Lisbon")
        await console.ask("two")
        await console.ask("thr\x1bee")
        ticket = (await console.say("four"), await console.lifecycle.begin_turn(CLI))[1]
        assert ticket is not None
        await console.lifecycle.commit_turn(ticket, [], None, interrupted=True)
        session = await console.session(lisbon)
        seen = await console.store.read(lambda uow: recap(uow, session))
        assert (seen.session_id, seen.title, seen.turns, seen.active_at) == (lisbon, "Lisbon", 4, session.active_at)
        two, three, four = seen.last_turns
        assert two == RecapTurn("two", "answer two")
        assert three.question == "thr ee"
        assert three.answer.startswith("answer three and more")
        assert len(three.answer) <= 400
        assert three.answer.endswith("...")
        assert three.tools == (("look", 2), ("find", 1))
        assert four == RecapTurn("", "", (), TurnStatus.INTERRUPTED)
        assert len((await console.store.read(lambda uow: recap(uow, session, 1))).last_turns) == 1
        assert (await console.store.read(lambda uow: recap(uow, session, 0))).last_turns == ()
        words = format_recap(seen)
        assert words.startswith("4 turns, last active 20")
        assert "  [look x2, find]\n" in words
        assert words.endswith("(interrupted)")


async def test_resume_brings_the_recap_along_and_its_text_is_as_before(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        lisbon = await console.titled("Lisbon")
        await console.order("/branch")
        branch = (await console.at(CLI)).session_id
        await console.order("/new")
        said = await console.order(f"/resume {branch}")
        assert said.recap is not None
        # A branch has said nothing of its own yet: what it shows is its parent's.
        assert (said.recap.session_id, said.recap.turns) == (branch, 1)
        assert said.recap.last_turns == (RecapTurn("about Lisbon", "fine"),)
        assert 'Resumed "Lisbon #2", 1 turn.\n' in said.text
        assert await recap_current(console.desk()) == said.recap
        assert await recap_current(console.desk(owner="them")) is None
        assert await recap_current(console.desk(TELEGRAM)) is None
        assert lisbon != branch


async def test_a_recap_reads_no_turns_but_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from everthread.store import turns

    async with CommandFixture(tmp_path) as console:
        for number in range(30):
            turn = await console.turn(CLI, f"message {number}")
        session = await console.session(turn.ref.session_id)
        read: list[str] = []
        message = turns._message  # noqa: SLF001 - to count what is read

        def counting(*row: str) -> object:
            read.append(row[1])
            return message(*row)  # type: ignore[arg-type]

        monkeypatch.setattr(turns, "_message", counting)
        seen = await console.store.read(lambda uow: recap(uow, session))
        assert [exchange.question for exchange in seen.last_turns] == ["message 27", "message 28", "message 29"]
        assert len(read) <= 6


async def test_a_message_that_was_set_aside_is_in_the_recap_and_in_the_export_and_says_so(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        lisbon = await console.titled("Lisbon")
        await console.say("a second question")
        await console.order("/new")
        said = await console.order(f"/resume {lisbon}")
        assert said.recap is not None
        assert said.recap.turns == 1
        aside = RecapTurn("a second question", "", (), TurnStatus.SET_ASIDE)
        assert said.recap.last_turns == (RecapTurn("about Lisbon", "fine"), aside)
        assert format_recap(said.recap).endswith("> a second question\n  (set aside, not answered)")
        document = (await console.order("/export")).document
        assert document is not None
        assert document.text.rstrip().endswith("**You:**\n\na second question\n\n*(set aside, not answered)*")
        # Many of them do not push out what was answered.
        for number in range(5):
            await console.say(f"more {number}")
        await console.order("/new")
        session = await console.session(lisbon)
        seen = await console.store.read(lambda uow: recap(uow, session))
        assert [one.question for one in seen.last_turns] == ["about Lisbon", "more 2", "more 3", "more 4"]


async def test_a_recap_has_what_was_set_aside_also_where_nothing_was_answered(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.order("/new Lisbon")
        lisbon = (await console.at(CLI)).session_id
        await console.say("a first question")
        await console.order("/new")
        session = await console.session(lisbon)
        seen = await console.store.read(lambda uow: recap(uow, session))
        assert seen.last_turns == (RecapTurn("a first question", "", (), TurnStatus.SET_ASIDE),)


# --- /resume and the nearest -----------------------------------------------------------------------------------------


async def test_resume_alone_offers_what_it_lists(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        lisbon, porto = await console.titled("Lisbon"), await console.titled("Porto")
        await console.order("/new")
        said = await console.order("/resume")
        assert [offer.command for offer in said.menu] == [f"/resume {porto}", f"/resume {lisbon}"]
        assert said.menu[0].label.startswith("Porto  2")
        assert "  1  " in said.text


async def test_resume_alone_offers_untitled_ones_by_their_first_words(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        said = (await console.ask("where is\nthe train?")).committed.ref.session_id
        await console.ask("and the plane?")
        await console.order("/new")
        undone = (await console.ask("taken back")).committed.ref.session_id
        await console.order("/undo")
        await console.ask("kept")
        await console.order("/new")
        aside = (await console.at(CLI)).session_id
        await console.say("never answered")
        await console.order("/new")
        # Cut off in the middle of its first answer: nothing of it is committed.
        await console.say("cut off")
        running = await console.lifecycle.begin_turn(CLI)
        assert running is not None
        offered = await console.order("/resume", TELEGRAM)
        assert [(offer.label.rpartition("  ")[0], offer.command) for offer in offered.menu] == [
            ('"cut off"', f"/resume {running.ref.session_id}"),
            ('"never answered"', f"/resume {aside}"),
            ('"kept"', f"/resume {undone}"),
            ('"where is the train?"', f"/resume {said}"),
        ]
        assert "  4  " in offered.text
        assert (await console.order("/resume 4", TELEGRAM)).ok
        assert (await console.at(TELEGRAM)).session_id == said


async def test_resume_alone_offers_many_and_no_empty_one(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        assert (await console.order("/resume")).text == "There is no other session yet. /new starts one."
        for number in range(60):
            await console.order("/new")
            await console.turn(CLI, f"message {number}")
        await console.order("/new")
        await console.order("/new")
        said = await console.order("/resume")
        assert len(said.menu) == 50
        assert said.menu[0].label.startswith('"message 59"  2')
        assert (await console.order("/resume 50")).ok


async def test_a_wrong_title_is_answered_with_the_nearest(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        lisbon = await console.titled("Trip to Lisbon")
        await console.titled("Groceries")
        said = await console.order("/resume Trip to Lisbn")
        assert not said.ok
        assert said.text == (
            'There is no session "Trip to Lisbn". Did you mean "Trip to Lisbon"? /sessions lists yours.'
        )
        assert [(offer.label, offer.command) for offer in said.menu] == [("Trip to Lisbon", f"/resume {lisbon}")]
        said = await console.order("/resume zzzzzz")
        assert said.menu == ()
        assert "Did you mean" not in said.text


async def test_an_ambiguous_beginning_offers_those_that_it_fits_with_their_titles(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        lisbon = await console.titled("Lisbon")
        await console.order("/new")
        here = (await console.at(CLI)).session_id
        said = await console.order(f"/resume {console.holder}")
        assert not said.ok
        assert "'Lisbon'" in said.text
        assert [(offer.label, offer.command) for offer in said.menu] == [
            ("Lisbon", f"/resume {lisbon}"),
            (here, f"/resume {here}"),
        ]


async def test_a_title_that_is_taken_is_answered_with_one_that_is_free(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.titled("Lisbon")
        await console.order("/branch")
        await console.titled("Porto")
        await console.refuses("/title lisbon", "already called", "say 'lisbon #3'")
        await console.refuses("/new Lisbon", "already called", "say 'Lisbon #3'")
        await console.refuses("/title Porto", 'The title is already "Porto"')
        assert (await console.order("/title porto")).ok


async def test_undo_says_if_there_was_less_than_asked_for(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.ask("one")
        await console.ask("two")
        assert "There were only 2." in (await console.order("/undo 5")).text
        await console.ask("three")
        assert "only" not in (await console.order("/undo")).text


# --- Completion ------------------------------------------------------------------------------------------------------


async def test_commands_are_completed_by_their_beginning(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        found = await candidates(console.desk(), "/re")
        assert [(one.text, one.start) for one in found] == [("/reset", 3), ("/resume", 3), ("/retry", 3)]
        assert found[0].note == "Same as /new."
        names = [f"/{name}" for command in COMMANDS for name in (command.name, *command.aliases)]
        assert [one.text for one in await candidates(console.desk(), "/")] == names[:CANDIDATES_MAX]
        assert [one.text for one in await candidates(console.desk(), "/EXI")] == ["/exit"]
        assert [(one.text, one.start) for one in await candidates(console.desk(), "/help /st")] == [
            ("/stop", 3),
            ("/steer", 3),
            ("/status", 3),
        ]
        assert [one.text for one in await candidates(console.desk(), "/help us")] == ["usage"]
        assert [one.text for one in await candidates(console.desk(), "/memory ")][:2] == ["add", "remove"]
        assert [(one.text, one.start) for one in await candidates(console.desk(), "/memory r")] == [("remove", 1)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        " /new",
        "/nothing",
        "/new ti",
        "/usr/bin/",
        "/resume \n",
        "/" + "x" * 10_000_000,
        "//",
        "/\ud800 x",
        "/resume \ud800",
    ],
)
async def test_what_is_no_command_is_not_completed(tmp_path: Path, text: str) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.titled("Lisbon")
        assert not await candidates(console.desk(), text)


async def test_titles_and_ids_are_completed_after_resume(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        lisbon, porto = await console.titled("Trip to Lisbon"), await console.titled("Trip to Porto")
        gone = await console.titled("Trip to nowhere")
        await console.lifecycle.forget(ForgetSession(gone), owner=ME)
        await console.titled("Trip of theirs", TELEGRAM, owner="them")
        desk = console.desk()
        assert [one.text for one in await candidates(desk, "/resume ")] == ["Trip to Porto", "Trip to Lisbon"]
        found = await candidates(desk, "/resume tRIP to")
        assert [(one.text, one.start) for one in found] == [("Trip to Lisbon", 7), ("Trip to Porto", 7)]
        assert found[0].note.startswith("20")
        # What is in the middle of a title is found if none begins with it.
        assert [one.text for one in await candidates(desk, "/resume lisb")] == ["Trip to Lisbon"]
        by_id = await candidates(desk, f"/resume {lisbon}")
        assert by_id == [Candidate(lisbon, len(lisbon), "Trip to Lisbon")]
        assert {one.text for one in await candidates(desk, f"/resume {console.holder}")} == {lisbon, porto}
        assert not await candidates(desk, "/resume zzz")


async def test_models_are_completed_after_model(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        desk = replace(
            console.desk(), known_models=("anthropic/sonnet", "openai/gpt-5", "openrouter/sonnet", "lab/openchat")
        )
        assert [one.text for one in await candidates(desk, "/model ")] == list(desk.known_models)
        assert [(one.text, one.start) for one in await candidates(desk, "/model Open")] == [
            ("openai/gpt-5", 4),
            ("openrouter/sonnet", 4),
        ]
        assert [one.text for one in await candidates(desk, "/model sonn")] == ["anthropic/sonnet", "openrouter/sonnet"]


async def test_a_store_that_fails_completes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with CommandFixture(tmp_path) as console:

        async def busy(*_: object) -> None:
            raise StoreBusy("another program holds the write lock; try again")

        monkeypatch.setattr(console.store, "read", busy)
        assert not await candidates(console.desk(), "/resume x")


@pytest.mark.parametrize("titled_every", [1, 2, 400])
async def test_completion_stays_fast_and_short_with_ten_thousand_sessions(tmp_path: Path, titled_every: int) -> None:
    def fill(uow: UnitOfWork) -> None:
        for n in range(10_000):
            title = None if n % titled_every else f"Trip number {n * 7919 % 10007}"
            session = Session(f"01J{n:07}", ME, CLI, SessionKind.CHAT, Cause.NEW, n, title=title, active_at=n)
            uow.sessions.add(session)

    async with CommandFixture(tmp_path) as console:
        await console.store.write(fill)
        for text in ("/resume ", "/resume t", "/resume trip number 12", "/resume number", "/resume 01J0", "/resume zz"):
            times: list[float] = []
            for _ in range(9):
                began = time.perf_counter()
                found = await candidates(console.desk(), text)
                times.append(time.perf_counter() - began)
            assert len(found) <= CANDIDATES_MAX
            # The fastest of several: the machine may be busy with something else.
            assert min(times) < 0.005, text
