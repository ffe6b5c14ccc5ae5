"""Slash commands in a chat, with their menus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.chat_home import LONG, PROMPT, Home, OpenScreen, assert_screen
from tests.terminal_screen import CTRL_D, DOWN, ENTER, ESCAPE, TerminalScreen


def test_s23_a_branch_and_its_parent_continue_independently(home: Home) -> None:
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


def test_new_during_an_answer_stops_it_and_sets_the_queue_aside(home: Home) -> None:
    home.set_script(lines=[LONG, "echo"], pause_s=0.3)
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


def _open_three_sessions(screen: TerminalScreen) -> None:
    screen.expect(PROMPT)
    for title in ("Lisbon", "Garden", "Taxes"):
        screen.type(f"/new {title}" + ENTER)
        screen.expect(f'Started a new session: "{title}"')
        screen.type(f"about {title}" + ENTER)
        screen.expect(f"echo about {title}")


def test_s01_every_session_change_reaches_the_provider_once_before_its_turns(
    home: Home, open_screen: OpenScreen, tmp_path: Path
) -> None:
    home.set_script(diaries=[str(tmp_path / "diary")])
    with open_screen() as screen:
        screen.expect(PROMPT)
        for number, command in enumerate(("", "/reset", "/branch", "/new Last", "/resume {first}")):
            if command:
                first = _provider_calls(tmp_path)[0]["session"]
                screen.type(command.format(first=first) + ENTER)
            screen.type(f"question {number}" + ENTER)
            screen.expect(f"echo question {number}")
            screen.until(
                lambda n=number: len([t for t in _provider_calls(tmp_path) if t["what"] == "turn"]) == n + 1, "the turn"
            )
        screen.type("/quit" + ENTER)
        assert screen.ended() == 0
    told = _provider_calls(tmp_path)
    switches = [t for t in told if t["what"] == "switch"]
    one, two, three, four, _ = [t["session"] for t in switches]
    assert [(t["session"], t["parent"], t["reset"], t["reason"]) for t in switches] == [
        (one, "", True, "new_session"),
        (two, "", True, "reset"),
        (three, two, False, "branch"),
        (four, "", True, "new_session"),
        (one, four, False, "resume"),
    ]
    for number, session in enumerate((one, two, three, four, one)):
        turn = next(place for place, t in enumerate(told) if t.get("user") == f"question {number}")
        assert told[turn]["session"] == session
        assert any(t["what"] == "switch" and t["session"] == session for t in told[:turn])
    # Each session ends once when the user leaves it; the first ends again at program exit.
    assert sorted(t["session"] for t in told if t["what"] == "end") == sorted([one, one, two, three, four])


def _provider_calls(folder: Path) -> list[dict[str, Any]]:
    path = folder / "diary"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_s22_resume_without_a_name_shows_a_menu(home: Home, open_screen: OpenScreen) -> None:
    with open_screen(rows=40) as screen:
        _open_three_sessions(screen)
        screen.type("/resume" + ENTER)
        assert_screen("resume-picker", screen.expect("Enter selects"))
        screen.type(DOWN + ENTER)
        screen.expect('Resumed "Lisbon"')
        screen.expect("> about Lisbon")
        screen.expect("Lisbon · fake/one")
        screen.type("again" + ENTER)
        screen.expect(r"echo again \(2 before")
        screen.type("/resume" + ENTER)
        screen.expect("Enter selects")
        screen.type(ESCAPE)
        screen.expect("Enter selects", gone=True)
        screen.expect("Lisbon · fake/one")


def test_a_menu_is_redrawn_completely_after_a_resize(home: Home, open_screen: OpenScreen) -> None:
    with open_screen(columns=80, rows=24) as screen:
        _open_three_sessions(screen)
        screen.type("/resume" + ENTER)
        screen.expect("Enter selects")
        screen.settle()
        screen.resize(50, 10)
        shown = screen.settle(1.0).splitlines()
        at = shown.index("filter:")
        assert shown[at - 1] == "/resume"
        assert [line.split()[0] for line in shown[at + 1 : at + 3]] == [">", "Lisbon"]
        assert shown[at + 3].startswith("2 of 2; up/down move")
        screen.type(DOWN + ENTER)
        screen.expect("Lisbon · one")


def test_an_export_prints_the_result_or_the_error_and_not_both(
    home: Home, open_screen: OpenScreen, tmp_path: Path
) -> None:
    with open_screen() as screen:
        screen.expect(PROMPT)
        screen.type("hello" + ENTER)
        screen.expect("echo hello")
        for name, words in (("~nosuchuser/x.md", "no user"), ("/proc/x.md", "/proc/x.md")):
            screen.type(f"/export {name}" + ENTER)
            screen.expect(words)
        assert "Exported" not in screen.shown()
        screen.type(f"/export {tmp_path}/kept.md" + ENTER)
        screen.expect("Exported")
        screen.type(f"/export {tmp_path}/kept.md" + ENTER)
        screen.expect(r"already\s+exists")
        assert screen.shown().count("Exported") == 1
        screen.type(CTRL_D)
        assert screen.ended() == 0
    assert "hello" in (tmp_path / "kept.md").read_text()
    assert (tmp_path / "kept.md").stat().st_mode & 0o777 == 0o600
