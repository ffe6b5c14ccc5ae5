"""`/retry`, `/queue` and `/model`: repeated turns, waiting messages and the choice of a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.agent_runtime import tool
from tests.commands import CommandFixture
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, TELEGRAM, until

from everthread.agent.model_call import ModelChoice
from everthread.domain.boundary import Branch
from everthread.domain.errors import BadConfig, DiskFull
from everthread.domain.model import ToolCall, TurnStatus
from everthread.lifecycle import ForgetSession
from everthread.store.inbox import Inbox

# --- /retry ----------------------------------------------------------------------------------------------------------


async def test_retry_hides_the_last_turn_and_repeats_its_message(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["first", "second", "third"])) as console:
        await console.ask("one")
        session = (await console.ask("two\nlines")).committed.ref.session_id
        said = await console.order("/retry")
        assert said.ok
        assert said.wakes_worker
        assert 'Asking again: "two lines". The previous answer is hidden' in said.text
        ended = await console.agent.answer(CLI, console.options())
        assert ended is not None
        assert ended.text == "third"
        assert "second" not in console.model.sent()
        assert await console.shown(session) == ["one", "two\nlines"]
        assert await console.agent.answer(CLI, console.options()) is None


async def test_retry_stops_the_running_answer_and_asks_again(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["a long answer of many words", "short"], pause_s=0.05)) as console:
        await console.say("tell me")
        answering = asyncio.ensure_future(console.agent.answer(CLI, console.options()))
        await until(lambda: console.model.requests)
        said = await console.order("/retry")
        assert 'Asking again: "tell me". The unfinished answer is hidden' in said.text
        stopped = await answering
        assert stopped is not None
        assert (stopped.committed.status, stopped.problem) == (TurnStatus.HIDDEN, "stopped by /retry")
        ended = await console.agent.answer(CLI, console.options())
        assert ended is not None
        assert ended.text == "short"
        assert await console.shown(ended.committed.ref.session_id) == ["tell me"]


async def test_retry_repeats_every_message_of_a_steered_turn(tmp_path: Path) -> None:
    pause = asyncio.Event()

    async def waits(*_: object) -> str:
        await pause.wait()
        return "done"

    model = FakeModel([ToolCall("c1", "wait", "{}"), "fine"])
    async with CommandFixture(tmp_path, model, tools=(tool("wait", waits),)) as console:
        await console.say("go")
        answering = asyncio.ensure_future(console.agent.answer(CLI, console.options()))
        await until(lambda: any(type(event).__name__ == "ToolBegan" for event in console.heard))
        await console.order("/steer to the left")
        pause.set()
        await answering
        assert 'Asking again: "go to the left"' in (await console.order("/retry")).text


async def test_retry_runs_after_waiting_messages(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.ask("one")
        await console.say("two")
        assert 'It is queued after: "two".' in (await console.order("/retry")).text
        for _ in range(2):
            ended = await console.agent.answer(CLI, console.options())
            assert ended is not None
        assert await console.shown(ended.committed.ref.session_id) == ["two", "one"]


async def test_retry_of_an_empty_conversation_is_refused(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.refuses("/retry", "nothing to retry")
        await console.order("/new")
        await console.refuses("/retry", "nothing to retry")
        assert "The queue is empty" in (await console.order("/queue")).text


async def test_a_branch_retries_an_inherited_turn_and_its_parent_keeps_it(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["first", "second"])) as console:
        parent = (await console.ask("hello")).committed.ref.session_id
        await console.lifecycle.cross(CLI, Branch(), owner=ME)
        assert 'Asking again: "hello"' in (await console.order("/retry")).text
        ended = await console.agent.answer(CLI, console.options())
        assert ended is not None
        assert ended.committed.ref.session_id != parent
        assert [turn.assistant_text for turn in await console.turns(ended.committed.ref.session_id)] == ["second"]
        assert [turn.assistant_text for turn in await console.turns(parent)] == ["first"]


async def test_a_forgotten_turn_is_not_retried_and_nothing_is_hidden(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        parent = (await console.ask("the code is 1234")).committed.ref.session_id
        child = (await console.lifecycle.cross(CLI, Branch(), owner=ME)).ref
        assert child is not None
        await console.lifecycle.forget(ForgetSession(parent), owner=ME)
        before = await console.shown(child.session_id)
        await console.refuses("/retry", "was forgotten")
        assert await console.shown(child.session_id) == before
        assert "The queue is empty" in (await console.order("/queue")).text


async def test_messages_of_another_user_are_not_retried(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.ask("mine")
        await console.refuses("/retry", "no session of yours", owner="them")
        assert await console.shown((await console.at(CLI)).session_id) == ["mine"]


async def test_a_retry_that_cannot_be_accepted_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with CommandFixture(tmp_path) as console:
        session = (await console.ask("one")).committed.ref.session_id

        def full(*_: object) -> None:
            raise DiskFull("there is no room left; free some")

        monkeypatch.setattr(Inbox, "accept", full)
        await console.refuses("/retry", "no room left")
        assert await console.shown(session) == ["one"]


# --- /queue ----------------------------------------------------------------------------------------------------------


async def test_queue_adds_a_message_and_lists_waiting_ones(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        said = await console.order("/queue first\nthing")
        assert said.wakes_worker
        assert 'Queued, next: "first thing"' in said.text
        assert 'Queued, after 1 waiting message: "second"' in (await console.order("/queue second")).text
        assert "Queued, after 2 waiting messages" in (await console.order("/queue third")).text
        listed = (await console.order("/queue")).text
        assert listed.splitlines() == [
            "3 messages waiting, in this order:",
            '  1  "first thing"',
            '  2  "second"',
            '  3  "third"',
        ]
        assert not (await console.order("/queue")).wakes_worker
        for _ in range(3):
            await console.agent.answer(CLI, console.options())
        assert await console.shown((await console.at(CLI)).session_id) == ["first\nthing", "second", "third"]


async def test_queue_does_not_steer_the_running_answer(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["a few words"], pause_s=0.03)) as console:
        await console.say("one")
        answering = asyncio.ensure_future(console.agent.answer(CLI, console.options()))
        await until(lambda: console.model.requests)
        await console.order("/queue two")
        ended = await answering
        assert ended is not None
        assert await console.shown(ended.committed.ref.session_id) == ["one"]
        assert '"two"' in (await console.order("/queue")).text


async def test_a_long_queue_is_listed_in_part_without_messages_of_other_owners(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        for number in range(23):
            await console.say(f"message {number}")
        await console.say("secret", TELEGRAM, owner="them")
        await console.say("theirs", owner="them")
        lines = (await console.order("/queue")).text.splitlines()
        assert lines[0].startswith("23 messages")
        assert lines[-1] == "and 3 more"
        assert len(lines) == 22


# --- /model ----------------------------------------------------------------------------------------------------------

KNOWN = ("anthropic/claude-sonnet-4.5", "openai/gpt-5", "openai/gpt-5-mini", "openrouter/openai/gpt-5")


def asked_by_name(model: str) -> Sequence[ModelChoice]:
    """Resolve any model of a known provider, as a runtime does."""
    name = model or KNOWN[0]
    if name.partition("/")[0] not in ("anthropic", "openai", "openrouter") or "/" not in name:
        raise BadConfig(f"{name!r} is not a model; write PROVIDER/MODEL with one of these providers: anthropic, openai")
    return (ModelChoice(name, name.partition("/")[2], FakeModel()),)


async def test_model_shows_the_current_model_and_offers_the_others(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        said = await console.order("/model", choices=asked_by_name, known_models=KNOWN)
        assert said.text.startswith("The model is anthropic/claude-sonnet-4.5.\n  openai/gpt-5\n")
        assert [offer.command for offer in said.menu] == [f"/model {name}" for name in KNOWN[1:]]
        assert said.model is None
        said = await console.order("/model", choices=asked_by_name, known_models=KNOWN, model="openai/gpt-5")
        assert said.text.startswith("The model is openai/gpt-5.")
        assert "There is no model" in (await console.order("/model")).text


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("openai/gpt-5", "openai/gpt-5"),
        ("OpenAI/GPT-5", "openai/gpt-5"),
        ("gpt-5-mini", "openai/gpt-5-mini"),
        ("openai/gpt-9-of-tomorrow", "openai/gpt-9-of-tomorrow"),
    ],
)
async def test_an_available_model_is_selected_with_a_hint_to_keep_it(tmp_path: Path, wanted: str, chosen: str) -> None:
    async with CommandFixture(tmp_path) as console:
        said = await console.order(f"/model {wanted}", choices=asked_by_name, known_models=KNOWN)
        assert said.ok
        assert said.model == chosen
        assert "in this window only" in said.text
        assert f'model = "{chosen}" in config.toml' in said.text


async def test_an_unavailable_model_is_refused_with_the_nearest_match(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        more = {"choices": asked_by_name, "known_models": KNOWN}
        said = await console.order("/model claude-sonet-4.5", **more)
        assert not said.ok
        assert said.model is None
        assert "'claude-sonet-4.5' is not a model" in said.text
        assert "Did you mean anthropic/claude-sonnet-4.5?" in said.text
        assert [offer.command for offer in said.menu] == ["/model anthropic/claude-sonnet-4.5"]
        # Two providers have this model, so none is guessed.
        said = await console.order("/model gpt-5", **more)
        assert not said.ok
        assert {"/model openai/gpt-5", "/model openrouter/openai/gpt-5"} <= {offer.command for offer in said.menu}
        assert "Did you mean" not in (await console.order("/model zzzzzz", **more)).text
        for wrong in ("x" * 1000, "openai/gpt\x1b[2J"):
            said = await console.order(f"/model {wrong}", **more)
            assert not said.ok
            assert said.text == "Invalid model name. /model lists some."
        # The provider may know it, but it may be a typing error.
        said = await console.order("/model openai/gpt-5-mimi", **more)
        assert said.model == "openai/gpt-5-mimi"
        assert "not in the list of known models. Did you mean openai/gpt-5-mini or" in said.text
        assert said.menu == ()


async def test_the_current_model_is_not_selected_again(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        said = await console.order("/model anthropic/claude-sonnet-4.5", choices=asked_by_name, known_models=KNOWN)
        assert not said.ok
        assert said.model is None
        assert "is already the model here" in said.text
