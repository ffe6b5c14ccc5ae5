"""Conversations as a person or a script has them: real processes, real terminals, only the model is scripted."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.e2e.chat_worker import ScriptedRuntime

from everthread.adapters.sqlite.store import SqliteStore
from everthread.cli import main as cli
from everthread.config.settings import Settings
from everthread.domain.boundary import Resume
from everthread.domain.model import ChatType, Inbound, SessionKey, Turn, TurnStatus

WORKER = Path(__file__).with_name("chat_worker.py")
PATIENCE_S = 12.0
CTRL_C = b"\x03"
CTRL_D = b"\x04"
LONG = "alpha bravo charlie delta echo foxtrot golf hotel india juliett"


class Home:
    """A folder, and the commands that are run on it."""

    def __init__(self, path: Path) -> None:
        self.path = path / "home"
        self.script = path / "script.json"
        self.scripted()

    def scripted(self, **script: Any) -> None:
        self.script.write_text(json.dumps(script))

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(WORKER), str(self.script), "--home", str(self.path), *arguments]

    def run(self, *arguments: str, typed: str | bytes = b"", **more: Any) -> subprocess.CompletedProcess[str]:
        given = typed.encode() if isinstance(typed, str) else typed
        done = subprocess.run(
            self.command(*arguments), capture_output=True, input=given, timeout=18, check=False, env=_env(), **more
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def asked(self, *arguments: str) -> dict[str, Any]:
        done = self.run(*arguments, "--json")
        return json.loads(done.stdout)

    @contextmanager
    def terminal(self, *arguments: str) -> Iterator[Terminal]:
        terminal = Terminal(self.command(*arguments))
        try:
            yield terminal
        finally:
            terminal.close()

    def turns(self, session_id: str = "") -> list[Turn]:
        """What the session, or the one that is there, shows."""

        async def look() -> list[Turn]:
            store = await SqliteStore.open(self.path / "everthread.db")
            try:
                [found] = [
                    session
                    for session in await store.read(lambda uow: uow.sessions.recent(owner="me", limit=9, kind="chat"))
                    if session_id in ("", session.id)
                ]
                return list((await store.read(lambda uow: uow.turns.view(found))).turns)
            finally:
                await store.aclose()

        return asyncio.run(look())


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Terminal:
    """A process on a terminal of its own. `expect` looks at what came since the last one."""

    def __init__(self, command: list[str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=_env()
        )
        os.close(slave)
        self.seen = ""
        self._from = 0

    def type(self, text: str | bytes) -> None:
        os.write(self._master, text.encode() if isinstance(text, str) else text)

    def expect(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            match = re.search(pattern, self.seen[self._from :])
            if match is not None:
                self._from += match.end()
                return match
            assert time.monotonic() < deadline, f"{pattern!r} never came:\n{self.seen}"
            assert self._read(deadline), f"ended without {pattern!r}:\n{self.seen}"

    def ended(self) -> int:
        """The exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(deadline):
            assert time.monotonic() < deadline, f"it never ended:\n{self.seen}"
        code = self.process.wait(PATIENCE_S)
        assert "Traceback" not in self.seen, self.seen
        assert "Exception" not in self.seen, self.seen
        return code

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0.0))
        if not ready:
            return True
        try:
            chunk = os.read(self._master, 65536)
        except OSError:
            return False
        self.seen += re.sub(r"\x1b\[[0-9;]*m", "", chunk.decode(errors="replace")).replace("\r\n", "\n")
        return bool(chunk)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


def _env() -> dict[str, str]:
    # Variables of whoever runs the tests are not for them; the program reads all it needs from its home.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERTHREAD_")}
    # A terminal that can only show lines; what the others are shown has its own tests.
    return kept | {"TERM": "dumb"}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


Run = Callable[..., Ended]


@pytest.fixture
def run(home: Home, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process, with nothing to read: what needs no process of its own."""

    def run(*arguments: str) -> Ended:
        script = json.loads(home.script.read_text())
        code = cli.run(lambda settings: ScriptedRuntime(settings, script), ["--home", str(home.path), *arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


# --- At a terminal ---------------------------------------------------------------------------------------------------


def test_a_conversation_is_welcomed_streamed_and_left_with_a_way_back(home: Home) -> None:
    with home.terminal() as terminal:
        terminal.expect(r"Everthread with fake/one: a new session\.\n/help lists the commands, Ctrl-D leaves\.\n")
        terminal.expect("> ")
        terminal.type("hello\n")
        terminal.expect(r"echo hello \(0 before, 5 characters\)\n> ")
        terminal.type("again\n")
        terminal.expect(r"echo again \(2 before, 5 characters\)\n> ")
        terminal.type(CTRL_D)
        session = terminal.expect(r"everthread -r (\w{26}) goes on from here")[1]
        assert terminal.ended() == 0
    assert [turn.user_text for turn in home.turns(session)] == ["hello", "again"]
    with home.terminal("-r", session) as terminal:
        terminal.expect(f"resumed {session}")
        terminal.type("and again\n")
        terminal.expect(r"\(4 before")
        terminal.type("/quit\n")
        assert terminal.ended() == 0


def test_an_answer_comes_word_by_word(home: Home) -> None:
    home.scripted(lines=["first second third"], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("hello\n")
        terminal.expect("first")
        assert "third" not in terminal.seen
        terminal.expect("second third\n> ")


def test_s29_an_interrupt_keeps_the_message_and_the_partial_answer_marked_as_such(home: Home) -> None:
    home.scripted(lines=["one two three four five six seven", "echo"], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.expect("> ")
        terminal.type("count\n")
        terminal.expect("two")
        terminal.type(CTRL_C)
        terminal.expect("Interrupted; what there is of the answer is kept. /undo takes it back.\n> ")
        [turn] = home.turns()
        assert turn.status.value == "interrupted"
        assert turn.user_text == "count"
        assert "one two".startswith(turn.assistant_text[:7])
        assert "seven" not in turn.assistant_text
        terminal.type("go on\n")
        terminal.expect(r"\(2 before[^\n]*\n> ")
        terminal.type("/undo 2\n")
        terminal.expect('Undid 2 turns, from "count"')
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert home.turns() == []


def test_s23_a_branch_goes_on_beside_its_parent(home: Home) -> None:
    with home.terminal() as terminal:
        terminal.type("common\n")
        terminal.expect(r"\(0 before.*\n> ")
        terminal.type("/branch Other way\n")
        branched = terminal.expect(
            r'you are now in "Other way",[^\n]*\nYou left (\w{26})\. To return: /resume (\w{26})'
        )
        parent, back = branched.groups()
        terminal.type("/status\n")
        (child,) = terminal.expect(r'"Other way" \((\w{26})\)').groups()
        assert parent == back
        terminal.type("child\n")
        terminal.expect(r"echo child \(2 before[^\n]*\n> ")
        terminal.type(f"/resume {parent}\n")
        terminal.expect(f"Resumed {parent}, 1 turn")
        terminal.type("parent\n")
        terminal.expect(r"echo parent \(2 before[^\n]*\n> ")
        terminal.type("/resume other WAY\n")
        terminal.expect(r'Resumed "Other way"[^\n]*, 2 turns')
        terminal.type("child again\n")
        terminal.expect(r"echo child again \(4 before")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert [turn.user_text for turn in home.turns(parent)] == ["common", "parent"]
    assert [turn.user_text for turn in home.turns(child)] == ["common", "child", "child again"]


def test_ctrl_c_at_the_prompt_gives_a_hint_and_twice_leaves(home: Home) -> None:
    with home.terminal() as terminal:
        terminal.expect("> ")
        terminal.type(CTRL_C)
        terminal.expect("Ctrl-C again, or Ctrl-D, leaves")
        terminal.type("hello\n")
        terminal.expect("echo hello")
        terminal.expect("> ")
        terminal.type(CTRL_C)
        terminal.expect("Ctrl-C again, or Ctrl-D, leaves")
        terminal.type(CTRL_C)
        terminal.expect("goes on from here")
        assert terminal.ended() == 0


def test_what_is_typed_while_an_answer_runs_is_queued_and_kept(home: Home) -> None:
    home.scripted(lines=["slow answer with words", "echo"], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("one\n")
        terminal.expect("slow")
        terminal.type("two\n")
        terminal.expect('Queued: "two"')
        terminal.type("/title Queue\n")
        terminal.expect('Queued: "/title Queue"')
        terminal.type("/status\n")
        terminal.expect('An answer is being written.\n1 message waiting: "two"')
        terminal.type("/help stop\n")
        terminal.expect("Stop the current answer")
        terminal.expect("words\n")
        terminal.expect(r"echo two \(2 before")
        terminal.expect('The title is now "Queue"')
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_slash_stop_stops_and_the_queue_goes_on(home: Home) -> None:
    home.scripted(lines=[LONG, "echo"], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("one\n")
        terminal.expect("alpha")
        terminal.type("two\n")
        terminal.expect("Queued")
        terminal.type("/stop\n")
        terminal.expect("Stopped. The partial answer is kept")
        terminal.expect(r"echo two \(2 before[^\n]*\n> ")
        terminal.type("/stop\n")
        terminal.expect("Nothing is running here")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert [turn.status.value for turn in home.turns()] == ["interrupted", "done"]


def test_steering_is_taken_up_between_two_steps(home: Home) -> None:
    home.scripted(lines=[{"tool": "look"}, "echo"], tool_s=1.0)
    with home.terminal() as terminal:
        terminal.type("what is the weather\n")
        terminal.expect(r"\* look \{\}")
        terminal.type("/steer in Lisbon, I mean\n")
        terminal.expect("The agent reads it at its next step")
        terminal.expect("Taken up: in Lisbon, I mean")
        terminal.expect(r"echo what is the weather \+ in Lisbon, I mean")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert len(home.turns()) == 1


def test_new_while_an_answer_runs_leaves_it_behind_and_sets_the_queue_aside(home: Home) -> None:
    home.scripted(lines=[LONG, "echo"], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("one\n")
        terminal.expect("alpha")
        terminal.type("two\n")
        terminal.expect("Queued")
        terminal.type("/new\n")
        left = terminal.expect(r"You left (\w{26})\.")[1]
        terminal.expect("was stopped. Its partial text is kept there")
        terminal.expect('Set aside without an answer: "two"')
        terminal.expect("> ")
        terminal.type("three\n")
        terminal.expect(r"echo three \(0 before")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert [(turn.user_text, turn.status.value) for turn in home.turns(left)] == [("one", "late")]


def test_leaving_at_once_keeps_what_there_is_and_names_what_was_not_answered(home: Home) -> None:
    home.scripted(lines=[LONG], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("one\n")
        terminal.expect("alpha")
        terminal.type("two\n")
        terminal.expect("Queued")
        terminal.type("/quit\n")
        terminal.expect('Set aside without an answer: "two"')
        assert terminal.ended() == 0
    [turn] = home.turns()
    assert (turn.user_text, turn.status.value) == ("one", "interrupted")
    with home.terminal("-c") as terminal:
        # What was set aside is not taken up by anybody any more.
        terminal.type("three\n")
        terminal.expect("alpha")
        assert "cut off" not in terminal.seen
        terminal.type("/quit\n")
        assert terminal.ended() == 0
    assert [turn.user_text for turn in home.turns()] == ["one", "three"]


def test_the_end_of_the_input_waits_for_the_answer(home: Home) -> None:
    home.scripted(lines=["alpha bravo charlie end"], pause_s=0.2)
    with home.terminal() as terminal:
        terminal.type("one\n")
        terminal.expect("alpha")
        terminal.type(CTRL_D)
        terminal.expect("Finishing what was asked")
        terminal.expect("end")
        assert terminal.ended() == 0
    [turn] = home.turns()
    assert turn.status.value == "done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_a_signal_to_end_cuts_off_is_gone_on_with(home: Home, number: signal.Signals) -> None:
    home.scripted(lines=[LONG], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("one\n")
        terminal.expect("alpha")
        terminal.type("two\n")
        terminal.expect("Queued")
        os.kill(terminal.process.pid, number)
        assert terminal.ended() == 128 + number
    assert home.turns() == []
    home.scripted()
    with home.terminal("-c") as terminal:
        terminal.expect('Finished an answer that was cut off: "one"')
        terminal.expect('Finished an answer that was cut off: "two"')
    assert [turn.status.value for turn in home.turns()] == ["done", "done"]


def test_a_signal_to_end_at_the_prompt_closes_memory(home: Home) -> None:
    with home.terminal() as terminal:
        terminal.type("one\n")
        terminal.expect(r"echo one[^\n]*\n> ")
        os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.ended() == 128 + signal.SIGTERM
    done = home.run("boundaries", "--json")
    assert [row["boundary"] for row in json.loads(done.stdout)].count("suspend") == 1


@pytest.mark.parametrize(("reply", "wiped"), [("y", True), ("n", False), ("", False), ("what?\ny", True)])
def test_a_dangerous_tool_is_asked_about(home: Home, reply: str, wiped: bool) -> None:
    home.scripted(lines=[{"tool": "wipe", "arguments": {"path": "/\x1b[2J"}}, "done with it"])
    with home.terminal() as terminal:
        terminal.type("wipe it\n")
        terminal.expect(r"wipe \{[^\n]*\}\nAllow this\? \[y/N\] ")
        terminal.type(f"{reply}\n")
        terminal.expect("done with it")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert (home.path / "wiped").exists() == wiped


def test_the_end_of_the_input_at_a_question_is_a_no(home: Home) -> None:
    home.scripted(lines=[{"tool": "wipe"}, "not done then"])
    with home.terminal() as terminal:
        terminal.type("wipe it\n")
        terminal.expect(r"\[y/N\] ")
        terminal.type(CTRL_D)
        terminal.expect("not done then")
        assert terminal.ended() == 0
    assert not (home.path / "wiped").exists()
    [turn] = home.turns()
    assert turn.status.value == "done"
    assert any("not approved by the user" in message.content for message in turn.messages)


def test_ctrl_c_at_a_question_stops_the_turn(home: Home) -> None:
    home.scripted(lines=[{"tool": "wipe"}, "echo"])
    with home.terminal() as terminal:
        terminal.type("wipe it\n")
        terminal.expect(r"\[y/N\] ")
        terminal.type(CTRL_C)
        terminal.expect("Interrupted")
        terminal.type("hello\n")
        terminal.expect("echo hello")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert not (home.path / "wiped").exists()


def test_a_line_that_ends_in_a_backslash_goes_on(home: Home) -> None:
    with home.terminal() as terminal:
        terminal.type("one\\\ntwo\n")
        terminal.expect(r"echo one\ntwo \(0 before, 7 characters\)")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_nothing_that_is_written_speaks_to_the_terminal(home: Home) -> None:
    home.scripted(lines=["plain \x1b]0;owned\x07 text\r\x9b2J"])
    with home.terminal() as terminal:
        terminal.type("hello\n")
        terminal.expect(r"plain \]0;owned text2J\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ModelUnauthorized", "the key was refused; check FAKE_API_KEY"),
        ("ModelUnknown", "there is no model one; choose another"),
        ("ModelUnavailable", "the endpoint can't be reached; try again later"),
        ("ModelRefused", "the endpoint will not take this"),
    ],
)
def test_a_turn_that_fails_is_one_line_and_the_conversation_goes_on(home: Home, name: str, text: str) -> None:
    # An endpoint that is down is asked four times.
    failures = [{"error": name, "text": text}] * (4 if name == "ModelUnavailable" else 1)
    home.scripted(lines=[*failures, "echo"])
    with home.terminal() as terminal:
        terminal.type("one\n")
        terminal.expect(f"everthread: {re.escape(text)} \\(your message is kept; /undo takes it back\\)\n> ")
        [turn] = home.turns()
        assert (turn.user_text, turn.status.value) == ("one", "interrupted")
        terminal.type("/undo\n")
        terminal.expect('Undid 1 turn, from "one"')
        terminal.type("two\n")
        terminal.expect(r"echo two \(0 before")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_without_a_model_the_conversation_begins_and_messages_are_kept(home: Home) -> None:
    home.scripted(no_model=True)
    with home.terminal() as terminal:
        terminal.expect("everthread: no model is chosen; put one into config.toml\n")
        terminal.type("hello\n")
        terminal.expect(r"no model is chosen; put one into config.toml \(your message is kept")
        terminal.type("/status\n")
        terminal.expect("1 turn")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_problems_at_the_start_are_told_and_change_nothing(home: Home) -> None:
    home.scripted(problems=["the server 'files' did not start"])
    with home.terminal() as terminal:
        terminal.expect("everthread: the server 'files' did not start")
        terminal.type("hello\n")
        terminal.expect("echo hello")


def test_a_provider_is_notified_of_a_turns_start_and_of_the_next_likely_recall(home: Home, tmp_path: Path) -> None:
    notices = tmp_path / "notices.jsonl"
    home.scripted(notices=[str(notices)])

    def wait_for(count: int) -> list[list[str]]:
        deadline = time.monotonic() + 10
        while True:
            lines = notices.read_text().splitlines() if notices.exists() else []
            if len(lines) >= count or time.monotonic() > deadline:
                return sorted(json.loads(line) for line in lines)
            time.sleep(0.02)

    with home.terminal() as terminal:
        terminal.type("hello there\n")
        terminal.expect("echo hello there")
        called = wait_for(2)
    (session,) = {session for _, _, session, _ in called}
    expected = [["on_turn_start", "hello there", session, "me"], ["queue_prefetch", "hello there", session, "me"]]
    assert called == expected
    assert session


def test_what_was_recalled_is_shown_on_request_only(home: Home, run: Run) -> None:
    home.scripted(remembers=True)
    told = r"recalled (shoebox 01OLD): likes green tea"
    assert told in run("-v", "-p", "hello").stderr
    assert told not in run("-p", "hello").stderr


def test_an_answer_that_a_killed_process_left_is_finished(home: Home) -> None:
    home.scripted(lines=[LONG], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("what was it\n")
        terminal.expect("alpha")
        terminal.process.kill()
    _forget_processes(home)
    home.scripted()
    with home.terminal() as terminal:
        found = terminal.expect(r'Finished an answer that was cut off: "what was it" - /resume (\w{26}) to see it')
        terminal.type(f"/resume {found[1]}\n")
        terminal.expect("1 turn")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    [turn] = home.turns(found[1])
    assert (turn.status.value, turn.assistant_text) == ("done", "echo what was it (0 before, 11 characters)")


def test_what_a_killed_process_had_not_taken_up_is_answered_too(home: Home) -> None:
    home.scripted(lines=[LONG], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("first\n")
        terminal.expect("alpha")
        terminal.type("second\n")
        terminal.expect("Queued")
        terminal.process.kill()
    _forget_processes(home)
    home.scripted()
    with home.terminal() as terminal:
        terminal.expect(r'Finished an answer that was cut off: "first"')
        terminal.expect(r'Finished an answer that was cut off: "second"')
    assert [turn.assistant_text[:12] for turn in home.turns()] == ["echo first (", "echo second "]


def test_two_terminals_leave_each_others_messages_alone(home: Home) -> None:
    home.scripted(lines=[LONG], pause_s=0.2)
    with home.terminal() as one:
        one.type("first\n")
        one.expect("alpha")
        one.type("second\n")
        one.expect("Queued")
        home.scripted()
        with home.terminal() as two:
            two.type("mine\n")
            two.expect("echo mine")
            one.expect("juliett")
            assert "cut off" not in two.seen


def test_one_question_that_has_to_wait_too_long_is_set_aside(
    home: Home, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    session = home.asked("-p", "hello")["session"]
    home.scripted(lines=[LONG], pause_s=0.5)
    with home.terminal("-r", session) as terminal:
        terminal.type("first\n")
        terminal.expect("alpha")
        monkeypatch.setattr("everthread.cli.chat.session.BUSY_S_MAX", 0.0)
        done = run("-r", session, "-p", "me too")
        assert (done.returncode, done.stdout) == (75, "")
        assert "what you asked is set aside there" in done.stderr


def test_an_answer_that_was_cut_off_in_this_conversation_is_shown_in_it(home: Home) -> None:
    home.scripted(lines=[LONG], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("what was it\n")
        terminal.expect("alpha")
        terminal.process.kill()
    _forget_processes(home)
    home.scripted()
    with home.terminal("-c") as terminal:
        terminal.expect("Finished an answer that was cut off")
        terminal.expect(r"echo what was it \(0 before")
        terminal.type("next\n")
        terminal.expect(r"echo next \(2 before")


def _cut_off(home: Home) -> None:
    home.scripted(lines=[LONG], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("what was it\n")
        terminal.expect("alpha")
        terminal.process.kill()
    home.scripted()


@pytest.mark.parametrize("arguments", [("-c", "-p", "next"), ("-c",)])
def test_without_a_terminal_too_an_answer_that_was_cut_off_is_finished_first(
    home: Home, arguments: tuple[str, ...]
) -> None:
    _cut_off(home)
    _forget_processes(home)
    done = home.run(*arguments, typed="" if "-p" in arguments else "next\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "echo next (2 before, 4 characters)\n"
    assert 'Finished an answer that was cut off: "what was it"' in done.stderr
    [first, second] = home.turns()
    assert (first.status.value, first.assistant_text) == ("done", "echo what was it (0 before, 11 characters)")
    assert second.user_text == "next"


def test_a_process_that_was_killed_is_known_to_be_gone_at_once(home: Home) -> None:
    _cut_off(home)
    done = home.run("-c", "-p", "next")
    assert done.stdout == "echo next (2 before, 4 characters)\n"
    assert "Finished an answer that was cut off" in done.stderr
    assert "still being written" not in done.stderr
    assert list((home.path / "processes").iterdir()) == []


def test_an_answer_that_was_cut_off_elsewhere_is_not_answered_over(home: Home, run: Run) -> None:
    session = home.asked("-p", "hello")["session"]
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


def _forget_processes(home: Home) -> None:
    """Half a minute after a process was killed, it is known to be gone."""

    async def leave() -> None:
        store = await SqliteStore.open(home.path / "everthread.db")
        try:
            for slot in await store.read(lambda uow: uow.slots.orphans(2**40)):
                await store.write(lambda uow, holder=slot.holder: uow.leases.leave(holder))
        finally:
            await store.aclose()

    asyncio.run(leave())


def test_a_session_that_somebody_else_is_answered_in_is_waited_for(home: Home) -> None:
    session = home.asked("-p", "hello")["session"]
    home.scripted(lines=[f"{LONG} end", "echo"], pause_s=0.2)
    with home.terminal("-r", session) as one, home.terminal("-r", session) as two:
        two.expect("> ")
        one.type("first\n")
        one.expect("alpha")
        two.type("second\n")
        two.expect("yours comes after it")
        one.expect("end")
        two.expect(f"{LONG} end")
        two.expect("> ")
    assert [turn.user_text for turn in home.turns(session)] == ["hello", "first", "second"]


# --- In a pipe -------------------------------------------------------------------------------------------------------


def test_a_pipe_is_answered_line_by_line_with_no_prompt(home: Home) -> None:
    done = home.run(typed="one\n\n/title Piped\ntwo")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout == (
        'echo one (0 before, 3 characters)\nThe title is now "Piped".\necho two (2 before, 3 characters)\n'
    )


def test_an_empty_or_closed_input_does_nothing(home: Home) -> None:
    assert home.run().stdout == ""
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *home.command()], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")


def test_quit_in_a_pipe_ends_it(home: Home) -> None:
    done = home.run(typed="one\n/quit\ntwo\n")
    assert done.returncode == 0
    assert "two" not in done.stdout


def test_what_goes_wrong_in_a_pipe_is_told_by_the_exit_code(home: Home) -> None:
    done = home.run(typed="/frobnicate\nhello\n")
    assert done.returncode == 1
    assert "Unknown command /frobnicate" in done.stderr
    assert done.stdout == "echo hello (0 before, 5 characters)\n"


def test_without_a_terminal_nobody_allows_a_dangerous_tool(home: Home) -> None:
    home.scripted(lines=[{"tool": "wipe"}, "as you like"])
    for arguments, typed in (((), "wipe it\n"), (("-p", "wipe it"), "")):
        done = home.run(*arguments, typed=typed)
        assert (done.returncode, done.stdout) == (0, "as you like\n")
        assert "nobody to ask: wipe" in done.stderr
    assert not (home.path / "wiped").exists()


def test_a_huge_line_is_one_message(home: Home) -> None:
    done = home.run(typed="x" * 9_900_000 + "\n")
    assert done.returncode == 0
    assert "9900000 characters" in done.stdout


def test_a_line_beyond_the_limit_is_refused_and_the_next_one_taken(home: Home) -> None:
    done = home.run(typed="x" * 10_000_001 + "\nhello\n")
    assert done.returncode == 1
    assert "at most 10000000 characters" in done.stderr
    assert done.stdout == "echo hello (0 before, 5 characters)\n"


def test_bytes_that_are_no_text_are_replaced_and_told_of(home: Home) -> None:
    done = home.run(typed=b"caf\xff\xfe \x00 \x80\r\nnext\n")
    assert done.returncode == 0
    assert "not valid UTF-8" in done.stderr
    assert done.stdout.startswith("echo caf\ufffd\ufffd \x00 \ufffd (0 before")
    assert "echo next" in done.stdout


def test_one_question_with_bytes_that_are_no_text_is_told_of_too(home: Home) -> None:
    done = home.run("-p", "what is", typed=b"caf\xff\xfe")
    assert (done.returncode, done.stdout) == (0, "echo what is\n\ncaf\ufffd\ufffd (0 before, 14 characters)\n")
    assert done.stderr == "Some of the input was not valid UTF-8 and is replaced by \ufffd.\n"


@pytest.mark.parametrize("arguments", [(), ("-p", "hello"), ("-p", "hello", "--json")])
def test_an_answer_that_can_not_be_written_is_kept_and_said_to_be(home: Home, arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            home.command(*arguments), input=b"hello\n", stdout=full, stderr=subprocess.PIPE, check=False, timeout=18
        )
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "everthread: stdout can't be written (No space left on device); what was said is kept, see everthread sessions "
        "list\n"
    )
    [turn] = home.turns()
    assert turn.status is TurnStatus.DONE


def test_a_reader_that_has_gone_ends_it_quietly(home: Home) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        for arguments, typed in (((), b"hello\nthere\n"), (("-p", "hello"), b"")):
            done = subprocess.run(
                home.command(*arguments), input=typed, stdout=gone, stderr=subprocess.PIPE, check=False, timeout=18
            )
            assert done.returncode == 1
            assert done.stderr == b""


@pytest.mark.parametrize("arguments", [(), ("-p", "hello")])
def test_an_interrupt_in_a_pipe_keeps_what_there_is(home: Home, arguments: tuple[str, ...]) -> None:
    home.scripted(lines=[{"tool": "look"}, LONG], pause_s=0.3)
    with subprocess.Popen(
        home.command(*arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_env()
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        if arguments:
            process.stdin.close()
            process.stdin = None
        while not process.stderr.readline().startswith(b"* look"):
            pass
        time.sleep(0.8)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=15)
    assert process.returncode == 130, err
    assert out.startswith(b"alpha")
    assert b"Traceback" not in err
    [turn] = home.turns()
    assert turn.status.value == "interrupted"
    assert turn.assistant_text == out.decode().strip()


# --- One question ----------------------------------------------------------------------------------------------------


def test_one_answer_and_nothing_else_on_stdout(home: Home, run: Run) -> None:
    done = run("-p", "hello")
    assert (done.returncode, done.stdout, done.stderr) == (0, "echo hello (0 before, 5 characters)\n", "")


def test_what_is_piped_in_follows_the_prompt(home: Home) -> None:
    assert home.run("-p", "sum up", typed="a file\n").stdout == "echo sum up\n\na file (0 before, 14 characters)\n"
    assert home.run("-p", "-", typed="only this\n").stdout == "echo only this (0 before, 9 characters)\n"


@pytest.mark.parametrize("prompt", ["-", "", "  "])
def test_no_prompt_is_wrong_usage(home: Home, run: Run, prompt: str) -> None:
    done = run("-p", prompt)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("everthread: there is no prompt")


def test_json_has_all_there_is_to_know(home: Home, run: Run) -> None:
    home.scripted(lines=[{"tool": "look"}, "sunny"])
    found = json.loads(run("-p", "the weather?", "-m", "fake/two", "--json").stdout)
    assert re.fullmatch(r"\w{26}", found.pop("session"))
    assert found == {
        "turn": 1,
        "text": "sunny",
        "status": "done",
        "problem": None,
        "model": "fake/two",
        "usage": {"input_tokens": 200, "output_tokens": 20, "cached_tokens": 0, "cost": None},
    }


def test_one_question_goes_on_with_the_latest_conversation(home: Home, run: Run) -> None:
    done = run("-c", "-p", "hello")
    assert done.returncode == 1
    assert "no conversation to continue yet" in done.stderr
    first = json.loads(run("-p", "one", "--json").stdout)
    second = json.loads(run("-c", "-p", "two", "--json").stdout)
    assert (second["session"], second["turn"]) == (first["session"], 2)


def test_one_question_goes_on_with_a_named_conversation(home: Home, run: Run) -> None:
    home.run(typed="/new Lisbon\none\n")
    other = json.loads(run("-p", "two", "--json").stdout)
    assert run("-r", "lisbon", "-p", "three").stdout.startswith("echo three (2 before")
    assert json.loads(run("-r", other["session"], "-p", "four", "--json").stdout)["turn"] == 2
    done = run("-r", "Nowhere", "-p", "five")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no session 'Nowhere'" in done.stderr


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([{"error": "ModelUnavailable", "text": "the endpoint is down; try later"}], 75),
        ([{"error": "ModelUnauthorized", "text": "the key was refused; check it"}], 78),
        ([{"error": "ModelUnknown", "text": "no such model; choose another"}], 78),
        ([{"error": "ModelRefused", "text": "will not do; ask otherwise"}], 1),
        ([""], 1),
    ],
)
def test_a_problem_is_told_by_the_exit_code(home: Home, run: Run, lines: list[Any], code: int) -> None:
    home.scripted(lines=lines)
    done = run("-p", "hello")
    assert (done.returncode, done.stdout) == (code, "")
    problem = [line for line in done.stderr.splitlines() if line.startswith("everthread: ")]
    assert len(problem) == 1
    found = json.loads(run("-p", "hello", "--json").stdout)
    assert problem == [f"everthread: {found['problem']}"]


def test_a_model_that_can_not_be_asked_is_a_matter_of_configuration(home: Home, run: Run) -> None:
    done = run("-m", "nowhere/x", "-p", "hello")
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr == "everthread: there is no provider 'nowhere'; nowhere/x can't be asked\n"


@pytest.mark.parametrize(
    ("model", "code", "words"),
    [
        # Known to want a key: nothing is sent, which would be tried again and again where there is no network.
        ("openai/x", 78, "api.openai.com wants a key: set OPENAI_API_KEY"),
        ("anthropic/x", 78, "api.anthropic.com wants a key: set ANTHROPIC_API_KEY"),
        ("mine/x", 75, "127.0.0.1:9 can't be reached (Connection refused)"),
    ],
)
def test_an_endpoint_without_a_key_and_one_that_is_not_there_are_one_line(
    tmp_path: Path, model: str, code: int, words: str
) -> None:
    (tmp_path / "config.toml").write_text(
        "[providers.mine]\nbase_url = 'http://127.0.0.1:9/v1'\napi_key_env = 'MINE_API_KEY'\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    done = subprocess.run(
        [sys.executable, "-m", "everthread", "--home", str(tmp_path), "-m", model, "-p", "hello"],
        capture_output=True,
        text=True,
        env=env,
        stdin=subprocess.DEVNULL,
        timeout=19,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.splitlines()[-1]) == (code, "", f"everthread: {words}")
    assert len(done.stderr.splitlines()) == (1 if code == 78 else 4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["what is this"], 'everthread -p "..."'),
        (["sesions"], "Did you mean sessions?"),
        (["-c", "-r", "x"], "-c and -r"),
        (["--json"], "-p PROMPT"),
        (["-r", ""], "-r is empty"),
        (["-p", "x", "sessions", "list"], "apply to conversations only"),
        (["-p"], "requires an argument"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_wrong_usage_is_one_line(home: Home, run: Run, arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("everthread: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_the_other_commands_still_work(home: Home, run: Run) -> None:
    run("-p", "hello")
    assert len(json.loads(run("sessions", "list", "--json").stdout)) == 1
    assert "Commands:" in run("--help").stdout


def test_on_a_terminal_the_answer_is_streamed(home: Home) -> None:
    home.scripted(lines=["first second third"], pause_s=0.4)
    with home.terminal("-p", "hello") as terminal:
        terminal.expect("first")
        assert "third" not in terminal.seen
        terminal.expect("second third\n")
        assert terminal.ended() == 0


def test_memory_is_closed_when_the_conversation_is_left(home: Home) -> None:
    with home.terminal() as terminal:
        terminal.type("hello\n")
        terminal.expect("echo hello")
        terminal.expect("> ")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0

    async def closed() -> bool:
        store = await SqliteStore.open(home.path / "everthread.db")
        try:
            [session] = await store.read(lambda uow: uow.sessions.recent(owner="me", limit=1))
            return session.closed_seq > 0 and not session.dirty
        finally:
            await store.aclose()

    assert asyncio.run(closed())
