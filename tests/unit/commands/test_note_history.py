"""Changes of skills in `/memory log`, and their reversal by `/memory undo`."""

from __future__ import annotations

from pathlib import Path

from tests.commands import CommandFixture
from tests.runtime import ME

from everthread.agent.skills.format import SkillText
from everthread.agent.skills.history import Origin


async def test_a_skill_written_by_a_review_is_logged_with_its_turns_and_can_be_undone(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        session = await console.titled("Boats")
        await console.order("/memory add sails")
        console.clock.advance(1)
        console.skills.write(SkillText("knots", "How to tie knots.", "Over."), origin=Origin(session, "review-1-10"))
        first, second = (await console.order("/memory log")).text.splitlines()[:2]
        assert first.startswith("skill/knots:1  ")
        assert first.endswith('add      "How to tie knots.", by a review of turns 1 to 10 of "Boats"')
        assert second.endswith('"sails", by you, in "Boats"')

        said = await console.order("/memory undo")
        assert said.text.startswith("Removed again: the skill knots. Its last version is kept.")
        assert console.skills.read_all().skills == ()
        assert "Restored: the skill knots." in (await console.order("/memory undo")).text
        assert [skill.name for skill in console.skills.read_all().skills] == ["knots"]


async def test_changes_of_notes_and_skills_are_undone_newest_first(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        console.skills.write(SkillText("knots", "How to tie knots.", "Over."))
        console.clock.advance(1)
        console.skills.write(SkillText("knots", "How to tie good knots.", "Over, under."))
        console.clock.advance(1)
        await console.order("/memory add sails")
        console.clock.advance(1)
        assert 'Removed again: "sails"' in (await console.order("/memory undo")).text
        await console.refuses("/memory undo skill/knots:1", "changed again", "skill/knots:2")
        assert (
            "Restored the previous version: the skill knots."
            in (await console.order("/memory undo skill/knots:2")).text
        )
        assert console.skills.read_all().skills[0].description == "How to tie knots."
        await console.refuses("/memory undo skill/knots:9", "no change")
        await console.refuses("/memory undo skill/nonsense", "no change")
        assert (
            "Restored the previous version: the skill knots." in (await console.order("/memory undo skill/knots")).text
        )
        assert console.skills.read_all().skills[0].description == "How to tie good knots."


async def test_other_users_cannot_see_or_undo_changes_of_this_home(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        session = await console.titled("Boats")
        console.skills.write(SkillText("knots", "How to tie knots.", "Over."), origin=Origin(session, "review-1-10"))
        assert "no note was ever written" in (await console.order("/memory log", owner="bob")).text
        await console.refuses("/memory undo", "nothing to undo", owner="bob")
        await console.refuses("/memory undo skill/knots:1", "no change", owner="bob")
        assert ME not in (await console.order("/memory log", owner="bob")).text
        assert console.skills.read_all().skills


async def test_an_unreadable_skill_log_is_reported(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        (tmp_path / "skills/.old/log").mkdir(parents=True)
        await console.refuses("/memory log", "skills/.old/log")
