"""Turns of dead processes are finished by the next chat."""

from __future__ import annotations

import os
import signal

import pytest
from tests.e2e.chat_home import LONG, PROMPT, Home, OpenScreen, expire_leases
from tests.terminal_screen import CTRL_D, ENTER


def test_the_answer_of_a_killed_process_is_finished(home: Home) -> None:
    home.set_script(lines=[LONG], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("what was it\n")
        terminal.expect("alpha")
        terminal.process.kill()
    expire_leases(home)
    home.set_script()
    with home.terminal() as terminal:
        found = terminal.expect(r'Finished an interrupted answer: "what was it". To see it: /resume (\w{26})')
        terminal.type(f"/resume {found[1]}\n")
        terminal.expect("1 turn")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    [turn] = home.turns(found[1])
    assert (turn.status.value, turn.assistant_text) == ("done", "echo what was it (0 before, 11 characters)")


def test_queued_messages_of_a_killed_process_are_answered(home: Home) -> None:
    home.set_script(lines=[LONG], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("first\n")
        terminal.expect("alpha")
        terminal.type("second\n")
        terminal.expect("Queued")
        terminal.process.kill()
    expire_leases(home)
    home.set_script()
    with home.terminal() as terminal:
        terminal.expect(r'Finished an interrupted answer: "first"')
        terminal.expect(r'Finished an interrupted answer: "second"')
    assert [turn.assistant_text[:12] for turn in home.turns()] == ["echo first (", "echo second "]


def test_two_live_terminals_leave_each_others_messages_alone(home: Home) -> None:
    home.set_script(lines=[LONG], pause_s=0.2)
    with home.terminal() as one:
        one.type("first\n")
        one.expect("alpha")
        one.type("second\n")
        one.expect("Queued")
        home.set_script()
        with home.terminal() as two:
            two.type("mine\n")
            two.expect("echo mine")
            one.expect("juliett")
            assert "interrupted answer" not in two.seen


def test_a_recovered_answer_is_shown_in_its_own_conversation(home: Home) -> None:
    home.set_script(lines=[LONG], pause_s=0.3)
    with home.terminal() as terminal:
        terminal.type("what was it\n")
        terminal.expect("alpha")
        terminal.process.kill()
    expire_leases(home)
    home.set_script()
    with home.terminal("-c") as terminal:
        terminal.expect("Finished an interrupted answer")
        terminal.expect(r"echo what was it \(0 before")
        terminal.type("next\n")
        terminal.expect(r"echo next \(2 before")


def test_a_turn_killed_mid_answer_completes_after_the_next_start(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(lines=[LONG], pause_s=0.3)
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("what was it" + ENTER)
        screen.expect("alpha")
        screen.process.kill()
    expire_leases(home)
    home.set_script()
    with open_screen("-c") as screen:
        screen.expect("Finished an interrupted answer")
        screen.expect(r"echo what was it \(0 before")
    [turn] = home.turns()
    assert (turn.user_text, turn.status.value) == ("what was it", "done")


@pytest.mark.parametrize("how", ["hung up", "ended"])
def test_a_turn_that_ends_with_its_terminal_is_finished_by_the_next_process(
    home: Home, open_screen: OpenScreen, how: str
) -> None:
    home.set_script(lines=[LONG], pause_s=0.3)
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("one" + ENTER)
        screen.expect("alpha")
        screen.type("two" + ENTER)
        screen.expect("Queued")
        if how == "hung up":
            screen.hang_up()
            assert screen.process.wait(15) == 128 + signal.SIGHUP
        else:
            os.kill(screen.process.pid, signal.SIGTERM)
            assert screen.ended() == 128 + signal.SIGTERM
    assert home.turns() == []
    home.set_script()
    with open_screen("-c") as screen:
        screen.expect("echo one")
        screen.expect("echo two")
    assert [turn.status.value for turn in home.turns()] == ["done", "done"]
