"""`everthread sessions` as a person meets it: real processes on a home with some history."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.commands import everthread, printed, problems, refused
from tests.terminal_screen import DOWN, ENTER, ESCAPE, TerminalScreen

from everthread.bootstrap.runtime import Runtime
from everthread.cli.commands.sessions.export import for_a_terminal
from everthread.config.settings import Settings
from everthread.domain.boundary import Branch, Compress, New, Resume, Rewind
from everthread.domain.model import Inbound, Kind, Message, NoteAction, NoteTarget, Role, SessionKey, ToolCall
from everthread.lifecycle import ForgetSession, NoteChange
from everthread.ports.memory import MemoryProvider

TERMINAL = SessionKey.parse("agent:main:cli:dm:1")
CHAT = SessionKey.parse("agent:main:telegram:dm:42")
DAY_S = 86_400.0


class Past:
    """A clock of long ago."""

    def __init__(self, ago_s: float) -> None:
        self._ago_s = ago_s

    def now(self) -> float:
        return time.time() - self._ago_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Listens(MemoryProvider):
    def __init__(self) -> None:
        super().__init__()
        self.name = "listens"


@dataclass(frozen=True)
class Lived:
    """Lisbon (2 turns), its branch (one more, one undone), that one's continuation; old and ended: taxes and a chat."""

    home: Path
    lisbon: str
    branch: str
    tip: str
    taxes: str
    chat: str


async def say(runtime: Runtime, key: SessionKey, owner: str, text: str, *, tool: bool = False) -> None:
    await runtime.lifecycle.accept(Inbound(key, owner, text))
    ticket = await runtime.lifecycle.begin_turn(key)
    assert ticket is not None
    messages = [Message(Role.USER, text)]
    if tool:
        messages.append(Message(Role.ASSISTANT, "", (ToolCall("c1", "weather", '{"city": "Lisbon"}'),), reasoning="hm"))
        messages.append(Message(Role.TOOL, "sunny\n" + "and warm " * 30, tool_call_id="c1", name="weather"))
    messages.append(Message(Role.ASSISTANT, f"about {text}: yes"))
    await runtime.lifecycle.commit_turn(ticket, messages, "yes")


async def open_session(runtime: Runtime, key: SessionKey, boundary: Any, owner: str) -> str:
    ref = (await runtime.lifecycle.cross(key, boundary, owner=owner)).ref
    assert ref is not None
    return ref.session_id


async def _live(home: Path) -> Lived:
    async with Runtime(Settings(home), providers=[Listens()], clock=Past(200 * DAY_S)) as runtime:
        await runtime.start()
        taxes = await open_session(runtime, TERMINAL, New("Taxes"), "me")
        await say(runtime, TERMINAL, "me", "how much tax")
        chat = await open_session(runtime, CHAT, New(), "telegram:42")
        await say(runtime, CHAT, "telegram:42", "konnichiwa")
        await runtime.lifecycle.cross(CHAT, New(), owner="telegram:42")
        lisbon = await open_session(runtime, TERMINAL, New("Trip to Lisbon"), "me")
        assert await runtime.drain()
    async with Runtime(Settings(home), providers=[Listens()]) as runtime:
        await runtime.start()
        await say(runtime, TERMINAL, "me", "hello")
        await say(runtime, TERMINAL, "me", "is it warm", tool=True)
        branch = await open_session(runtime, TERMINAL, Branch(), "me")
        await say(runtime, TERMINAL, "me", "by train")
        await say(runtime, TERMINAL, "me", "by plane")
        await runtime.lifecycle.cross(TERMINAL, Rewind(1), owner="me")
        here = await runtime.lifecycle.current(TERMINAL)
        assert here is not None
        tip = await open_session(runtime, TERMINAL, Compress(branch, here.generation, "a trip by train", 2), "me")
        await open_session(runtime, TERMINAL, Resume(lisbon), "me")
        await runtime.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "likes trains"), owner="me")
        assert await runtime.drain()
    return Lived(home, lisbon, branch, tip, taxes, chat)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return asyncio.run(_live(tmp_path_factory.mktemp("original") / "home"))


@pytest.fixture
def lived(original: Lived, tmp_path: Path) -> Lived:
    shutil.copytree(original.home, tmp_path / "home")
    ids = (original.lisbon, original.branch, original.tip, original.taxes, original.chat)
    return Lived(tmp_path / "home", *ids)


VERBS = ["list", "browse", "show", "tree", "rename", "export", "import", "prune", "delete"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str, tmp_path: Path) -> None:
    done = everthread(tmp_path, "sessions", verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"everthread sessions {verb}" in done.stdout
    assert "--json" in done.stdout


@pytest.mark.parametrize("verb", ["show x", "tree x", "rename x y", "delete x --yes", "export x", "export --all"])
def test_a_home_that_is_not_there_is_told_and_not_made(verb: str, tmp_path: Path) -> None:
    refused(everthread(tmp_path / "not", "sessions", *verb.split()), 1, str(tmp_path / "not"))
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize("verb", ["show", "tree", "rename", "delete", "export"])
def test_an_unknown_session_is_one_line_and_1(verb: str, lived: Lived) -> None:
    more = {"rename": ["new"], "delete": ["--yes"]}.get(verb, [])
    refused(everthread(lived.home, "sessions", verb, "no such\n\x1b[31m", *more), 1, "no such")


# --- Looking ---------------------------------------------------------------------------------------------------------


def test_show_tells_who_said_what_with_tools_on_one_line(lived: Lived) -> None:
    lines = everthread(lived.home, "sessions", "show", lived.lisbon).stdout.splitlines()
    assert lines[0] == f'"Trip to Lisbon" ({lived.lisbon})'
    assert lines[1].startswith("open, 2 turns, opened ")
    assert lines[-5:-3] == ["user:", "  is it warm"]
    assert lines[-3].startswith('tool weather {"city": "Lisbon"} -> sunny and warm and warm')
    assert lines[-3].endswith("...")
    assert lines[-2:] == ["assistant:", "  about is it warm: yes"]


def test_show_full_has_what_tools_answered(lived: Lived) -> None:
    told = everthread(lived.home, "sessions", "show", "trip to lisbon", "--full").stdout
    short = everthread(lived.home, "sessions", "show", lived.lisbon, "--full").stdout
    assert "thought:\n  hm\n" in short
    assert 'tool weather {"city": "Lisbon"}\n  sunny\n  and warm and warm' in short
    assert told.startswith('"Trip to Lisbon'), "a title finds it too"


def test_show_marks_what_was_inherited_and_leaves_out_what_was_undone(lived: Lived) -> None:
    shown = printed(lived.home, "sessions", "show", lived.branch)
    assert [(turn["number"], turn["inherited"]) for turn in shown["transcript"]] == [(1, True), (2, True), (3, False)]
    assert "by plane" not in json.dumps(shown)
    text = everthread(lived.home, "sessions", "show", lived.tip).stdout
    assert "Summary of earlier turns:\n  a trip by train\n" in text
    assert "(inherited)" in text


def test_show_has_the_messages_that_were_set_aside_and_says_so(tmp_path: Path) -> None:
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


def test_tree_draws_branches_continuations_and_resumptions(lived: Lived) -> None:
    lines = everthread(lived.home, "sessions", "tree", lived.branch, env=os.environ | {"COLUMNS": "120"}).stdout
    assert lines.splitlines() == [
        f"Trip to Lisbon (2 turns, open) {lived.lisbon}",
        lines.splitlines()[1],
        f"└─ branch: Trip to Lisbon #2 (3 turns, ended (compressed)) {lived.branch}",
        f"   └─ continuation: Trip to Lisbon #3 (1 turn, open) {lived.tip}",
    ]
    assert "↩ from Trip to Lisbon #3" in lines.splitlines()[1]
    [root] = printed(lived.home, "sessions", "tree", lived.tip)
    assert root["children"][0]["children"][0]["id"] == lived.tip
    assert root["resumed_from"][0]["session"] == lived.tip
    assert len(printed(lived.home, "sessions", "tree")) == 4


def test_work_that_was_handed_over_is_in_the_tree_and_in_exports_and_in_no_list(lived: Lived) -> None:
    async def hand_over() -> str:
        async with Runtime(Settings(lived.home)) as runtime:
            key = SessionKey.parse("agent:main:subagent:dm:1")
            boundary = New(kind=Kind.SUBAGENT, parent=lived.taxes)
            session = await runtime.store.read(lambda uow: uow.sessions.get(lived.taxes))
            assert session is not None
            child = (await runtime.lifecycle.cross(key, boundary, owner=session.owner)).ref
            assert child is not None
            return child.session_id

    child = asyncio.run(hand_over())
    drawn = everthread(lived.home, "sessions", "tree", lived.taxes).stdout.splitlines()
    assert drawn[-1] == f"└─ delegated: - (0 turns, open) {child}"
    assert child not in {session["id"] for session in printed(lived.home, "sessions", "list")}
    assert child in everthread(lived.home, "sessions", "export", "--all").stdout


def test_browse_without_a_terminal_says_so(lived: Lived) -> None:
    refused(everthread(lived.home, "sessions", "browse"), 2, "terminal")


def browsing(home: Path) -> TerminalScreen:
    command = [sys.executable, "-m", "everthread", "--home", str(home), "sessions", "browse"]
    return TerminalScreen(command, dict(os.environ))


LONG_LIST = """
import asyncio
from everthread.cli.picker import pick
print("said before\\n" * 12)
print("taken:", asyncio.run(pick("Many", [f"row {number} of a list that is long and wide" for number in range(60)])))
"""


def test_a_list_is_drawn_anew_at_a_new_size_and_asks_the_terminal_nothing() -> None:
    with TerminalScreen([sys.executable, "-c", LONG_LIST], dict(os.environ), columns=80, rows=24) as seen:
        seen.expect("Enter selects")
        for columns, rows in ((50, 10), (100, 30), (30, 5)):
            seen.resize(columns, rows)
            seen.until(lambda rows=rows: len(seen.rows()) == rows, "a whole picture")
            lines = seen.settle().splitlines()
            assert lines[:2] == ["Many", "filter:"]
            assert [line[2:8].strip() for line in lines[2:-1]] == [f"row {number}" for number in range(rows - 3)]
            assert lines[-1].startswith("60 of 60; up/down move")
        assert b"\x1b[6n" not in seen.raw
        seen.type(DOWN + ENTER)
        assert seen.ended() == 0
        assert seen.shown() == "taken: 1"


def test_browse_narrows_and_shows_what_is_chosen(lived: Lived) -> None:
    with browsing(lived.home) as seen:
        seen.expect("6 of 6")
        seen.type("taxes")
        seen.expect("> .*Taxes")
        seen.type(ENTER)
        assert seen.ended() == 0
        assert "how much tax" in seen.shown()
        assert "filter:" not in seen.shown(), "nothing of the list is left behind"


@pytest.mark.parametrize("key", [ESCAPE, "q"])
def test_browse_is_left_without_a_word(key: str, lived: Lived) -> None:
    with browsing(lived.home) as seen:
        seen.expect("filter:")
        seen.type(DOWN)
        seen.type(key)
        assert seen.ended() == 0
        assert seen.shown() == ""


# --- Changing --------------------------------------------------------------------------------------------------------


def test_rename_gives_a_title_that_is_free(lived: Lived) -> None:
    done = printed(lived.home, "sessions", "rename", "Taxes", "  Taxes   2026 ")
    assert done == {"id": lived.taxes, "title": "Taxes 2026", "before": "Taxes"}
    refused(everthread(lived.home, "sessions", "rename", lived.taxes, "trip to lisbon"), 2, "another session")
    refused(everthread(lived.home, "sessions", "rename", lived.taxes, " "), 2)
    assert printed(lived.home, "sessions", "show", lived.taxes)["title"] == "Taxes 2026"


def test_delete_asks_and_forgets(lived: Lived) -> None:
    done = everthread(lived.home, "sessions", "delete", "Taxes", answer="n\n")
    assert done.returncode == 1
    assert lived.taxes in done.stdout
    done = printed(lived.home, "sessions", "delete", "Taxes", "--yes")
    assert (done["forgotten"], done["id"]) == ("session", lived.taxes)
    refused(everthread(lived.home, "sessions", "show", lived.taxes), 1)
    assert problems(lived.home) == []


@pytest.mark.parametrize("age", ["90", "d", "-1d", "0d", "1x", "99999999d", ""])
def test_an_age_that_is_none_is_refused(age: str, lived: Lived) -> None:
    refused(everthread(lived.home, "sessions", "prune", "--older-than", age), 2, "older-than")


def test_prune_removes_what_ended_long_ago_and_nothing_else(lived: Lived) -> None:
    before = {session["id"] for session in printed(lived.home, "sessions", "list")}
    dry = printed(lived.home, "sessions", "prune", "--older-than", "90d", "--dry-run")
    assert (set(dry["found"]), dry["removed"]) == ({lived.taxes, lived.chat}, 0)
    assert everthread(lived.home, "sessions", "prune", "--older-than", "90d", answer="n\n").returncode == 1
    assert {session["id"] for session in printed(lived.home, "sessions", "list")} == before
    assert printed(lived.home, "sessions", "prune", "--older-than", "1y", "--yes")["found"] == []
    done = printed(lived.home, "sessions", "prune", "--older-than", "90d", "--yes")
    assert (done["removed"], done["turns"]) == (2, 2)
    assert {session["id"] for session in printed(lived.home, "sessions", "list")} == before - {lived.taxes, lived.chat}
    assert problems(lived.home) == []
    assert b"konnichiwa" not in (lived.home / "everthread.db").read_bytes()


def test_prune_keeps_what_another_session_still_shows(lived: Lived) -> None:
    async def grow() -> str:
        async with Runtime(Settings(lived.home), providers=[Listens()], clock=Past(150 * DAY_S)) as runtime:
            await runtime.start()
            await open_session(runtime, TERMINAL, Resume(lived.taxes), "me")
            child = await open_session(runtime, TERMINAL, Branch(), "me")
            await say(runtime, TERMINAL, "me", "and in Spain")
            await open_session(runtime, CHAT, Resume(lived.chat), "telegram:42")
            await open_session(runtime, CHAT, New(), "telegram:42")
            assert await runtime.drain()
            return child

    async def end_the_parent(child: str) -> None:
        async with Runtime(Settings(lived.home), providers=[Listens()], clock=Past(140 * DAY_S)) as runtime:
            await runtime.start()
            await open_session(runtime, TERMINAL, Resume(lived.taxes), "me")
            await open_session(runtime, TERMINAL, New(), "me")
            assert await runtime.drain()

    child = asyncio.run(grow())
    asyncio.run(end_the_parent(child))
    done = printed(lived.home, "sessions", "prune", "--older-than", "90d", "--yes")
    assert lived.taxes not in done["found"]
    assert lived.chat in done["found"]
    assert done["kept"]["needed"] == 1
    shown = printed(lived.home, "sessions", "show", child)
    assert [turn["messages"][0]["content"] for turn in shown["transcript"]] == ["how much tax", "and in Spain"]
    assert problems(lived.home) == []


def test_prune_keeps_what_is_shown_through_a_forgotten_session(lived: Lived) -> None:
    async def grow() -> tuple[str, str]:
        async with Runtime(Settings(lived.home), providers=[Listens()]) as runtime:
            await runtime.start()
            await open_session(runtime, TERMINAL, Resume(lived.taxes), "me")
            middle = await open_session(runtime, TERMINAL, Branch(), "me")
            await say(runtime, TERMINAL, "me", "in Spain")
            last = await open_session(runtime, TERMINAL, Branch(), "me")
            await say(runtime, TERMINAL, "me", "in Peru")
            await runtime.lifecycle.forget(ForgetSession(middle), owner="me")
            assert await runtime.drain()
        return middle, last

    middle, last = asyncio.run(grow())
    with sqlite3.connect(lived.home / "everthread.db") as database:
        long_ago = time.time() - 200 * DAY_S
        database.execute(
            "UPDATE sessions SET ended_at = ?, active_at = ? WHERE id = ?", (long_ago, long_ago, lived.taxes)
        )
    before = printed(lived.home, "sessions", "show", last)["transcript"]
    assert before[0]["messages"][0]["content"] == "how much tax"
    done = printed(lived.home, "sessions", "prune", "--older-than", "90d", "--yes")
    assert (lived.taxes in done["found"], done["kept"]["needed"]) == (False, 1)

    async def try_all_the_same() -> tuple[int, int]:
        async with Runtime(Settings(lived.home)) as runtime:
            return await runtime.lifecycle.prune([lived.taxes], before=time.time() - DAY_S)

    assert asyncio.run(try_all_the_same()) == (0, 0)
    assert printed(lived.home, "sessions", "show", last)["transcript"] == before
    assert problems(lived.home) == []


# --- To a file and back ----------------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_export_and_import_bring_everything_to_another_home(lived: Lived, tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    done = printed(lived.home, "sessions", "export", "--all", "--notes", "-o", str(first))
    assert (done["sessions"], done["notes"]) == (6, 1)
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    other = tmp_path / "other"
    dry = printed(other, "sessions", "import", str(first), "--dry-run", "--keep-owners")
    assert not other.exists()
    tally = printed(other, "sessions", "import", str(first), "--keep-owners")
    assert tally == dry | {"dry_run": False}
    assert (tally["sessions"], tally["notes"], tally["left_out"]) == (6, 1, {})
    assert (other / "memory" / "USER.md").read_text() == "likes trains\n"
    assert problems(other) == []
    printed(other, "sessions", "export", "--all", "--notes", "-o", str(second))
    named = ("exported_at",)
    texts = [[{n: v for n, v in line.items() if n not in named} for line in lines_of(f)] for f in (first, second)]
    for line in texts[0] + texts[1]:
        if line["type"] == "note":
            del line["at"]
    assert texts[0] == texts[1]
    assert printed(other, "sessions", "import", str(first), "--keep-owners")["same"] == 6


def test_export_goes_to_the_standard_output_and_never_over_a_file(lived: Lived, tmp_path: Path) -> None:
    done = everthread(lived.home, "sessions", "export", lived.branch)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["id"] for line in lines if line["type"] == "session"] == [lived.lisbon, lived.branch]
    assert next(line for line in lines if line.get("hidden"))["messages"][0]["content"] == "by plane"
    (tmp_path / "mine.txt").write_text("mine")
    refused(everthread(lived.home, "sessions", "export", "--all", "-o", str(tmp_path / "mine.txt")), 1, "already")
    assert (tmp_path / "mine.txt").read_text() == "mine"
    refused(everthread(lived.home, "sessions", "export"), 2, "--all")


def test_a_bad_line_imports_nothing_and_is_told(lived: Lived, tmp_path: Path) -> None:
    file = tmp_path / "it.jsonl"
    printed(lived.home, "sessions", "export", "--all", "-o", str(file))
    lines = file.read_text().splitlines()
    lines[4] = lines[4].replace('"role":"user"', '"role":"king"')
    file.write_text("\n".join(lines) + "\n")
    refused(everthread(tmp_path / "other", "sessions", "import", str(file)), 2, "it.jsonl, line 5", "king")
    assert not (tmp_path / "other").exists()
    refused(everthread(tmp_path / "other", "sessions", "import", str(tmp_path)), 2)
    refused(everthread(tmp_path / "other", "sessions", "import", str(tmp_path / "none")), 1, "no such file")


def test_what_several_people_have_said_is_not_mine_unless_i_say_so(lived: Lived, tmp_path: Path) -> None:
    file, noted, other = tmp_path / "all.jsonl", tmp_path / "noted.jsonl", tmp_path / "other"
    printed(lived.home, "sessions", "export", "--all", "-o", str(file))
    refused(everthread(other, "sessions", "import", str(file)), 2, "2 people", "--keep-owners", "--as-mine")
    refused(everthread(other, "sessions", "import", str(file), "--as-mine", "--keep-owners"), 2, "exclude")
    printed(lived.home, "sessions", "export", lived.taxes, "--notes", "-o", str(noted))
    you = {**os.environ, "EVERTHREAD_OWNER": "you"}
    refused(everthread(other, "sessions", "import", str(noted), env=you), 2, "notes of another person", "--as-mine")
    assert not other.exists()
    printed(other, "sessions", "import", str(noted))
    printed(other, "sessions", "import", str(file), "--as-mine")
    assert {session["owner"] for session in printed(other, "sessions", "list")} == {"me"}


@pytest.mark.parametrize("verb", [("export", "--all"), ("list",)])
def test_output_that_finds_no_room_is_told_in_one_line(lived: Lived, verb: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "everthread", "--home", str(lived.home), "sessions", *verb],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=18,
            check=False,
        )
    refused(done, 75, "no space left")


def test_owners_that_could_not_be_set_here_are_not_kept(lived: Lived, tmp_path: Path) -> None:
    file = tmp_path / "it.jsonl"
    printed(lived.home, "sessions", "export", lived.taxes, "-o", str(file))
    text = file.read_text()
    for owner in ("\\u009b31m", "  ", "a\\nb"):
        file.write_text(text.replace('"owner":"me"', f'"owner":"{owner}"'))
        done = everthread(tmp_path / "other", "sessions", "import", str(file), "--keep-owners")
        refused(done, 2, "it.jsonl: owner", "--as-mine")
    assert not (tmp_path / "other").exists()


def test_characters_that_a_terminal_obeys_are_escaped_for_it_and_the_json_is_the_same() -> None:
    line = json.dumps({"content": "a\x9b31m\x7fé"}, ensure_ascii=False).encode()
    assert "\x9b".encode() in line
    shown = for_a_terminal(line)
    assert json.loads(shown) == json.loads(line)
    assert all(character.isprintable() for character in shown.decode())


def test_an_export_can_be_piped_into_an_import(lived: Lived, tmp_path: Path) -> None:
    said = everthread(lived.home, "sessions", "export", lived.tip).stdout
    done = everthread(tmp_path / "other", "sessions", "import", "-", "--json", answer=said)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sessions"] == len(printed(tmp_path / "other", "sessions", "list"))
    refused(everthread(tmp_path / "more", "sessions", "import", "-", answer=said[:200]), 2, "stdin, line")
    refused(everthread(tmp_path / "more", "sessions", "import", "-", answer=""), 2, "stdin")


def test_a_pipe_given_as_a_file_is_refused_at_once(lived: Lived, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(everthread(lived.home, "sessions", "import", str(tmp_path / "pipe")), 2, "pipe", "import -")
    refused(everthread(lived.home, "sessions", "import", "~nosuchuser/x"), 2, "nosuchuser")
    refused(everthread(lived.home, "backup", "~nosuchuser/x"), 2, "nosuchuser")
    refused(everthread(lived.home, "restore", "~nosuchuser/x"), 2, "nosuchuser")
    refused(everthread(lived.home, "sessions", "export", "--all", "-o", "~nosuchuser/x"), 2, "nosuchuser")


def test_imported_sessions_are_the_importers_and_can_be_gone_on_with(lived: Lived, tmp_path: Path) -> None:
    file, other = tmp_path / "it.jsonl", tmp_path / "other"
    printed(lived.home, "sessions", "export", lived.chat, "-o", str(file))
    printed(other, "sessions", "import", str(file))
    [session] = printed(other, "sessions", "list")
    assert (session["id"], session["owner"]) == (lived.chat, "me")

    async def go_on() -> None:
        async with Runtime(Settings(other)) as runtime:
            await open_session(runtime, TERMINAL, Resume(lived.chat), "me")
            await say(runtime, TERMINAL, "me", "and on")

    asyncio.run(go_on())
    assert len(printed(other, "sessions", "show", lived.chat)["transcript"]) == 2
    assert problems(other) == []
