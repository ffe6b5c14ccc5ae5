"""`/retry`, `/queue`, `/model` and `/usage`: what is asked, of whom, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.agent_runtime import tool
from tests.commands import Office
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, TELEGRAM, until

from everthread.agent.model_call import ModelChoice
from everthread.domain.boundary import Branch
from everthread.domain.errors import BadConfig, DiskFull
from everthread.domain.model import ToolCall, TurnStatus
from everthread.domain.spend import Price
from everthread.lifecycle import ForgetSession
from everthread.store.inbox import Inbox

# --- /retry ----------------------------------------------------------------------------------------------------------


async def test_retry_hides_the_last_turn_and_asks_the_same_again(tmp_path: Path) -> None:
    async with Office(tmp_path, FakeModel(["first", "second", "third"])) as office:
        await office.ask("one")
        session = (await office.ask("two\nlines")).committed.ref.session_id
        said = await office.order("/retry")
        assert said.ok
        assert said.wakes_worker
        assert 'Asking again: "two lines". The previous answer is hidden' in said.text
        ended = await office.agent.answer(CLI, office.manner())
        assert ended is not None
        assert ended.text == "third"
        assert "second" not in office.model.sent()
        assert await office.shown(session) == ["one", "two\nlines"]
        assert await office.agent.answer(CLI, office.manner()) is None


async def test_retry_stops_the_answer_that_is_being_written_and_asks_again(tmp_path: Path) -> None:
    async with Office(tmp_path, FakeModel(["a long answer of many words", "short"], pause_s=0.05)) as office:
        await office.say("tell me")
        answering = asyncio.ensure_future(office.agent.answer(CLI, office.manner()))
        await until(lambda: office.model.requests)
        said = await office.order("/retry")
        assert 'Asking again: "tell me". The unfinished answer is hidden' in said.text
        stopped = await answering
        assert stopped is not None
        assert (stopped.committed.status, stopped.problem) == (TurnStatus.HIDDEN, "stopped by /retry")
        ended = await office.agent.answer(CLI, office.manner())
        assert ended is not None
        assert ended.text == "short"
        assert await office.shown(ended.committed.ref.session_id) == ["tell me"]


async def test_retry_says_all_that_a_steered_turn_was_told(tmp_path: Path) -> None:
    pause = asyncio.Event()

    async def waits(*_: object) -> str:
        await pause.wait()
        return "done"

    model = FakeModel([ToolCall("c1", "wait", "{}"), "fine"])
    async with Office(tmp_path, model, tools=(tool("wait", waits),)) as office:
        await office.say("go")
        answering = asyncio.ensure_future(office.agent.answer(CLI, office.manner()))
        await until(lambda: any(type(event).__name__ == "ToolBegan" for event in office.heard))
        await office.order("/steer to the left")
        pause.set()
        await answering
        assert 'Asking again: "go to the left"' in (await office.order("/retry")).text


async def test_retry_comes_after_what_waits(tmp_path: Path) -> None:
    async with Office(tmp_path) as office:
        await office.ask("one")
        await office.say("two")
        assert 'It is queued after: "two".' in (await office.order("/retry")).text
        for _ in range(2):
            ended = await office.agent.answer(CLI, office.manner())
            assert ended is not None
        assert await office.shown(ended.committed.ref.session_id) == ["two", "one"]


async def test_there_is_nothing_to_ask_again_at_first(tmp_path: Path) -> None:
    async with Office(tmp_path) as office:
        await office.refuses("/retry", "nothing to retry")
        await office.order("/new")
        await office.refuses("/retry", "nothing to retry")
        assert "The queue is empty" in (await office.order("/queue")).text


async def test_a_branch_asks_again_what_was_said_before_it_and_its_parent_keeps_the_turn(tmp_path: Path) -> None:
    async with Office(tmp_path, FakeModel(["first", "second"])) as office:
        parent = (await office.ask("hello")).committed.ref.session_id
        await office.lifecycle.cross(CLI, Branch(), owner=ME)
        assert 'Asking again: "hello"' in (await office.order("/retry")).text
        ended = await office.agent.answer(CLI, office.manner())
        assert ended is not None
        assert ended.committed.ref.session_id != parent
        assert [turn.assistant_text for turn in await office.turns(ended.committed.ref.session_id)] == ["second"]
        assert [turn.assistant_text for turn in await office.turns(parent)] == ["first"]


async def test_what_was_forgotten_is_not_asked_again_and_nothing_is_hidden(tmp_path: Path) -> None:
    async with Office(tmp_path) as office:
        parent = (await office.ask("the code is 1234")).committed.ref.session_id
        child = (await office.lifecycle.cross(CLI, Branch(), owner=ME)).ref
        assert child is not None
        await office.lifecycle.forget(ForgetSession(parent), owner=ME)
        before = await office.shown(child.session_id)
        await office.refuses("/retry", "was forgotten")
        assert await office.shown(child.session_id) == before
        assert "The queue is empty" in (await office.order("/queue")).text


async def test_somebody_elses_words_are_not_asked_again(tmp_path: Path) -> None:
    async with Office(tmp_path) as office:
        await office.ask("mine")
        await office.refuses("/retry", "no session of yours", owner="them")
        assert await office.shown((await office.at(CLI)).session_id) == ["mine"]


async def test_a_retry_that_can_not_be_taken_in_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Office(tmp_path) as office:
        session = (await office.ask("one")).committed.ref.session_id

        def full(*_: object) -> None:
            raise DiskFull("there is no room left; free some")

        monkeypatch.setattr(Inbox, "accept", full)
        await office.refuses("/retry", "no room left")
        assert await office.shown(session) == ["one"]


# --- /queue ----------------------------------------------------------------------------------------------------------


async def test_queue_adds_a_message_and_lists_what_waits(tmp_path: Path) -> None:
    async with Office(tmp_path) as office:
        said = await office.order("/queue first\nthing")
        assert said.wakes_worker
        assert 'Queued, next: "first thing"' in said.text
        assert 'Queued, after 1 waiting message: "second"' in (await office.order("/queue second")).text
        assert "Queued, after 2 waiting messages" in (await office.order("/queue third")).text
        listed = (await office.order("/queue")).text
        assert listed.splitlines() == [
            "3 messages waiting, in this order:",
            '  1  "first thing"',
            '  2  "second"',
            '  3  "third"',
        ]
        assert not (await office.order("/queue")).wakes_worker
        for _ in range(3):
            await office.agent.answer(CLI, office.manner())
        assert await office.shown((await office.at(CLI)).session_id) == ["first\nthing", "second", "third"]


async def test_queue_does_not_steer_the_answer_that_is_being_written(tmp_path: Path) -> None:
    async with Office(tmp_path, FakeModel(["a few words"], pause_s=0.03)) as office:
        await office.say("one")
        answering = asyncio.ensure_future(office.agent.answer(CLI, office.manner()))
        await until(lambda: office.model.requests)
        await office.order("/queue two")
        ended = await answering
        assert ended is not None
        assert await office.shown(ended.committed.ref.session_id) == ["one"]
        assert '"two"' in (await office.order("/queue")).text


async def test_a_long_queue_is_listed_in_part_and_another_owners_not_at_all(tmp_path: Path) -> None:
    async with Office(tmp_path) as office:
        for number in range(23):
            await office.say(f"message {number}")
        await office.say("secret", TELEGRAM, owner="them")
        await office.say("theirs", owner="them")
        lines = (await office.order("/queue")).text.splitlines()
        assert lines[0].startswith("23 messages")
        assert lines[-1] == "and 3 more"
        assert len(lines) == 22


# --- /model ----------------------------------------------------------------------------------------------------------

KNOWN = ("anthropic/claude-sonnet-4.5", "openai/gpt-5", "openai/gpt-5-mini", "openrouter/openai/gpt-5")


def asked_by_name(model: str) -> Sequence[ModelChoice]:
    """As a runtime does: any model of a provider that it knows."""
    name = model or KNOWN[0]
    if name.partition("/")[0] not in ("anthropic", "openai", "openrouter") or "/" not in name:
        raise BadConfig(f"{name!r} is no model; write PROVIDER/MODEL, with a provider of these: anthropic, openai")
    return (ModelChoice(name, name.partition("/")[2], FakeModel()),)


async def test_model_alone_shows_the_one_that_answers_and_offers_the_others(tmp_path: Path) -> None:
    async with Office(tmp_path) as office:
        said = await office.order("/model", choices=asked_by_name, known_models=KNOWN)
        assert said.text.startswith("The model is anthropic/claude-sonnet-4.5.\n  openai/gpt-5\n")
        assert [offer.command for offer in said.menu] == [f"/model {name}" for name in KNOWN[1:]]
        assert said.model is None
        said = await office.order("/model", choices=asked_by_name, known_models=KNOWN, model="openai/gpt-5")
        assert said.text.startswith("The model is openai/gpt-5.")
        assert "There is no model" in (await office.order("/model")).text


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("openai/gpt-5", "openai/gpt-5"),
        ("OpenAI/GPT-5", "openai/gpt-5"),
        ("gpt-5-mini", "openai/gpt-5-mini"),
        ("openai/gpt-9-of-tomorrow", "openai/gpt-9-of-tomorrow"),
    ],
)
async def test_a_model_that_can_be_asked_is_taken_and_how_to_keep_it_is_said(
    tmp_path: Path, wanted: str, chosen: str
) -> None:
    async with Office(tmp_path) as office:
        said = await office.order(f"/model {wanted}", choices=asked_by_name, known_models=KNOWN)
        assert said.ok
        assert said.model == chosen
        assert "in this window only" in said.text
        assert f'model = "{chosen}" in config.toml' in said.text


async def test_a_model_that_can_not_be_asked_is_answered_with_the_nearest(tmp_path: Path) -> None:
    async with Office(tmp_path) as office:
        more = {"choices": asked_by_name, "known_models": KNOWN}
        said = await office.order("/model claude-sonet-4.5", **more)
        assert not said.ok
        assert said.model is None
        assert "'claude-sonet-4.5' is no model" in said.text
        assert "Did you mean anthropic/claude-sonnet-4.5?" in said.text
        assert [offer.command for offer in said.menu] == ["/model anthropic/claude-sonnet-4.5"]
        # Two providers have it: neither is guessed.
        said = await office.order("/model gpt-5", **more)
        assert not said.ok
        assert {"/model openai/gpt-5", "/model openrouter/openai/gpt-5"} <= {offer.command for offer in said.menu}
        assert "Did you mean" not in (await office.order("/model zzzzzz", **more)).text
        for wrong in ("x" * 1000, "openai/gpt\x1b[2J"):
            said = await office.order(f"/model {wrong}", **more)
            assert not said.ok
            assert said.text == "Invalid model name. /model lists some."
        # Its provider will know; it may still be a slip.
        said = await office.order("/model openai/gpt-5-mimi", **more)
        assert said.model == "openai/gpt-5-mimi"
        assert "not in the list of known models. Did you mean openai/gpt-5-mini or" in said.text
        assert said.menu == ()


async def test_the_model_that_answers_already_is_not_taken_again(tmp_path: Path) -> None:
    async with Office(tmp_path) as office:
        said = await office.order("/model anthropic/claude-sonnet-4.5", choices=asked_by_name, known_models=KNOWN)
        assert not said.ok
        assert said.model is None
        assert "is already the model here" in said.text


# --- /usage ----------------------------------------------------------------------------------------------------------


async def test_usage_tells_what_this_conversation_the_day_and_the_month_came_to(tmp_path: Path) -> None:
    async with Office(tmp_path) as office:
        office.choices = [ModelChoice("lab/big", "big", office.model, Price(10_000, 100_000))]
        await office.ask("long ago")
        office.clock.ahead_s += 40 * 86_400
        await office.order("/new")
        await office.ask("last week")
        office.clock.ahead_s += 7 * 86_400
        await office.order("/new")
        await office.ask("today")
        office.choices = [ModelChoice("lab/free", "free", office.model)]
        await office.ask("today as well")
        await office.ask("a secret", TELEGRAM, owner="them")
        text = (await office.order("/usage", spend_per_day=5.0)).text
        assert text.splitlines() == [
            "This session: 2 calls, 200 tokens read, 20 written, $2.00",
            "  lab/big   1 call, 100 tokens read, 10 written, $2.00",
            "  lab/free  1 call, 100 tokens read, 10 written, no cost known",
            "The last 24 hours: 2 calls, 200 tokens read, 20 written, $2.00",
            "  lab/big   1 call, 100 tokens read, 10 written, $2.00",
            "  lab/free  1 call, 100 tokens read, 10 written, no cost known",
            "The last 30 days: 3 calls, 300 tokens read, 30 written, $4.00",
            "  lab/big   2 calls, 200 tokens read, 20 written, $4.00",
            "  lab/free  1 call, 100 tokens read, 10 written, no cost known",
            "The limit is $5.00 in 24 hours. $3.00 is left.",
        ]
        assert "$0.00 is left" in (await office.order("/usage", spend_per_day=1.0)).text
        await office.order("/new")
        assert (await office.order("/usage")).text.startswith("This session: nothing.\n")


async def test_usage_counts_what_a_compressed_conversation_was_before(tmp_path: Path) -> None:
    async with Office(tmp_path) as office:
        await office.ask("one")
        await office.lifecycle.cross(CLI, await office.compression(CLI), owner=ME)
        await office.ask("two")
        assert "This session: 2 calls" in (await office.order("/usage")).text
        # What a branch is made from is another conversation.
        await office.lifecycle.cross(CLI, Branch(), owner=ME)
        assert "This session: nothing" in (await office.order("/usage")).text


async def test_usage_is_told_where_there_is_no_conversation_and_no_limit(tmp_path: Path) -> None:
    async with Office(tmp_path) as office:
        text = (await office.order("/usage")).text
        assert text.startswith("This session: nothing.")
        assert "There is no limit" in text


@pytest.mark.parametrize(("price", "told"), [(4, "$0.0004"), (0.1, "less than $0.0001"), (20_000, "$2.20")])
async def test_a_small_amount_is_not_told_as_nothing(tmp_path: Path, price: float, told: str) -> None:
    async with Office(tmp_path) as office:
        office.choices = [ModelChoice("lab/cheap", "cheap", office.model, Price(price, price))]
        await office.ask("hello")
        text = (await office.order("/usage")).text
        assert f"This session: 1 call, 100 tokens read, 10 written, {told}, all of lab/cheap" in text
