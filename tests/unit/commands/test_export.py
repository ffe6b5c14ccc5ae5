"""`/export`: the conversation as a Markdown document."""

from __future__ import annotations

from pathlib import Path

from tests.agent_runtime import says_nothing, tool
from tests.commands import CommandFixture
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME

from everthread.commands.export import markdown
from everthread.domain.boundary import Branch
from everthread.domain.errors import StoreBusy
from everthread.domain.model import ToolCall


async def test_export_writes_the_whole_conversation_as_markdown_named_by_its_title(tmp_path: Path) -> None:
    model = FakeModel([[ToolCall("c1", "look", "{}"), ToolCall("c2", "look", "{}")], "fine,\n\n- one\n- two", "well"])
    async with CommandFixture(tmp_path, model, tools=(tool("look", says_nothing),)) as console:
        await console.order("/new Trip to Évora: Day 1/2")
        await console.ask("what is\nthere?\x1b[2J")
        said = await console.order("/export")
        assert said.document is not None
        assert said.document.name == "trip-to-évora-day-1-2.md"
        assert said.document.name in said.text
        assert "1 turn" in said.text
        text = said.document.text
        assert text.startswith("# Trip to Évora: Day 1/2\n\nSession ")
        assert "**You:**\n\nwhat is\nthere? [2J\n\n**Everthread:**\n\nfine,\n\n- one\n- two\n" in text
        assert "*Tools used: look x2*" in text
        assert "nothing" not in text
        # Compressed turns are included in full, undone turns are not.
        await console.lifecycle.cross(CLI, await console.compression(CLI, "a summary"), owner=ME)
        await console.ask("second")
        await console.ask("third")
        await console.order("/undo")
        said = await console.order("/export notes/mine.md")
        assert said.document is not None
        assert (said.document.name, said.document.file_name) == ("notes/mine.md", "mine.md")
        assert said.document.text.count("**You:**") == 2
        assert "what is\nthere?" in said.document.text
        assert "second" in said.document.text
        assert "third" not in said.document.text
        assert "a summary" not in said.document.text


async def test_an_export_includes_inherited_turns_and_marks_interrupted_ones(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["fine", StoreBusy("the endpoint is away")])) as console:
        await console.ask("before")
        branch = (await console.lifecycle.cross(CLI, Branch(), owner=ME)).ref
        assert branch is not None
        ticket = (await console.say("after"), await console.lifecycle.begin_turn(CLI))[1]
        assert ticket is not None
        await console.lifecycle.commit_turn(ticket, [], None, interrupted=True)
        said = await console.order("/export")
        assert said.document is not None
        assert said.document.name == f"{branch.session_id}.md"
        assert "before" in said.document.text
        assert said.document.text.rstrip().endswith("*This answer was interrupted.*")


async def test_a_long_conversation_is_exported_in_order_and_truncated(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        for number in range(120):
            turn = await console.turn(CLI, f"message {number:03}.")
        session = await console.session(turn.ref.session_id)
        count, text = await console.store.read(lambda uow: markdown(uow, session))
        assert count == 120
        assert [text.index(f"message {number:03}.") for number in range(120)] == sorted(
            text.index(f"message {number:03}.") for number in range(120)
        )
        count, text = await console.store.read(lambda uow: markdown(uow, session, 1_000))
        assert 1 <= count < 120
        assert len(text) < 1_200
        assert "Cut off at 1000 characters" in text


async def test_an_empty_conversation_cannot_be_exported(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.refuses("/export", "no session here yet")
        await console.order("/new")
        await console.refuses("/export", "nothing to export")
        await console.ask("hello")
        await console.refuses("/export", "no session here yet", owner="them")
        await console.refuses(f"/export {'x' * 1001}", "Invalid file name")
        await console.refuses("/export a\x00b", "Invalid file name")
