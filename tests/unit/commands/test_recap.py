"""The recap of a conversation, as `/resume` shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agent_runtime import says_nothing, tool
from tests.commands import CommandFixture
from tests.fake_model import FakeModel
from tests.runtime import CLI, TELEGRAM

from everthread.commands.recap import RecapTurn, format_tools, recap
from everthread.commands.sessions import recap_current
from everthread.domain.model import ToolCall, TurnStatus


async def test_a_recap_shows_the_last_turns_with_their_tools_and_results(tmp_path: Path) -> None:
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
        assert seen.turns == 4
        assert format_tools(three.tools) == "look x2, find"


async def test_resume_shows_the_recap_after_its_usual_text(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        lisbon = await console.titled("Lisbon")
        await console.order("/branch")
        branch = (await console.at(CLI)).session_id
        await console.order("/new")
        said = await console.order(f"/resume {branch}")
        assert said.recap is not None
        # A branch without turns of its own shows those of its parent.
        assert (said.recap.session_id, said.recap.turns) == (branch, 1)
        assert said.recap.last_turns == (RecapTurn("about Lisbon", "fine"),)
        assert 'Resumed "Lisbon #2", 1 turn.\n' in said.text
        assert await recap_current(console.desk()) == said.recap
        assert await recap_current(console.desk(owner="them")) is None
        assert await recap_current(console.desk(TELEGRAM)) is None
        assert lisbon != branch


async def test_a_recap_reads_only_the_last_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_message_that_was_set_aside_is_marked_in_the_recap_and_the_export(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        lisbon = await console.titled("Lisbon")
        await console.say("a second question")
        await console.order("/new")
        said = await console.order(f"/resume {lisbon}")
        assert said.recap is not None
        assert said.recap.turns == 1
        aside = RecapTurn("a second question", "", (), TurnStatus.SET_ASIDE)
        assert said.recap.last_turns == (RecapTurn("about Lisbon", "fine"), aside)
        document = (await console.order("/export")).document
        assert document is not None
        assert document.text.rstrip().endswith("**You:**\n\na second question\n\n*(set aside, not answered)*")
        # Many such messages do not displace answered turns.
        for number in range(5):
            await console.say(f"more {number}")
        await console.order("/new")
        session = await console.session(lisbon)
        seen = await console.store.read(lambda uow: recap(uow, session))
        assert [one.question for one in seen.last_turns] == ["about Lisbon", "more 2", "more 3", "more 4"]


async def test_a_recap_shows_set_aside_messages_without_any_answered_turn(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.order("/new Lisbon")
        lisbon = (await console.at(CLI)).session_id
        await console.say("a first question")
        await console.order("/new")
        session = await console.session(lisbon)
        seen = await console.store.read(lambda uow: recap(uow, session))
        assert seen.last_turns == (RecapTurn("a first question", "", (), TurnStatus.SET_ASIDE),)
