"""Large texts are searched for forgotten words while another process may write."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import CLI, ME, TELEGRAM, CoreFixture

from everthread.domain.forgotten_words import ForgottenWords, Mark, Span
from everthread.domain.model import Inbound, Message, Role
from everthread.lifecycle import ForgetFact, TurnClaim
from everthread.store.incidents import Incident

FACT, OTHER = "the gate code is 4711", "the key is under the mat"
LARGE = f"{'so it is. ' * 50_000}{FACT}, {OTHER}"
WAIT_S_MAX = 10.0


async def forget(core: CoreFixture, fact: str) -> None:
    note = await core.note(fact)
    await core.lifecycle.forget(ForgetFact(note.note_id), owner=ME)


async def begin(core: CoreFixture) -> TurnClaim:
    await core.lifecycle.accept(Inbound(CLI, ME, "hello"))
    claim = await core.lifecycle.begin_turn(CLI)
    assert claim is not None
    return claim


@pytest.fixture
def before_search(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Coroutine[Any, Any, None]]], None]:
    """Do something in the event loop before a large text is searched the first time, and wait until it is done."""
    find = ForgottenWords.find

    def plan(action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        loop, waiting = asyncio.get_running_loop(), [action]

        def find_later(self: ForgottenWords, text: str) -> dict[Span, Mark]:
            if len(text) > 100_000 and waiting:
                done = asyncio.run_coroutine_threadsafe(waiting.pop()(), loop)
                concurrent.futures.wait([done], timeout=WAIT_S_MAX)
                assert done.done(), "the search holds the write lock"
                done.result()
            return find(self, text)

        monkeypatch.setattr(ForgottenWords, "find", find_later)

    return plan


async def test_another_process_writes_while_the_texts_of_a_turn_are_searched(
    tmp_path: Path, before_search: Callable[..., None]
) -> None:
    async with CoreFixture(tmp_path) as core, CoreFixture(tmp_path) as elsewhere:
        claim = await begin(core)
        await forget(core, FACT)
        searched: list[str] = []

        async def write() -> None:
            await elsewhere.lifecycle.accept(Inbound(TELEGRAM, ME, "meanwhile"))
            searched.append("yes")

        before_search(write)
        messages = [Message(Role.USER, "hello"), Message(Role.ASSISTANT, LARGE, reasoning=LARGE)]
        committed = await core.lifecycle.commit_turn(claim, messages, LARGE)
        assert searched
        assert committed.reply is not None
        erased = LARGE.replace(FACT, "[forgotten]")
        assert committed.reply.text == erased
        turn = await core.store.read(lambda uow: uow.turns.get(claim.ref.session_id, 1))
        assert turn is not None
        assert (turn.messages[1].content, turn.messages[1].reasoning) == (erased, erased)
        assert await core.store.read(lambda uow: uow.erasure.scrubber.find(FACT, ME)) == ()


async def test_a_fact_that_is_forgotten_during_the_search_is_erased_too(
    tmp_path: Path, before_search: Callable[..., None]
) -> None:
    async with CoreFixture(tmp_path) as core, CoreFixture(tmp_path) as elsewhere:
        claim = await begin(core)
        await forget(core, FACT)
        before_search(lambda: forget(elsewhere, OTHER))
        arguments = await core.lifecycle.start_tool(claim, "c1", "look", LARGE)
        assert arguments.endswith("so it is. [forgotten], [forgotten]")
        await core.lifecycle.finish_tool(claim, "c1", "done")
        for fact in (FACT, OTHER):
            assert await core.store.read(lambda uow, fact=fact: uow.erasure.scrubber.find(fact, ME)) == ()


async def test_the_answer_of_a_command_is_searched_outside_the_transaction(
    tmp_path: Path, before_search: Callable[..., None]
) -> None:
    async with CoreFixture(tmp_path) as core, CoreFixture(tmp_path) as elsewhere:
        row, _ = await core.lifecycle.accept(Inbound(TELEGRAM, ME, "/notes", command=True))
        await forget(core, FACT)
        before_search(lambda: forget(elsewhere, OTHER))
        reply = await core.lifecycle.answer_command(row, LARGE, 0)
        assert reply is not None
        assert reply.text.endswith("so it is. [forgotten], [forgotten]")


async def test_results_of_a_search_are_used_by_no_other_unit_of_work(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        claim = await begin(core)
        await forget(core, FACT)
        await core.lifecycle.draft_reply(claim, LARGE)
        assert not await core.store.write(lambda uow: uow.erasure.found)
        # A reader has no transaction that others wait for.
        text = await core.store.read(lambda uow: uow.erasure.erase_facts(LARGE, ME))
        assert text == LARGE.replace(FACT, "[forgotten]")
        await core.store.write(lambda uow: uow.incidents.add(Incident(1.0, "lanes", None, LARGE[-200:])))


async def test_a_unit_of_work_with_two_large_texts_ends(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        claim = await begin(core)
        await forget(core, FACT)
        async with asyncio.timeout(WAIT_S_MAX):
            await core.lifecycle.record_delegation(claim.ref, "do this. " * 6000, "done so. " * 6000, "child")
