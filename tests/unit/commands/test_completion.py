"""Completion of commands and their arguments."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.commands import CommandFixture
from tests.runtime import CLI, ME, TELEGRAM

from everthread.commands.completion import CANDIDATES_MAX, Candidate, candidates
from everthread.commands.registry import COMMANDS
from everthread.domain.errors import StoreBusy
from everthread.domain.model import Cause, Session, SessionKind
from everthread.lifecycle import ForgetSession
from everthread.store.unit_of_work import UnitOfWork


async def test_commands_are_completed_by_prefix(tmp_path: Path) -> None:
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
async def test_text_that_is_not_a_command_is_not_completed(tmp_path: Path, text: str) -> None:
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
        # A part of a title matches if no title begins with it.
        assert [one.text for one in await candidates(desk, "/resume lisb")] == ["Trip to Lisbon"]
        by_id = await candidates(desk, f"/resume {lisbon}")
        assert by_id == [Candidate(lisbon, len(lisbon), "Trip to Lisbon")]
        assert {one.text for one in await candidates(desk, f"/resume {console.holder}")} == {lisbon, porto}
        assert not await candidates(desk, "/resume zzz")


async def test_models_are_completed_after_model(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        desk = console.desk(known_models=("anthropic/sonnet", "openai/gpt-5", "openrouter/sonnet", "lab/openchat"))
        assert [one.text for one in await candidates(desk, "/model ")] == list(desk.runtime.known_models())
        assert [(one.text, one.start) for one in await candidates(desk, "/model Open")] == [
            ("openai/gpt-5", 4),
            ("openrouter/sonnet", 4),
        ]
        assert [one.text for one in await candidates(desk, "/model sonn")] == ["anthropic/sonnet", "openrouter/sonnet"]


async def test_a_failing_store_gives_no_completions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            # The fastest of several runs: the machine may be busy.
            assert min(times) < 0.005, text
