"""The conversation in a real terminal, as a person sees it. What the screens show is kept in `tests/screens`."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_chat import LONG, Home
from tests.terminal_screen import ALT_ENTER, CTRL_C, CTRL_D, DOWN, ENTER, ESCAPE, TAB, UP, TerminalScreen

SCREENS = Path(__file__).parents[1] / "screens"
ANSWER = """# A plan for Lisbon

Here is **what I found** about the `museum`, in a paragraph that is long enough to be wrapped on most terminals, \
narrow or wide, so that one can see how it looks.

- first item
- second item with *emphasis*
  that goes on

1. one
2. two

```python
def double(x):
    return 2 * x  # twice
```

| city | days |
|---|---|
| Lisbon | 3 |
| Porto | 2 |

> Somebody said so.

See [the site](https://example.org/museum) for more. 日本語もある。"""
PROMPT = r"(?m)^>$"
SIZES = [(60, 40), (100, 40), (200, 50)]

Open = Callable[..., TerminalScreen]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def opened(home: Home) -> Open:
    def opened(*arguments: str, env: dict[str, str] | None = None, **more: Any) -> TerminalScreen:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("EVERTHREAD_") and name not in ("NO_COLOR", "COLORFGBG")
        }
        return TerminalScreen(home.command(*arguments), {**kept, **(env or {})}, **more)

    return opened


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def kept(name: str, screen: str) -> None:
    """Compare a screen with the one that was looked at and kept; `KEEP_SCREENS=1` keeps this one instead."""
    plain = re.sub(r"\b[0-9A-HJKMNP-TV-Z]{26}\b", "01SESSION0000000000000000ID", screen)
    plain = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "2026-01-02 03:04", plain)
    plain = re.sub(r"\b\d+(\.\d)? (m?s)\b", r"1.0 \2", plain) + "\n"
    path = SCREENS / f"{name}.txt"
    if os.environ.get("KEEP_SCREENS"):
        SCREENS.mkdir(exist_ok=True)
        path.write_text(plain)
    assert plain == path.read_text(), plain


# --- What an answer looks like -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_an_answer_is_drawn_with_its_tools(home: Home, opened: Open, columns: int, rows: int) -> None:
    home.scripted(lines=[{"tool": "look", "arguments": {"where": "Lisbon"}}, ANSWER])
    with opened(columns=columns, rows=rows) as seen:
        seen.expect("new session · ")
        seen.type("Plan me a trip" + ENTER)
        seen.expect("日本語もある")
        seen.expect(r"\d+% of 128k context" if columns >= 60 else "fake")
        kept(f"answer-{columns}", seen.settle())


def test_an_answer_is_drawn_while_it_is_written_and_only_once(home: Home, opened: Open) -> None:
    home.scripted(lines=[f"First **block**.\n\n{LONG}\n\n{LONG.upper()} end"], pause_s=0.05)
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("go" + ENTER)
        seen.expect("First block")
        assert "juliett" not in seen.shown()
        seen.expect("JULIETT end")
        text = seen.settle()
        assert text.count("First block") == text.count("alpha bravo") == text.count("ALPHA") == 1
        assert "**" not in text


def test_nothing_is_seen_twice_on_the_way(home: Home, opened: Open) -> None:
    words = [f"word{number:03}" for number in range(120)]
    home.scripted(lines=["\n\n".join(" ".join(words[at : at + 12]) for at in range(0, 120, 12))], pause_s=0.02)
    with opened(rows=40) as seen:
        seen.expect(PROMPT)
        seen.type("go" + ENTER)
        seen.expect("word119")
        seen.settle()
        pictures = [picture for picture in seen.pictures() if "word000" in picture]
    assert len(pictures) >= 8
    twice = {word for picture in pictures for word in words if picture.count(word) > 1}
    assert not twice


def test_a_spinner_and_seconds_while_a_tool_runs(home: Home, opened: Open) -> None:
    home.scripted(lines=[{"tool": "look"}, "done"], tool_s=1.5)
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("go" + ENTER)
        seen.expect(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] look")
        seen.expect(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] look \{\} 1 s")
        seen.expect(r"✓ look \{\} 1\.[5-9] s")
        seen.expect("done")


def test_long_code_is_whole_once_it_is_finished(home: Home, opened: Open) -> None:
    code = "\n".join(f"line_{number} = {number}" for number in range(60))
    home.scripted(lines=[f"Look:\n\n```python\n{code}\n```\n\nThat was it."], pause_s=0.002)
    with opened(columns=80, rows=20) as seen:
        seen.expect(PROMPT)
        seen.type("go" + ENTER)
        seen.expect("That was it")
        seen.settle()
        whole = seen.scrolled()
        assert [whole.count(f"line_{number} = {number}\n") for number in range(60)] == [1] * 60


def test_nothing_that_a_model_writes_speaks_to_the_terminal(home: Home, opened: Open) -> None:
    home.scripted(lines=["be\x1b]0;title\x07fore \x1b[2J\x1b[31mafter", "echo"])
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("go" + ENTER)
        seen.expect("after")
        assert "Everthread with" in seen.shown()
        assert b"\x1b]0;title" not in seen.raw
        assert b"\x1b[2J" not in seen.raw


def test_colours_are_the_terminals_own_and_none_if_none_are_wanted(home: Home, opened: Open) -> None:
    home.scripted(lines=[ANSWER])
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with opened(env=env) as seen:
            seen.expect(PROMPT)
            seen.type("go" + ENTER)
            seen.expect("日本語もある")
            seen.settle()
            assert (seen.colours() != {"default"}) is coloured
            assert re.search(rb"\x1b\[[0-9;]*[34]8;[25];", seen.raw) is None


# --- Typing ----------------------------------------------------------------------------------------------------------


def test_what_is_typed_while_an_answer_is_written_is_seen_and_queued(home: Home, opened: Open) -> None:
    home.scripted(lines=[f"{LONG} end", "echo"], pause_s=0.2)
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("first" + ENTER)
        seen.expect("alpha")
        seen.type("second")
        seen.expect("> second")
        seen.type(ENTER)
        seen.expect('Queued: "second"')
        seen.expect("1 queued")
        seen.expect("juliett end")
        seen.expect(r"echo second \(2 before")
        seen.expect("queued", gone=True)


def test_what_was_queued_by_a_command_is_named_when_it_is_answered(home: Home, opened: Open) -> None:
    home.scripted(lines=[f"{LONG} end", "echo"], pause_s=0.1)
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("first" + ENTER)
        seen.expect("alpha")
        seen.type("/queue the second" + ENTER)
        seen.expect('Queued, next: "the second"')
        seen.expect(r'Answering "the second"\n\necho the second')


def test_a_message_may_have_several_lines(home: Home, opened: Open) -> None:
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("one" + ALT_ENTER + "two\\" + ENTER + "three")
        seen.expect("three")
        seen.type(ENTER)
        seen.expect("echo one")
        seen.type(CTRL_D)
        assert seen.ended() == 0
    [turn] = home.turns()
    assert turn.user_text == "one\ntwo\nthree"


def test_what_is_typed_before_the_input_is_there_is_entered(home: Home, opened: Open) -> None:
    with opened() as seen:
        seen.type("early bird" + ENTER)
        seen.expect("echo early bird")
        seen.settle(0.6)
        # From then on, a line feed is a new line.
        seen.type("one\ntwo" + ENTER)
        seen.expect("echo one")
        seen.type(CTRL_D)
        assert seen.ended() == 0
    assert [turn.user_text for turn in home.turns()] == ["early bird", "one\ntwo"]


def test_one_can_write_before_everything_is_there(home: Home, opened: Open) -> None:
    home.scripted(ready_s=3.0)
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("early bird" + ENTER + "/res")
        assert "Everthread with" not in seen.expect("> /res")
        seen.expect("Getting ready")
        seen.expect("echo early bird")
        # What it may be completed to is looked up as soon as that can be.
        seen.expect("/reset")
    assert [turn.user_text for turn in home.turns()] == ["early bird"]


def test_what_was_entered_before_everything_is_there_is_answered_before_one_leaves(home: Home, opened: Open) -> None:
    home.scripted(ready_s=1.0)
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("early bird" + ENTER + CTRL_D)
        assert seen.ended() == 0
        assert re.search(r"(?s)Everthread with.*> early bird.*echo early bird", seen.shown())


def test_what_was_entered_is_wrapped_between_words(home: Home, opened: Open) -> None:
    with opened(columns=40) as seen:
        seen.expect(PROMPT)
        seen.type("A question that is a bit longer than the line is wide" + ENTER)
        seen.expect("echo A question")
        assert "> A question that is a bit longer than\n  the line is wide\n" in seen.shown()
        seen.type("/retry" + ENTER)
        # What is said of an answer and the answer do not touch.
        seen.expect(r"(?s)memory\.\n\necho A question")


def test_a_megabyte_is_pasted_at_once(home: Home, opened: Open) -> None:
    text = "\n".join(f"{number:07} some words" for number in range(50_000))
    assert len(text) > 1_000_000 - 100_000
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("Look at this: ")
        seen.paste(text)
        seen.expect(r"> Look at this: \[pasted 1: 50000 lines\]")
        seen.type(ENTER)
        seen.expect(rf"echo Look at this.*\(0 before, {len(text) + 14} characters\)")
        seen.type("next" + ENTER)
        seen.expect("echo next")


def test_a_short_paste_is_put_in_as_it_is(home: Home, opened: Open) -> None:
    with opened() as seen:
        seen.expect(PROMPT)
        seen.paste("one\ntwo")
        seen.expect("> one\n  two")
        seen.type(ENTER)
        seen.expect("echo one")


def test_what_was_asked_before_comes_back_also_in_a_new_terminal(home: Home, opened: Open) -> None:
    with opened() as seen:
        seen.expect(PROMPT)
        for text in ("one", "two"):
            seen.type(text + ENTER)
            seen.expect(f"echo {text}")
        seen.type(CTRL_D)
        assert seen.ended() == 0
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type(UP)
        seen.expect("> two")
        seen.type(UP)
        seen.expect("> one")
        seen.type(ENTER)
        seen.expect("echo one")


def test_commands_are_completed(home: Home, opened: Open) -> None:
    with opened(columns=80) as seen:
        seen.expect("memory ok")
        seen.type("/re")
        kept("completing", seen.expect("/resume"))
        assert not _bar(seen), "all of it is seen"
        seen.type(ESCAPE)
        seen.expect("/reset", gone=True)
        seen.type("\x15/sta" + TAB)
        seen.expect("> /status")
        seen.type(ENTER + ENTER)
        seen.expect("Nothing is running")
        seen.type("/")
        seen.until(lambda: _bar(seen), "a bar beside a list that is longer than what is seen of it")


def _bar(seen: TerminalScreen) -> int:
    return sum(cell.reverse for row in seen.cells() for cell in row)


# --- Stopping and leaving --------------------------------------------------------------------------------------------


def test_ctrl_c_clears_the_line_then_stops_the_answer_and_twice_leaves(home: Home, opened: Open) -> None:
    home.scripted(lines=[LONG], pause_s=0.3)
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("go" + ENTER)
        seen.expect("alpha")
        seen.type("not this" + CTRL_C)
        seen.expect("not this", gone=True)
        assert "Interrupted" not in seen.shown()
        seen.type(CTRL_C)
        seen.expect("Interrupted; what there is of the answer is kept")
        # While the answer is still being put away, it would be the second one, and leave.
        seen.settle()
        seen.type(CTRL_C)
        seen.expect("Ctrl-C again, or Ctrl-D, leaves")
        seen.type(CTRL_C)
        assert seen.ended() == 0
        assert re.search(r"everthread -r \w{26} goes on from here", seen.shown())
    [turn] = home.turns()
    assert turn.status.value == "interrupted"


@pytest.mark.parametrize("how", [CTRL_C, signal.SIGTERM])
def test_one_need_not_wait_for_everything_to_be_there_to_leave(
    home: Home, opened: Open, how: str | signal.Signals
) -> None:
    home.scripted(ready_s=60.0)
    with opened() as seen:
        seen.expect(PROMPT)
        if isinstance(how, signal.Signals):
            os.kill(seen.process.pid, how)
            assert seen.ended() == 128 + how
        else:
            seen.type(how)
            seen.expect("Ctrl-C again, or Ctrl-D, leaves")
            seen.type(how)
            assert seen.ended() == 0


def test_the_terminal_is_as_it_was_after_leaving(home: Home, opened: Open) -> None:
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("hello" + ENTER)
        seen.expect("echo hello")
        seen.settle()
        seen.type(CTRL_D)
        assert seen.ended() == 0
        kept("left", seen.shown())
        # Neither the input nor the line of status is left behind, and pastes are not marked any more.
        assert seen.raw.rfind(b"\x1b[?2004l") > seen.raw.rfind(b"\x1b[?2004h")


@pytest.mark.parametrize("how", ["hung up", "ended"])
def test_what_is_cut_off_with_the_terminal_is_gone_on_with(home: Home, opened: Open, how: str) -> None:
    home.scripted(lines=[LONG], pause_s=0.3)
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("one" + ENTER)
        seen.expect("alpha")
        seen.type("two" + ENTER)
        seen.expect("Queued")
        if how == "hung up":
            seen.hang_up()
            assert seen.process.wait(15) == 128 + signal.SIGHUP
        else:
            os.kill(seen.process.pid, signal.SIGTERM)
            assert seen.ended() == 128 + signal.SIGTERM
    assert home.turns() == []
    home.scripted()
    with opened("-c") as seen:
        seen.expect("echo one")
        seen.expect("echo two")
    assert [turn.status.value for turn in home.turns()] == ["done", "done"]


def test_a_terminal_that_is_hung_up_at_the_prompt_is_left_as_by_its_user(home: Home, opened: Open) -> None:
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("hello" + ENTER)
        seen.expect("echo hello")
        seen.settle()
        seen.hang_up()
        assert seen.process.wait(15) == 128 + signal.SIGHUP
    done = home.run("boundaries", "--json")
    assert [row["boundary"] for row in json.loads(done.stdout)].count("suspend") == 1


def test_ctrl_c_twice_leaves_though_messages_wait(home: Home, opened: Open) -> None:
    home.scripted(lines=[LONG], pause_s=0.3)
    with opened() as seen:
        seen.expect(PROMPT)
        for text in ("one", "two", "three"):
            seen.type(text + ENTER)
        seen.expect('Queued: "three"')
        seen.expect("alpha")
        seen.type(CTRL_C)
        seen.expect("Interrupted")
        seen.type(CTRL_C)
        assert seen.ended() == 0
        assert 'Set aside without an answer: "three"' in seen.scrolled()


def test_a_paste_can_be_brought_back_and_sent_again(home: Home, opened: Open) -> None:
    text = "\n".join(f"line {number}" for number in range(20))
    with opened() as seen:
        seen.expect(PROMPT)
        seen.paste(text)
        seen.expect(r"\[pasted 1: 20 lines\]")
        seen.type(ENTER)
        seen.expect("echo line 0")
        seen.type(UP)
        seen.expect(r"> \[pasted 1: 20 lines\]")
        seen.paste(text.replace("line", "word"))
        seen.expect(r"\[pasted 2: 20 lines\]")
        seen.type(ENTER)
        seen.expect(r"\(2 before")
        seen.type(CTRL_D)
        assert seen.ended() == 0
    assert home.turns()[1].user_text == text + text.replace("line", "word")


def test_an_export_that_can_not_be_written_is_one_line(home: Home, opened: Open, tmp_path: Path) -> None:
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("hello" + ENTER)
        seen.expect("echo hello")
        for name, words in (("~nosuchuser/x.md", "no user"), ("/proc/x.md", "/proc/x.md")):
            seen.type(f"/export {name}" + ENTER)
            seen.expect(words)
        seen.type(f"/export {tmp_path}/kept.md" + ENTER)
        seen.expect("Written to")
        seen.type(f"/export {tmp_path}/kept.md" + ENTER)
        seen.expect(r"already\s+exists")
        seen.type(CTRL_D)
        assert seen.ended() == 0
    assert "hello" in (tmp_path / "kept.md").read_text()
    assert (tmp_path / "kept.md").stat().st_mode & 0o777 == 0o600


# --- Sessions --------------------------------------------------------------------------------------------------------


def _three_conversations(seen: TerminalScreen) -> None:
    seen.expect(PROMPT)
    for title in ("Lisbon", "Garden", "Taxes"):
        seen.type(f"/new {title}" + ENTER)
        seen.expect(f'Started a new session: "{title}"')
        seen.type(f"about {title}" + ENTER)
        seen.expect(f"echo about {title}")


def test_s01_every_change_of_the_session_is_told_once_before_its_turns(
    home: Home, opened: Open, tmp_path: Path
) -> None:
    home.scripted(diaries=[str(tmp_path / "diary")])
    with opened() as seen:
        seen.expect(PROMPT)
        for number, command in enumerate(("", "/reset", "/branch", "/new Last", "/resume {first}")):
            if command:
                first = _told(tmp_path)[0]["session"]
                seen.type(command.format(first=first) + ENTER)
            seen.type(f"question {number}" + ENTER)
            seen.expect(f"echo question {number}")
            seen.until(lambda n=number: len([t for t in _told(tmp_path) if t["what"] == "turn"]) == n + 1, "the turn")
        seen.type("/quit" + ENTER)
        assert seen.ended() == 0
    told = _told(tmp_path)
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
    # Each was closed once when it was left; the first was left twice, the second time by leaving the program.
    assert sorted(t["session"] for t in told if t["what"] == "end") == sorted([one, one, two, three, four])


def _told(folder: Path) -> list[dict[str, Any]]:
    path = folder / "diary"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_s22_resume_alone_offers_a_list_to_choose_from(home: Home, opened: Open) -> None:
    with opened(rows=40) as seen:
        _three_conversations(seen)
        seen.type("/resume" + ENTER)
        kept("resume-picker", seen.expect("Enter takes"))
        seen.type(DOWN + ENTER)
        seen.expect('Resumed "Lisbon"')
        seen.expect("> about Lisbon")
        seen.expect("Lisbon · fake/one")
        seen.type("again" + ENTER)
        seen.expect(r"echo again \(2 before")
        seen.type("/resume" + ENTER)
        seen.expect("Enter takes")
        seen.type(ESCAPE)
        seen.expect("Enter takes", gone=True)
        seen.expect("Lisbon · fake/one")


def test_a_list_to_choose_from_is_whole_at_a_new_size(home: Home, opened: Open) -> None:
    with opened(columns=80, rows=24) as seen:
        _three_conversations(seen)
        seen.type("/resume" + ENTER)
        seen.expect("Enter takes")
        seen.settle()
        seen.resize(50, 10)
        shown = seen.settle(1.0).splitlines()
        at = shown.index("narrow:")
        assert shown[at - 1] == "/resume"
        assert [line.split()[0] for line in shown[at + 1 : at + 3]] == [">", "Lisbon"]
        assert shown[at + 3].startswith("2 of 2; up/down move")
        seen.type(DOWN + ENTER)
        seen.expect("Lisbon · one")


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_coming_back_shows_what_was_said_last(home: Home, opened: Open, columns: int, rows: int) -> None:
    home.scripted(lines=["Short answer."])
    home.asked("-p", "What about a question that is so long that it can't be shown on one line, however wide? " * 3)
    home.scripted(lines=[{"tool": "look"}, {"tool": "look"}, ANSWER])
    home.asked("-c", "-p", "Plan me a trip")
    with opened("-c", columns=columns, rows=rows) as seen:
        seen.expect("╰─")
        kept(f"recap-{columns}", seen.settle())


def test_a_new_size_is_drawn_anew(home: Home, opened: Open) -> None:
    home.scripted(lines=[f"{LONG} {LONG}\n\nend"], pause_s=0.2)
    with opened(columns=100, rows=30) as seen:
        seen.expect(PROMPT)
        seen.type("go" + ENTER)
        seen.expect("charlie")
        seen.resize(50, 20)
        seen.expect("end\n")
        seen.settle()
        assert max(len(row) for row in seen.rows()) <= 50
        assert "untitled · one" in seen.shown()
        seen.resize(120, 40)
        seen.type("wide again")
        seen.expect("> wide again")
        seen.expect("untitled · fake/one")


def test_kill_in_mid_answer_and_the_turn_completes_after_the_next_start(home: Home, opened: Open) -> None:
    home.scripted(lines=[LONG], pause_s=0.3)
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("what was it" + ENTER)
        seen.expect("alpha")
        seen.process.kill()
    from tests.e2e.test_chat import _forget_processes  # pyright: ignore[reportPrivateUsage]

    _forget_processes(home)
    home.scripted()
    with opened("-c") as seen:
        seen.expect("Finished an answer that was cut off")
        seen.expect(r"echo what was it \(0 before")
    [turn] = home.turns()
    assert (turn.user_text, turn.status.value) == ("what was it", "done")


def test_two_terminals_on_one_session_take_turns_and_see_each_other(home: Home, opened: Open, stack: ExitStack) -> None:
    session = home.asked("-p", "hello")["session"]
    home.scripted(lines=[f"{LONG} end", "echo"], pause_s=0.1)
    with opened("-r", session) as one:
        one.expect(PROMPT)
        home.scripted()
        two = stack.enter_context(opened("-r", session))
        two.expect(PROMPT)
        one.type("first" + ENTER)
        one.expect("alpha")
        two.type("second" + ENTER)
        two.expect("yours comes after it")
        two.expect('Said elsewhere in this conversation: "first"')
        two.expect(r"echo second \(4 before")
        one.expect("juliett end")
        one.expect('Said elsewhere in this conversation: "second"')
        for seen in (one, two):
            assert seen.settle().count("juliett end") == 1
    assert [turn.user_text for turn in home.turns(session)] == ["hello", "first", "second"]


def test_a_dangerous_tool_is_asked_about(home: Home, opened: Open) -> None:
    home.scripted(lines=[{"tool": "wipe", "arguments": {"what": "all"}}, "As you like."])
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("go" + ENTER)
        seen.expect(r"Allow this\? \[y/N\]")
        seen.expect(r"\? ")
        seen.type("y" + ENTER)
        seen.expect("As you like")
    assert (home.path / "wiped").exists()


def test_what_was_typed_ahead_is_the_next_message_and_no_answer_to_a_question(home: Home, opened: Open) -> None:
    home.scripted(lines=[{"tool": "wipe", "arguments": {"what": "all"}}, "As you like.", "echo"])
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("go" + ENTER)
        seen.expect(r"(?m)^\?")
        seen.type("yes it is about the museum" + ENTER)
        seen.expect('Queued: "yes it is about the museum"')
        # The question is still open, and is seen to be.
        seen.expect(r"(?m)^\?$")
        seen.type("maybe" + ENTER)
        seen.expect("Please answer y or n")
        assert not (home.path / "wiped").exists()
        seen.type("n" + ENTER)
        seen.expect("As you like")
        seen.expect("echo yes it is about the museum")
        seen.expect(PROMPT)
    assert not (home.path / "wiped").exists()


def test_a_question_is_over_when_the_answer_is_stopped(home: Home, opened: Open) -> None:
    home.scripted(lines=[{"tool": "wipe", "arguments": {"what": "all"}}, "As you like.", "echo"])
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("go" + ENTER)
        seen.expect(r"(?m)^\?$")
        seen.type(CTRL_C)
        seen.expect("Interrupted")
        seen.expect(PROMPT)
    assert not (home.path / "wiped").exists()


def test_a_terminal_that_can_only_show_lines_is_shown_lines(home: Home, opened: Open) -> None:
    with opened(term="dumb") as seen:
        seen.expect(PROMPT)
        seen.type("hello\n")
        seen.expect("echo hello")
        assert b"\x1b" not in seen.raw


def test_cli_exit_closes_memory_once(home: Home, opened: Open) -> None:
    with opened() as seen:
        seen.expect(PROMPT)
        seen.type("hello" + ENTER)
        seen.expect("echo hello")
        seen.type("/quit" + ENTER)
        assert seen.ended() == 0
    done = home.run("boundaries", "--json")
    assert [row["boundary"] for row in json.loads(done.stdout)].count("suspend") == 1
