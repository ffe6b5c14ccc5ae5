"""The input history, read from a real store."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.chat_worker import ScriptedRuntime

from everthread.agent.turn_options import TurnOptions
from everthread.cli.chat.input_history import read_history
from everthread.cli.chat.session import ChatOptions, enter_session
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import Inbound, SessionKey


async def _ask(runtime: ScriptedRuntime, key: SessionKey, text: str) -> str:
    await runtime.lifecycle.accept(Inbound(key, runtime.settings.owner, text))
    ended = await runtime.agent.answer(key, TurnOptions(runtime.choices()))
    assert ended is not None
    return ended.committed.ref.session_id


async def test_the_history_has_each_message_once_newest_first(tmp_path: Path) -> None:
    async with ScriptedRuntime(Settings(tmp_path), {}) as runtime:
        await runtime.ready()
        key = await enter_session(runtime, ChatOptions())
        for text in ("one", "two"):
            await _ask(runtime, key, text)
        await runtime.lifecycle.cross(key, New(), owner=runtime.settings.owner)
        for text in ("one", "three"):
            await _ask(runtime, key, text)
        assert await read_history(runtime.store, runtime.settings.owner) == ["three", "one", "two"]
        assert await read_history(runtime.store, "another owner") == []
