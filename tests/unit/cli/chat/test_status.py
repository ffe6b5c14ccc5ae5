"""The status line, read from a real store."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.chat_worker import ScriptedRuntime

from everthread.agent.turn_options import TurnOptions
from everthread.cli.chat.session import ChatOptions, enter_session
from everthread.cli.chat.status import read_status
from everthread.cli.status_line import Status
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import Inbound, SessionKey


async def _ask(runtime: ScriptedRuntime, key: SessionKey, text: str) -> str:
    await runtime.lifecycle.accept(Inbound(key, runtime.settings.owner, text))
    ended = await runtime.agent.answer(key, TurnOptions(runtime.choices()))
    assert ended is not None
    return ended.committed.ref.session_id


async def test_the_status_follows_the_session_of_the_terminal(tmp_path: Path) -> None:
    async with ScriptedRuntime(Settings(tmp_path), {}) as runtime:
        await runtime.ready()
        key = await enter_session(runtime, ChatOptions())
        before = await read_status(runtime, key, "", {})
        assert before == Status(model="fake/one", context_tokens_max=128_000, memory="memory ok")
        await runtime.lifecycle.cross(key, New("Lisbon"), owner=runtime.settings.owner)
        session_id = await _ask(runtime, key, "hello")
        await runtime.lifecycle.accept(Inbound(key, runtime.settings.owner, "waits"))
        status = await read_status(runtime, key, "fake/two", {session_id: 64})
        assert (status.title, status.model, status.context_tokens, status.waiting) == ("Lisbon", "fake/two", 64, 1)


async def test_the_status_reports_a_missing_model(tmp_path: Path) -> None:
    async with ScriptedRuntime(Settings(tmp_path), {"no_model": True}) as runtime:
        await runtime.ready()
        key = await enter_session(runtime, ChatOptions())
        assert (await read_status(runtime, key, "", {})).model == "no model"
