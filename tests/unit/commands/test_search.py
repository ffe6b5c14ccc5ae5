"""`/search`: matches in earlier conversations."""

from __future__ import annotations

from pathlib import Path

from tests.commands import CommandFixture
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, TELEGRAM

from everthread.domain.boundary import Rewind


async def test_search_finds_recent_messages_newest_first_with_their_session(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path, FakeModel(["fine"])) as console:
        lisbon = await console.titled("Lisbon")
        await console.ask(f"{'filler ' * 60}the aubergine costs two euros")
        porto = (await console.order("/new"), (await console.ask("no aubergine here")).committed.ref.session_id)[1]
        await console.ask("something else")
        await console.ask("an aubergine of theirs", TELEGRAM, owner="them")
        said = await console.order("/search aubergine")
        lines = said.text.splitlines()
        assert lines[0].endswith(f"{porto}, turn 1")
        assert lines[1] == "  you: no aubergine here"
        assert lines[2].endswith('"Lisbon", turn 2')
        assert lines[3].startswith("  you: …")
        assert "the aubergine costs two euros" in lines[3]
        assert len(lines) == 5
        assert [offer.command for offer in said.menu] == [f"/resume {porto}", f"/resume {lisbon}"]
        assert said.menu[1].label.startswith("Lisbon  2")
        assert said.menu[1].label.endswith("the aubergine costs two euros")
        assert (await console.order(said.menu[1].command)).ok


async def test_search_omits_undone_turns_and_reports_no_match(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.ask("an aubergine")
        await console.lifecycle.cross(CLI, Rewind(1), owner=ME)
        for query in ("aubergine", "nothing of the kind", '"', "***", "a" * 999, "\ud800"):
            said = await console.order(f"/search {query}")
            assert said.ok
            assert said.text == "Nothing found. Try fewer or other words."
            assert said.menu == ()
        await console.refuses("/search", "Usage: /search WORDS")
        await console.refuses(f"/search {'x' * 1001}", "at most 1000")


async def test_search_shows_and_offers_the_newest_of_many(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        # The best match, but not the newest.
        await console.ask("aubergine")
        for number in range(12):
            session = (await console.ask(f"aubergine number {number}")).committed.ref.session_id
        said = await console.order("/search aubergine")
        assert said.text.count("you: aubergine number") == 10
        assert said.text.splitlines()[1] == "  you: aubergine number 11"
        assert "the newest 10 matches. Add words" in said.text
        assert {offer.command for offer in said.menu} == {f"/resume {session}"}
        assert len({offer.label for offer in said.menu}) == 10


async def test_a_search_result_cannot_move_the_cursor(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.ask("an \x1b[2J aubergine\r\nof two lines")
        text = (await console.order("/search aubergine")).text
        assert "an [2J aubergine of two lines" in text
        assert "\x1b" not in text
