"""A message waits for other turns of its session, and finishes interrupted ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.e2e.chat_home import LONG, Home, Run, expire_leases
from tests.e2e.chat_worker import ScriptedRuntime

from everthread.config.schema import Settings
from everthread.domain.boundary import New, Resume
from everthread.domain.model import SUBAGENT_PLATFORM, ChatType, Inbound, Message, Role, SessionKey, SessionKind


def _kill_during_answer(home: Home) -> None:
    home.set_script(lines=[LONG], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("what was it\n")
        terminal.expect("alpha")
        terminal.process.kill()
    home.set_script()


@pytest.mark.parametrize("arguments", [("-c", "-p", "next"), ("-c",)])
def test_an_interrupted_answer_is_finished_before_the_next_one(home: Home, arguments: tuple[str, ...]) -> None:
    _kill_during_answer(home)
    expire_leases(home)
    done = home.run(*arguments, stdin="" if "-p" in arguments else "next\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "echo next (2 before, 4 characters)\n"
    assert 'Finished an interrupted answer: "what was it"' in done.stderr
    [first, second] = home.turns()
    assert (first.status.value, first.assistant_text) == ("done", "echo what was it (0 before, 11 characters)")
    assert second.user_text == "next"


def test_a_killed_process_is_detected_at_once(home: Home) -> None:
    _kill_during_answer(home)
    done = home.run("-c", "-p", "next")
    assert done.stdout == "echo next (2 before, 4 characters)\n"
    assert "Finished an interrupted answer" in done.stderr
    assert "Another answer is running" not in done.stderr
    assert list((home.path / "processes").iterdir()) == []


def test_an_interrupted_answer_of_another_front_end_is_left_to_it(home: Home, run: Run) -> None:
    session = home.ask("-p", "hello")["session"]
    key = SessionKey("main", "telegram", ChatType.DM, "42")

    async def begin() -> None:
        async with ScriptedRuntime(Settings(home.path), {}) as runtime:
            await runtime.lifecycle.cross(key, Resume(session), owner=runtime.settings.owner)
            await runtime.lifecycle.accept(Inbound(key, runtime.settings.owner, "on the phone"))
            ticket = await runtime.lifecycle.begin_turn(key)
            assert ticket is not None
            await runtime.lifecycle.abandon_turn(ticket)

    asyncio.run(begin())
    done = run("-r", session, "-p", "me too")
    assert (done.returncode, done.stdout) == (75, "")
    assert "telegram" in done.stderr
    assert "set aside" in done.stderr


def test_a_person_who_resumes_delegated_work_is_remembered(home: Home, tmp_path: Path) -> None:
    parent = home.ask("-p", "have it looked up")["session"]
    key = SessionKey("main", SUBAGENT_PLATFORM, ChatType.DM, "1-look")

    async def work() -> str:
        async with ScriptedRuntime(Settings(home.path), {}) as runtime:
            lifecycle, owner = runtime.lifecycle, runtime.settings.owner
            await lifecycle.cross(key, New(kind=SessionKind.SUBAGENT, parent=parent), owner=owner)
            await lifecycle.accept(Inbound(key, owner, "look it up"))
            claim = await lifecycle.begin_turn(key)
            assert claim is not None
            await lifecycle.commit_turn(claim, [Message(Role.USER, "look it up")], "found")
            return claim.ref.session_id

    delegated, diary = asyncio.run(work()), tmp_path / "diary"
    home.set_script(diaries=[str(diary)])
    chat = home.ask("-r", delegated, "-p", "what did you find?")["session"]
    assert chat not in (parent, delegated)
    told = [entry for entry in map(json.loads, diary.read_text().splitlines()) if entry["session"] != parent]
    assert told == [
        {"what": "switch", "session": chat, "parent": delegated, "reset": False, "reason": "branch"},
        {"what": "turn", "session": chat, "user": "what did you find?"},
        {"what": "end", "session": chat, "messages": 3},
    ]
    assert [(turn.user_text, turn.inherited) for turn in home.turns(chat)] == [
        ("look it up", True),
        ("what did you find?", False),
    ]


def test_a_message_waits_for_the_running_answer_of_another_terminal(home: Home) -> None:
    session = home.ask("-p", "hello")["session"]
    home.set_script(lines=[f"{LONG} end", "echo"], pause_s=0.2)
    with home.terminal("-r", session) as one, home.terminal("-r", session) as two:
        two.expect("> ")
        one.type("first\n")
        one.expect("alpha")
        two.type("second\n")
        two.expect("yours follows it")
        one.expect("end")
        two.expect(f"{LONG} end")
        two.expect("> ")
    assert [turn.user_text for turn in home.turns(session)] == ["hello", "first", "second"]


def test_a_prompt_that_waits_too_long_is_set_aside(home: Home, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    session = home.ask("-p", "hello")["session"]
    home.set_script(lines=[LONG], pause_s=0.5)
    with home.terminal("-r", session) as terminal:
        terminal.type("first\n")
        terminal.expect("alpha")
        monkeypatch.setattr("everthread.cli.chat.session.BUSY_S_MAX", 0.0)
        done = run("-r", session, "-p", "me too")
        assert (done.returncode, done.stdout) == (75, "")
        assert "your message is set aside there" in done.stderr
