"""`/resume`, `/title` and `/undo`: choices, suggestions and messages."""

from __future__ import annotations

from pathlib import Path

from tests.commands import CommandFixture
from tests.runtime import CLI, TELEGRAM

from everthread.domain.boundary import New
from everthread.domain.model import SessionKind

# --- /resume and suggestions -----------------------------------------------------------------------------------------


async def test_resume_offers_the_sessions_that_it_lists(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        lisbon, porto = await console.titled("Lisbon"), await console.titled("Porto")
        await console.order("/new")
        said = await console.order("/resume")
        assert [offer.command for offer in said.menu] == [f"/resume {porto}", f"/resume {lisbon}"]
        assert said.menu[0].label.startswith("Porto  2")
        assert "  1  " in said.text


async def test_resume_of_scheduled_work_reports_the_copy(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.cross(TELEGRAM, New(kind=SessionKind.CRON))
        work = (await console.turn(TELEGRAM, "water the plants")).ref.session_id
        said = await console.order(f"/resume {work}")
        copy = (await console.at(CLI)).session_id
        assert said.text == f"Resumed {work} in a copy, {copy}, 1 turn."
        assert said.recap is not None
        await console.refuses(f"/resume {work}", f"already in your copy of {work}")


async def test_resume_offers_untitled_sessions_by_their_first_words(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        said = (await console.ask("where is\nthe train?")).committed.ref.session_id
        await console.ask("and the plane?")
        await console.order("/new")
        undone = (await console.ask("taken back")).committed.ref.session_id
        await console.order("/undo")
        await console.ask("kept")
        await console.order("/new")
        aside = (await console.at(CLI)).session_id
        await console.say("never answered")
        await console.order("/new")
        # Interrupted during its first answer: nothing is committed.
        await console.say("cut off")
        running = await console.lifecycle.begin_turn(CLI)
        assert running is not None
        offered = await console.order("/resume", TELEGRAM)
        assert [(offer.label.rpartition("  ")[0], offer.command) for offer in offered.menu] == [
            ('"cut off"', f"/resume {running.ref.session_id}"),
            ('"never answered"', f"/resume {aside}"),
            ('"kept"', f"/resume {undone}"),
            ('"where is the train?"', f"/resume {said}"),
        ]
        assert "  4  " in offered.text
        assert (await console.order("/resume 4", TELEGRAM)).ok
        assert (await console.at(TELEGRAM)).session_id == said


async def test_resume_offers_many_sessions_and_no_empty_one(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        assert (await console.order("/resume")).text == "There is no other session yet. /new starts one."
        for number in range(60):
            await console.order("/new")
            await console.turn(CLI, f"message {number}")
        await console.order("/new")
        await console.order("/new")
        said = await console.order("/resume")
        assert len(said.menu) == 50
        assert said.menu[0].label.startswith('"message 59"  2')
        assert (await console.order("/resume 50")).ok


async def test_a_wrong_title_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        lisbon = await console.titled("Trip to Lisbon")
        await console.titled("Groceries")
        said = await console.order("/resume Trip to Lisbn")
        assert not said.ok
        assert said.text == (
            'There is no session "Trip to Lisbn". Did you mean "Trip to Lisbon"? /sessions lists yours.'
        )
        assert [(offer.label, offer.command) for offer in said.menu] == [("Trip to Lisbon", f"/resume {lisbon}")]
        said = await console.order("/resume zzzzzz")
        assert said.menu == ()
        assert "Did you mean" not in said.text


async def test_an_ambiguous_prefix_offers_the_matching_sessions_with_titles(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        lisbon = await console.titled("Lisbon")
        await console.order("/new")
        here = (await console.at(CLI)).session_id
        said = await console.order(f"/resume {console.holder}")
        assert not said.ok
        assert "'Lisbon'" in said.text
        assert [(offer.label, offer.command) for offer in said.menu] == [
            ("Lisbon", f"/resume {lisbon}"),
            (here, f"/resume {here}"),
        ]


async def test_a_used_title_is_answered_with_a_free_one(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.titled("Lisbon")
        await console.order("/branch")
        await console.titled("Porto")
        await console.refuses("/title lisbon", "already called", "such as 'lisbon #3'")
        await console.refuses("/new Lisbon", "already called", "such as 'Lisbon #3'")
        await console.refuses("/title Porto", 'The title is already "Porto"')
        assert (await console.order("/title porto")).ok


async def test_undo_reports_fewer_turns_than_requested(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.ask("one")
        await console.ask("two")
        assert "There were only 2." in (await console.order("/undo 5")).text
        await console.ask("three")
        assert "only" not in (await console.order("/undo")).text
