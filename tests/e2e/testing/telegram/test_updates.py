"""Delivery of updates by polling, through both bot libraries."""

from __future__ import annotations

import pytest
from tests.e2e.telegram_fixture import ANN, scene
from tests.e2e.telegram_libraries import LIBRARIES, Library

pytestmark = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: type(library).__name__)


async def test_an_update_is_repeated_until_a_higher_offset_confirms_it(library: Library) -> None:
    async with scene(library) as s:
        await s.people.say(ANN, "second")
        first, second = await s.bot.get_updates()
        assert [one.update_id for one in await s.bot.get_updates()] == [first.update_id, second.update_id]
        assert [one.update_id for one in await s.bot.get_updates(limit=1)] == [first.update_id]
        [left] = await s.bot.get_updates(offset=second.update_id)
        assert (left.message.text, left.message.chat.id, left.message.from_user.first_name) == ("second", ANN, "Ann")
        assert len(await s.bot.get_updates()) == 1
        assert not await s.bot.get_updates(offset=second.update_id + 1)
        assert (await s.people.dump()).pending == ()


async def test_a_negative_offset_keeps_only_the_newest_updates(library: Library) -> None:
    async with scene(library) as s:
        for text in ("two", "three"):
            await s.people.say(ANN, text)
        assert [one.message.text for one in await s.bot.get_updates(offset=-1)] == ["three"]
        assert len(await s.bot.get_updates()) == 1


async def test_only_allowed_kinds_of_updates_are_delivered_and_the_setting_persists(library: Library) -> None:
    async with scene(library) as s:
        [start] = await s.bot.get_updates(allowed_updates=["edited_message"])
        said = await s.people.say(ANN, "unwanted")
        assert said.update_id is None
        await s.people.correct(ANN, ANN, said.message_id, "corrected")
        [update] = await s.bot.get_updates(offset=start.update_id + 1)
        assert update.edited_message.text == "corrected"
        assert update.edited_message.edit_date is not None
