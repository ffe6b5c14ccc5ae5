"""Turns from other clients: the newest are shown and the others are counted."""

from __future__ import annotations

from pathlib import Path

from tests.agent_runtime import CLI, AgentFixture
from tests.fake_model import FakeModel

from everthread.cli.chat.other_clients import TURNS_MAX, OtherClients


async def test_the_newest_turns_of_other_clients_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["fine"])) as core:
        await core.ask("before")
        others = OtherClients(core.store, CLI)
        assert not (await others.read_new()).turns
        for number in range(TURNS_MAX + 3):
            ended = await core.ask(f"question {number}")
        others.mark_own(ended.committed.ref.session_id, ended.committed.number)
        new = await others.read_new()
        assert [turn.user_text for turn in new.turns] == [f"question {number}" for number in range(2, 7)]
        assert new.earlier == 2
        await core.ask("one more")
        new = await others.read_new()
        assert ([turn.user_text for turn in new.turns], new.earlier) == (["one more"], 0)
