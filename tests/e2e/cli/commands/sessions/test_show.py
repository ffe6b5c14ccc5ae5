"""`everthread sessions show`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.e2e.cli.commands.sessions.sessions_home import TERMINAL, SampleHome, open_session, say
from tests.e2e.commands import everthread, printed

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import Inbound

# --- Show ------------------------------------------------------------------------------------------------------------


def test_show_prints_messages_with_tool_calls_on_one_line(sample: SampleHome) -> None:
    lines = everthread(sample.home, "sessions", "show", sample.lisbon).stdout.splitlines()
    assert lines[0] == f'"Trip to Lisbon" ({sample.lisbon})'
    assert lines[1].startswith("open, 2 turns, opened ")
    assert lines[-5:-3] == ["user:", "  is it warm"]
    assert lines[-3].startswith('tool weather {"city": "Lisbon"} -> sunny and warm and warm')
    assert lines[-3].endswith("...")
    assert lines[-2:] == ["assistant:", "  about is it warm: yes"]


def test_show_full_prints_tool_results(sample: SampleHome) -> None:
    told = everthread(sample.home, "sessions", "show", "trip to lisbon", "--full").stdout
    short = everthread(sample.home, "sessions", "show", sample.lisbon, "--full").stdout
    assert "thought:\n  hm\n" in short
    assert 'tool weather {"city": "Lisbon"}\n  sunny\n  and warm and warm' in short
    assert told.startswith('"Trip to Lisbon'), "a session must be found by its title"


def test_show_marks_inherited_turns_and_omits_undone_ones(sample: SampleHome) -> None:
    shown = printed(sample.home, "sessions", "show", sample.branch)
    assert [(turn["number"], turn["inherited"]) for turn in shown["transcript"]] == [(1, True), (2, True), (3, False)]
    assert "by plane" not in json.dumps(shown)
    text = everthread(sample.home, "sessions", "show", sample.tip).stdout
    assert "Summary of earlier turns:\n  a trip by train\n" in text
    assert "(inherited)" in text


def test_show_marks_messages_set_aside(tmp_path: Path) -> None:
    async def live() -> str:
        async with Runtime(Settings(tmp_path)) as runtime:
            await runtime.start()
            session = await open_session(runtime, TERMINAL, New(), "me")
            await say(runtime, TERMINAL, "me", "hello")
            await runtime.lifecycle.accept(Inbound(TERMINAL, "me", "and then?"))
            await open_session(runtime, TERMINAL, New(), "me")
            return session

    session = asyncio.run(live())
    for more in ([], ["--full"]):
        lines = everthread(tmp_path, "sessions", "show", session, *more).stdout.splitlines()
        assert lines[1].startswith("ended (new), 1 turn and 1 message set aside, opened ")
        assert lines[-3].startswith("[2] ")
        assert lines[-3].endswith(" (set aside, not answered)")
        assert lines[-2:] == ["user:", "  and then?"]
    shown = printed(tmp_path, "sessions", "show", session)
    assert (shown["turns"], shown["set_aside"]) == (1, 1)
    assert [turn["status"] for turn in shown["transcript"]] == ["done", "set_aside"]
