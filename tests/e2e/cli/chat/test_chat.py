"""Complete chats in real processes: queue, Ctrl-C, signals, pipes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.e2e.chat_home import LONG, PROMPT, Home, OpenScreen, clean_env
from tests.terminal_screen import CTRL_C, CTRL_D, ENTER

from everthread.adapters.sqlite.store import SqliteStore


def test_ctrl_c_at_the_prompt_shows_a_hint_and_a_second_one_leaves(home: Home) -> None:
    with home.terminal() as terminal:
        terminal.expect("> ")
        terminal.type(CTRL_C)
        terminal.expect("Press Ctrl-C again, or Ctrl-D, to leave")
        terminal.type("hello\n")
        terminal.expect("echo hello")
        terminal.expect("> ")
        terminal.type(CTRL_C)
        terminal.expect("Press Ctrl-C again, or Ctrl-D, to leave")
        terminal.type(CTRL_C)
        terminal.expect("Continue with:")
        assert terminal.ended() == 0


def test_messages_and_commands_typed_during_an_answer_are_queued(home: Home) -> None:
    home.set_script(lines=["slow answer with words", "echo"], pause_s=0.3)
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


def test_quit_during_an_answer_keeps_it_and_lists_unanswered_messages(home: Home) -> None:
    home.set_script(lines=[LONG], pause_s=0.3)
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
        # Messages that were set aside are not processed later.
        terminal.type("three\n")
        terminal.expect("alpha")
        assert "interrupted answer" not in terminal.seen
        terminal.type("/quit\n")
        assert terminal.ended() == 0
    assert [turn.user_text for turn in home.turns()] == ["one", "three"]


def test_end_of_input_waits_for_the_answer(home: Home) -> None:
    home.set_script(lines=["alpha bravo charlie end"], pause_s=0.2)
    with home.terminal() as terminal:
        terminal.type("one\n")
        terminal.expect("alpha")
        terminal.type(CTRL_D)
        terminal.expect("Finishing the current answer")
        terminal.expect("end")
        assert terminal.ended() == 0
    [turn] = home.turns()
    assert turn.status.value == "done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_turn_ended_by_a_signal_is_finished_by_the_next_process(home: Home, number: signal.Signals) -> None:
    home.set_script(lines=[LONG], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("one\n")
        terminal.expect("alpha")
        terminal.type("two\n")
        terminal.expect("Queued")
        os.kill(terminal.process.pid, number)
        assert terminal.ended() == 128 + number
    assert home.turns() == []
    home.set_script()
    with home.terminal("-c") as terminal:
        terminal.expect('Finished an interrupted answer: "one"')
        terminal.expect('Finished an interrupted answer: "two"')
    assert [turn.status.value for turn in home.turns()] == ["done", "done"]


def test_sigterm_at_the_prompt_closes_memory(home: Home) -> None:
    with home.terminal() as terminal:
        terminal.type("one\n")
        terminal.expect(r"echo one[^\n]*\n> ")
        os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.ended() == 128 + signal.SIGTERM
    done = home.run("boundaries", "--json")
    assert [row["boundary"] for row in json.loads(done.stdout)].count("suspend") == 1


def test_a_provider_is_notified_of_turn_start_and_prefetch(home: Home, tmp_path: Path) -> None:
    notices = tmp_path / "notices.jsonl"
    home.set_script(notices=[str(notices)])

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


def test_leaving_a_chat_closes_memory(home: Home) -> None:
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


def test_a_pipe_is_answered_line_by_line_without_a_prompt(home: Home) -> None:
    done = home.run(stdin="one\n\n/title Piped\ntwo")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout == (
        'echo one (0 before, 3 characters)\nThe title is now "Piped".\necho two (2 before, 3 characters)\n'
    )


def test_empty_or_closed_stdin_does_nothing(home: Home) -> None:
    assert home.run().stdout == ""
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *home.command()], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")


def test_quit_in_a_pipe_ends_it(home: Home) -> None:
    done = home.run(stdin="one\n/quit\ntwo\n")
    assert done.returncode == 0
    assert "two" not in done.stdout


def test_an_error_in_a_pipe_sets_the_exit_code(home: Home) -> None:
    done = home.run(stdin="/frobnicate\nhello\n")
    assert done.returncode == 1
    assert "Unknown command /frobnicate" in done.stderr
    assert done.stdout == "echo hello (0 before, 5 characters)\n"


@pytest.mark.parametrize("arguments", [(), ("-p", "hello")])
def test_ctrl_c_in_a_pipe_keeps_the_partial_answer(home: Home, arguments: tuple[str, ...]) -> None:
    home.set_script(lines=[{"tool": "look"}, LONG], pause_s=0.3)
    with subprocess.Popen(
        home.command(*arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_env()
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


def test_cli_exit_closes_memory_once(home: Home, open_screen: OpenScreen) -> None:
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("hello" + ENTER)
        screen.expect("echo hello")
        screen.type("/quit" + ENTER)
        assert screen.ended() == 0
    done = home.run("boundaries", "--json")
    assert [row["boundary"] for row in json.loads(done.stdout)].count("suspend") == 1


def test_ctrl_c_clears_the_line_then_stops_the_answer_then_leaves(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(lines=[LONG], pause_s=0.3)
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("go" + ENTER)
        screen.expect("alpha")
        screen.type("not this" + CTRL_C)
        screen.expect("not this", gone=True)
        assert "Interrupted" not in screen.shown()
        screen.type(CTRL_C)
        screen.expect("Interrupted. The partial answer is kept")
        # While the answer is being stored, Ctrl-C would count as the second one and leave the chat.
        screen.settle()
        screen.type(CTRL_C)
        screen.expect("Press Ctrl-C again, or Ctrl-D, to leave")
        screen.type(CTRL_C)
        assert screen.ended() == 0
        assert re.search(r"Continue with: everthread -r \w{26}", screen.shown())
    [turn] = home.turns()
    assert turn.status.value == "interrupted"


@pytest.mark.parametrize("how", [CTRL_C, signal.SIGTERM])
def test_the_user_can_leave_during_start_up(home: Home, open_screen: OpenScreen, how: str | signal.Signals) -> None:
    home.set_script(ready_s=60.0)
    with open_screen() as screen:
        screen.expect(PROMPT)
        if isinstance(how, signal.Signals):
            os.kill(screen.process.pid, how)
            assert screen.ended() == 128 + how
        else:
            screen.type(how)
            screen.expect("Press Ctrl-C again, or Ctrl-D, to leave")
            screen.type(how)
            assert screen.ended() == 0


def test_ctrl_c_twice_leaves_even_if_messages_wait(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(lines=[LONG], pause_s=0.3)
    with open_screen() as screen:
        screen.expect(PROMPT)
        for text in ("one", "two", "three"):
            screen.type(text + ENTER)
        screen.expect('Queued: "three"')
        screen.expect("alpha")
        screen.type(CTRL_C)
        screen.expect("Interrupted")
        screen.type(CTRL_C)
        assert screen.ended() == 0
        assert 'Set aside without an answer: "three"' in screen.scrolled()
