"""Slash commands: parsing, effects and error messages."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.agent_runtime import AgentFixture
from tests.commands import CommandFixture
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, TELEGRAM, AsyncDiary, until

from everthread.commands.registry import COMMANDS, ParsedCommand, UnknownCommand, parse
from everthread.domain.boundary import New
from everthread.domain.errors import StoreBusy
from everthread.domain.model import TurnStatus
from everthread.lifecycle import ForgetSession

# --- Telling a command from a message --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "",
        "/",
        "/ new",
        "//new",
        "// a comment",
        "/usr/bin",
        "/usr/bin/env python, what is it?",
        "/etc.old",
        "/1",
        " /new",
        "what about /new?",
        "/" + "a" * 40,
        "/新",
        "/x/" + "y" * 10_000_000,
    ],
)
def test_an_ordinary_message_is_not_a_command(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "name", "argument"),
    [
        ("/new", "new", ""),
        ("/NEW", "new", ""),
        ("/new  Trip to  Lisbon ", "new", "Trip to  Lisbon"),
        ("/new@everthread_bot Trip", "new", "Trip"),
        ("/exit", "quit", ""),
        ("/quit\n", "quit", ""),
        ("/steer no,\nthe other one", "steer", "no,\nthe other one"),
        ("/memory add a/b", "memory", "add a/b"),
    ],
)
def test_a_slash_and_a_known_word_is_a_command(text: str, name: str, argument: str) -> None:
    found = parse(text)
    assert isinstance(found, ParsedCommand)
    assert (found.command.name, found.argument) == (name, argument)


@pytest.mark.parametrize(
    ("text", "near"), [("/rest", "/reset"), ("/sesions", "/sessions"), ("/exti now", "/exit"), ("/tmp", "/help")]
)
def test_a_mistyped_command_is_answered_with_the_nearest_one(text: str, near: str) -> None:
    found = parse(text)
    assert isinstance(found, UnknownCommand)
    assert near in found.answer
    assert "space before it" in found.answer
    assert "\n" not in found.answer


def test_every_command_is_parsed_by_name_and_has_one_line_of_help() -> None:
    names = [name for command in COMMANDS for name in (command.name, *command.aliases)]
    assert len(set(names)) == len(names)
    for command in COMMANDS:
        found = parse(f"/{command.name}")
        assert isinstance(found, ParsedCommand)
        assert found.command is command
        assert command.usage.startswith(f"/{command.name}")
        assert command.help
        assert "\n" not in command.help


def test_only_some_commands_wait_for_the_running_answer() -> None:
    assert {command.name for command in COMMANDS if not command.skips_queue} == {
        "title",
        "sessions",
        "memory",
        "export",
        "compress",
    }


def test_the_reference_contains_the_current_command_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "slash-commands.md").read_text()
    rows = re.findall(r"^\| `(/(?:[^`\\]|\\.)*)` \| (.+) \| (at once|in its turn) \|$", page, re.MULTILINE)
    told = [(usage.replace("\\|", "|"), acts == "at once") for usage, _, acts in rows]
    assert told == [(command.usage, command.skips_queue) for command in COMMANDS]
    for command, (_, text, _) in zip(COMMANDS, rows, strict=True):
        assert all(f"`/{alias}`" in text for alias in command.aliases)


async def test_help_fits_the_width_of_a_terminal(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        lines = (await console.order("/help")).text.splitlines()
        assert len(lines) == len(COMMANDS)
        for command, line in zip(COMMANDS, lines, strict=True):
            assert line.startswith(command.usage)
            assert line.endswith(command.help)
            assert len(line) <= 80 or len(command.usage) > 24


# --- Moving between conversations ------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["new", "reset"])
async def test_new_names_the_previous_conversation_and_the_way_back(tmp_path: Path, word: str) -> None:
    async with CommandFixture(tmp_path) as console:
        first = (await console.ask("hello")).committed.ref.session_id
        said = await console.order(f"/{word} Trip to Lisbon")
        here = await console.at(CLI)
        assert here.session_id != first
        assert said.text.startswith('Started a new session: "Trip to Lisbon".\n')
        assert f"You left {first}. To return: /resume {first}" in said.text
        back = await console.order(f"/resume {first}")
        assert "1 turn." in back.text
        assert back.recap is not None
        assert [exchange.question for exchange in back.recap.last_turns] == ["hello"]
        assert "To return: /resume Trip to Lisbon" in back.text


async def test_the_first_conversation_has_no_previous_one(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        said = await console.order("/new")
        assert said.ok
        assert "left" not in said.text


async def test_an_invalid_or_used_title_is_refused_and_the_session_stays(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        session = await console.titled("Lisbon")
        for word in ("new", "reset", "branch"):
            await console.refuses(f"/{word} lisbon", "already called")
            await console.refuses(f"/{word} {'x' * 101}", "shorten it")
        assert (await console.at(CLI)).session_id == session


async def test_a_boundary_stops_the_running_answer_and_names_set_aside_messages(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["a long answer of many words"], pause_s=0.05)) as console:
        await console.say("one")
        answering = asyncio.ensure_future(console.agent.answer(CLI, console.options()))
        await until(lambda: any(type(event).__name__ == "TextWritten" for event in console.heard))
        left = (await console.at(CLI)).session_id
        await console.say("two")
        said = await console.order("/new")
        assert "was stopped" in said.text
        assert 'Set aside without an answer: "two"' in said.text
        ended = await answering
        assert ended is not None
        assert (ended.committed.ref.session_id, ended.committed.status) == (left, TurnStatus.LATE)
        assert ended.problem == "stopped by /new"
        assert await console.agent.answer(CLI, console.options()) is None


async def test_a_boundary_keeps_a_turn_that_another_key_runs_in_the_session(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["a few words only"], pause_s=0.03)) as console:
        session = await console.titled("Shared")
        await console.order("/resume Shared", TELEGRAM)
        await console.say("from afar", TELEGRAM)
        answering = asyncio.ensure_future(console.agent.answer(TELEGRAM, console.options()))
        await until(lambda: console.model.requests[1:])
        said = await console.order("/new")
        assert "stopped" not in said.text
        ended = await answering
        assert ended is not None
        assert (ended.text, ended.problem) == ("a few words only", "")
        assert ended.committed.ref.session_id == session


async def test_resume_finds_a_session_by_title_id_and_prefix(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        lisbon = await console.titled("Lisbon")
        porto = await console.titled("Porto")
        for wanted, session in (("lisbon", lisbon), (porto, porto), (lisbon[:-1], lisbon)):
            said = await console.order(f"/resume {wanted}")
            if wanted == lisbon[:-1] and not said.ok:
                # Ids of one store share a prefix.
                assert "matches" in said.text
                continue
            assert said.ok, said.text
            assert (await console.at(CLI)).session_id == session


async def test_resume_lists_titled_conversations_and_accepts_their_numbers(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        assert "no other session" in (await console.order("/resume")).text
        lisbon = await console.titled("Lisbon")
        await console.titled("Porto")
        await console.order("/new")
        await console.ask("untitled")
        before = await console.at(CLI)
        said = await console.order("/resume")
        assert [line.split()[0] for line in said.text.splitlines()[:2]] == ["1", "2"]
        assert [line.split()[-1] for line in said.text.splitlines()[:2]] == ["Porto", "Lisbon"]
        assert await console.at(CLI) == before
        await console.order("/resume 2")
        assert (await console.at(CLI)).session_id == lisbon
        await console.refuses("/resume 9", "no session", "/sessions")


async def test_resume_explains_a_refusal(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.titled("Lisbon")
        await console.refuses("/resume Lisbon", "already")
        await console.refuses("/resume Nowhere", "no session", "/sessions")
        await console.refuses(f"/resume {'x' * 1000}", "too long")
        theirs = await console.titled("Secret", TELEGRAM, owner="them")
        await console.refuses("/resume Secret", "no session")
        await console.refuses(f"/resume {theirs}", "no session")
        gone = await console.titled("Gone")
        await console.order("/new")
        await console.lifecycle.forget(ForgetSession(gone), owner=ME)
        await console.refuses("/resume Gone", "no session")
        await console.refuses(f"/resume {gone}", "no session")


async def test_an_ambiguous_prefix_is_refused_with_examples(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        one = await console.titled("Lisbon")
        two = await console.titled("Porto")
        common = next(one[:n] for n in range(len(one), 0, -1) if two.startswith(one[:n]))
        assert len(common) >= 4
        await console.refuses(f"/resume {common}", "matches 2 sessions", one, two)


async def test_s23_a_branch_has_the_history_of_its_parent_and_both_continue_separately(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        parent = await console.titled("Lisbon")
        said = await console.order("/branch")
        child = (await console.at(CLI)).session_id
        assert 'you are now in "Lisbon #2", a copy with all' in said.text
        # The title would select the newer session, so the way back is the id.
        assert f"To return: /resume {parent}" in said.text
        await console.ask("only the child")
        assert "about Lisbon" in console.model.sent()
        assert (await console.order(f"/resume {parent}")).ok
        await console.ask("only the parent")
        assert "only the child" not in console.model.sent()
        assert await console.shown(child) == ["about Lisbon", "only the child"]
        assert await console.shown(parent) == ["about Lisbon", "only the parent"]


async def test_branch_and_undo_are_refused_in_an_empty_conversation(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.refuses("/branch", "Send a message first")
        await console.refuses("/undo", "nothing to undo")
        await console.order("/new")
        await console.refuses("/undo 3", "nothing to undo")


async def test_undo_hides_the_given_number_of_turns(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        for text in ("one", "two", "three", "four"):
            session = (await console.ask(text)).committed.ref.session_id
        assert 'Undid 1 turn, from "four"' in (await console.order("/undo")).text
        assert 'Undid 2 turns, from "two"' in (await console.order("/undo 2")).text
        assert await console.shown(session) == ["one"]
        assert "Undid 1 turn" in (await console.order("/undo 999999")).text
        for wrong in ("0", "-1", "two", "1.5", "9" * 30):
            await console.refuses(f"/undo {wrong}", "from 1")


async def test_undo_stops_the_running_answer(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["a long answer of many words"], pause_s=0.05)) as console:
        await console.say("oops")
        answering = asyncio.ensure_future(console.agent.answer(CLI, console.options()))
        await until(lambda: console.model.requests)
        said = await console.order("/undo")
        assert "Undid the unfinished answer." in said.text
        ended = await answering
        assert ended is not None
        assert ended.committed.status is TurnStatus.HIDDEN
        assert await console.shown(ended.committed.ref.session_id) == []


async def test_sessions_lists_the_newest_and_marks_the_current_one(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        assert "no sessions yet" in (await console.order("/sessions")).text
        lisbon = await console.titled("Lisbon")
        porto = await console.titled("Porto")
        await console.titled("Theirs", TELEGRAM, owner="them")
        lines = (await console.order("/sessions")).text.splitlines()
        assert lines[0].startswith(f"* {porto}")
        assert lines[1].startswith(f"  {lisbon}")
        assert "1 turn " in lines[1]
        assert not any("Theirs" in line for line in lines)


# --- The current conversation ----------------------------------------------------------------------------------------


async def test_a_title_is_set_shown_and_refused_if_it_is_used(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.refuses("/title Lisbon", "no session here yet")
        await console.titled("Porto")
        await console.order("/new")
        assert "no title. Set one" in (await console.order("/title")).text
        assert (await console.order("/title   My   trip ")).text == 'The title is now "My trip".'
        assert (await console.order("/title")).text == 'The title is "My trip".'
        await console.refuses("/title PORTO", "already called")
        await console.refuses("/title \u200b", "empty")


async def test_stop_keeps_the_partial_answer_and_reports_an_idle_session(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["a long answer of many words"], pause_s=0.05)) as console:
        await console.refuses("/stop", "Nothing is running")
        await console.say("one")
        answering = asyncio.ensure_future(console.agent.answer(CLI, console.options()))
        await until(lambda: any(type(event).__name__ == "TextWritten" for event in console.heard))
        assert "kept" in (await console.order("/stop")).text
        ended = await answering
        assert ended is not None
        assert ended.committed.status is TurnStatus.INTERRUPTED
        [turn] = await console.turns(ended.committed.ref.session_id)
        assert turn.user_text == "one"
        assert turn.assistant_text.startswith("a")
        await console.refuses("/stop", "Nothing is running")


async def test_stop_refers_to_the_process_that_runs_the_turn(tmp_path: Path) -> None:
    async with (
        CommandFixture(tmp_path) as console,
        AgentFixture(tmp_path, FakeModel(["slow words"], pause_s=0.2)) as other,
    ):
        await console.titled("Shared")
        await other.lifecycle.cross(TELEGRAM, New(), owner=ME)
        await console.order("/resume Shared", TELEGRAM)
        await other.say("hello", TELEGRAM)
        answering = asyncio.ensure_future(other.agent.answer(TELEGRAM, other.options()))
        await until(lambda: other.model.requests)
        await console.refuses("/stop", "Another process")
        await answering


async def test_a_steering_message_reaches_the_running_turn_or_becomes_the_next_one(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["words and words"], pause_s=0.03)) as console:
        await console.refuses("/steer", "Usage")
        await console.say("one")
        answering = asyncio.ensure_future(console.agent.answer(CLI, console.options()))
        await until(lambda: console.model.requests)
        said = await console.order("/steer the other one")
        assert "next step" in said.text
        assert said.wakes_worker
        await answering
        # The turn had no further step, so the message becomes the next one.
        ended = await console.agent.answer(CLI, console.options())
        assert ended is not None
        assert "the other one" in console.model.sent()
        said = await console.order("/steer and now this")
        assert said.wakes_worker
        assert "next message" in said.text


async def test_a_steering_message_that_is_delivered_twice_is_used_once(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["words and words"], pause_s=0.03)) as console:
        await console.say("one", TELEGRAM)
        answering = asyncio.ensure_future(console.agent.answer(TELEGRAM, console.options()))
        await until(lambda: console.model.requests)
        for _ in range(2):
            said = await console.order("/steer the other one", TELEGRAM, update_id="7", account="bot")
            assert "next step" in said.text
        await answering
        ended = await console.agent.answer(TELEGRAM, console.options())
        assert ended is not None
        assert (await console.turns(ended.committed.ref.session_id))[-1].user_text == "the other one"
        said = await console.order("/steer the other one", TELEGRAM, update_id="7", account="bot")
        assert "already received" in said.text
        assert await console.agent.answer(TELEGRAM, console.options()) is None, "already answered"
        # The same number from another account is a different message.
        said = await console.order("/steer a third one", TELEGRAM, update_id="7", account="other bot")
        assert "next message" in said.text
        assert await console.agent.answer(TELEGRAM, console.options()) is not None


async def test_status_shows_the_session_and_its_activity(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["words and words"], pause_s=0.03), AsyncDiary()) as console:
        assert "no session here yet" in (await console.order("/status")).text
        session = await console.titled("Lisbon")
        said = (await console.order("/status")).text
        assert f'"Lisbon" ({session}), 1 turn' in said
        assert "Nothing is running" in said
        assert "Memory diary:" in said
        await console.say("two")
        answering = asyncio.ensure_future(console.agent.answer(CLI, console.options()))
        await until(lambda: len(console.model.requests) == 2)
        await console.say("three\nwith more lines")
        said = (await console.order("/status")).text
        assert "being written" in said
        assert '1 message waiting: "three with more lines"' in said
        await answering


async def test_help_lists_all_commands_and_explains_one(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        lines = (await console.order("/help")).text.splitlines()
        assert len(lines) == len(COMMANDS)
        assert "/exit" in (await console.order("/help /quit")).text
        assert "Undo the last turn" in (await console.order("/help undo")).text
        await console.refuses("/help rest", "/reset")
        await console.refuses("/help a/b", "/help")
        assert (await console.order("/quit")).quits
        assert (await console.order("/exit")).quits


async def test_help_omits_commands_that_the_user_may_not_use(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        text = (await console.order("/help", hidden_commands=("model", "quit"))).text
        assert len(text.splitlines()) == len(COMMANDS) - 2
        assert "/model" not in text
        said = await console.order("/help exit", hidden_commands=("model", "quit"))
        assert not said.ok
        assert "Leave" not in said.text


# --- Errors ----------------------------------------------------------------------------------------------------------


async def test_a_store_error_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with CommandFixture(tmp_path) as console:

        async def busy(*_: object, **__: object) -> None:
            raise StoreBusy("another program holds the write lock; try again")

        monkeypatch.setattr(console.lifecycle, "cross", busy)
        await console.refuses("/new", "Another program holds", "try again")


async def test_another_owner_of_the_same_key_sees_nothing_of_the_session(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.titled("Lisbon")
        await console.refuses("/title", "no session here yet", owner="them")
        await console.refuses("/undo", "no session of yours", owner="them")
        await console.refuses("/stop", "Nothing is running", owner="them")
        assert "Lisbon" not in (await console.order("/status", owner="them")).text
