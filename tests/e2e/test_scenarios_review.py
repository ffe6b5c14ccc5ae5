"""The background review with real stores and a real server: its requests and its effects."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import ME, AsyncDiary, until
from tests.terminal_screen import CTRL_D, ENTER, TerminalScreen

from everthread.agent.turn_options import TurnOptions
from everthread.bootstrap.runtime import Runtime
from everthread.commands.memory import format_author
from everthread.commands.note_history import NoteHistory
from everthread.config.schema import ProviderSettings, Settings
from everthread.domain.model import ChatType, Inbound, NoteTarget, SessionKey, ToolCall
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer, Script

TERMINAL = SessionKey("main", "cli", ChatType.DM, "1")
CHAT = SessionKey("main", "telegram", ChatType.DM, "42")
NOTE = {"action": "add", "target": "user", "content": "Sails a boat called Bruno."}
SKILL = {"name": "knots", "description": "How we tie knots.", "body": "Over, under, through."}


def script() -> Script:
    """Script in which a review calls three tools first."""
    calls = ("memory", json.dumps(NOTE)), ("recall", '{"query": "boats"}'), ("skill_write", json.dumps(SKILL))
    steps = iter([tuple(ToolCall(f"c{number}", *call) for number, call in enumerate(calls))])

    def reply(request: Any) -> Say:
        said = str(request)
        if "Name the conversation" in said:
            return Say("A voyage")
        if "[A review." not in said:
            return Say("Aye.")
        calls = next(steps, ())
        return Say(calls=calls) if calls else Say("done")

    return reply


@asynccontextmanager
async def at_home(home: Path, server: ModelServer, kind: Any, *providers: object) -> AsyncIterator[Runtime]:
    settings = Settings(home, model="stub/one", providers={"stub": ProviderSettings(kind, server.base_url)})
    async with Runtime(settings, providers=providers) as runtime:
        assert await runtime.ready() == ()
        yield runtime


async def say(runtime: Runtime, key: SessionKey, *texts: str) -> str:
    for text in texts:
        await runtime.lifecycle.accept(Inbound(key, ME, text))
        ended = await runtime.agent.answer(key, TurnOptions(runtime.choices()))
        assert ended is not None
        assert ended.text == "Aye.", ended.problem
    here = await runtime.lifecycle.current(key)
    assert here is not None
    return here.session_id


def reviews(server: ModelServer) -> list[bytes]:
    return [body for body in server.requests if b"[A review." in body]


@pytest.mark.parametrize("kind", ["openai_compat", "anthropic"])
@pytest.mark.parametrize("key", [TERMINAL, CHAT], ids=["terminal", "chat"])
async def test_s25_a_review_runs_every_ten_turns_with_the_live_prefix_and_the_same_memory(
    tmp_path: Path, kind: str, key: SessionKey
) -> None:
    diary = AsyncDiary()
    said = [f"message {number} of the voyage" for number in range(1, 11)]
    async with ModelServer(script()) as server, at_home(tmp_path, server, kind, diary) as runtime:
        session = await say(runtime, key, *said[:9])
        await asyncio.sleep(0.05)
        assert reviews(server) == []
        await say(runtime, key, said[9])
        await until(lambda: len(reviews(server)) == 2, "there was no review")
        await until(lambda: (tmp_path / "memory" / "USER.md").exists())
        await say(runtime, key, "message 11 of the voyage")
        live = next(body for body in server.requests if b"message 11 of" in body)
        first, second = reviews(server)
        # The next turn and the review share all bytes of the ten turns, including the last answer.
        until_said = live.index(b"message 11 of")
        shared = live[: live.rindex(b"Aye.", 0, until_said) + len(b"Aye.")]
        assert shared.count(b"of the voyage") == 10
        assert first.startswith(shared)
        assert second.startswith(shared)
        assert second.startswith(first[: first.index(b"[A review.")])
        assert b"'recall' was not run" in second

        curator = NoteHistory(runtime, ME)
        skill, change = await curator.log(5)
        assert (change.words, skill.words) == (NOTE["content"], SKILL["description"])
        for written in (change, skill):
            assert format_author(written) == 'a review of turns 1 to 10 of "A voyage"'
            assert written.source.session_id == session
        shown = await runtime.store.read(lambda uow: uow.turns.view(uow.sessions.get(session)))  # type: ignore[arg-type]
        assert [turn.user_text for turn in shown.turns] == [*said, "message 11 of the voyage"]
        await until(lambda: "message 11" in diary.book.words())
        told = [(call.hook, call.text) for call in diary.book.effects]
        assert [text for hook, text in told if hook == "sync_turn"] == [*said, "message 11 of the voyage"]
        assert told.count(("on_memory_write", NOTE["content"])) == 1

        await curator.undo(skill.name)
        assert not (tmp_path / "skills" / "knots").exists()
        await curator.undo(change.name)
        assert await runtime.store.read(lambda uow: uow.notes.current(ME, NoteTarget.USER)) == ()


async def test_s25_a_terminal_user_sees_and_undoes_the_changes_of_a_review(tmp_path: Path) -> None:
    def sit_down(url: str) -> None:
        (tmp_path / "config.toml").write_text(
            f'model = "stub/one"\n[providers.stub]\nbase_url = "{url}"\n[review]\nevery_turns = 1\n'
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERTHREAD_")}
        command = [sys.executable, "-m", "everthread", "--home", str(tmp_path)]
        with TerminalScreen(command, kept, columns=150) as seen:
            seen.expect(r"(?m)^>$")
            seen.type("I sail a boat" + ENTER)
            seen.expect("Aye")
            seen.expect('Review noted: "Sails a boat called Bruno."; the skill knots. /memory log shows it')
            seen.type("/memory log" + ENTER)
            seen.expect('"How we tie knots.", by a review of turn 1 of')
            seen.type("/memory undo" + ENTER)
            seen.expect("Removed again: the skill knots")
            seen.type(CTRL_D)

    async with ModelServer(script()) as server:
        await asyncio.to_thread(sit_down, server.base_url)
    assert not (tmp_path / "skills" / "knots").exists()
