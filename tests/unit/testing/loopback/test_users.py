"""The users of the loopback platform, as tests control them."""

from __future__ import annotations

import pytest

from everthread.testing.loopback import protocol as wire
from everthread.testing.loopback.server import LoopbackServer, PlatformState
from everthread.testing.loopback.users import LoopbackUsers


async def test_texts_have_their_edits_applied_and_answers_are_the_originals() -> None:
    async with LoopbackServer(PlatformState()) as server, LoopbackUsers(server.base_url) as users:
        await users.say("7", "hello")
        message_id = server.state.send(wire.Send("1", "7", "hel"))
        server.state.edit(wire.Edit("7", message_id, "hello you"))
        server.state.send(wire.Send("2", "8", "elsewhere"))
        await users.refresh()
        assert users.texts("7") == ["hello you"]
        assert [one.text for one in users.answers("7")] == ["hel"]
        assert users.chats() == ["7", "8"]


async def test_a_button_is_pressed_by_its_label_on_the_newest_message() -> None:
    async with LoopbackServer(PlatformState()) as server, LoopbackUsers(server.base_url) as users:
        for number in (1, 2):
            server.state.send(wire.Send(str(number), "7", "May I?", buttons=(("Allow", f"/approve {number}"),)))
        await users.press("7", "Allow", "bob")
        assert [one.said for one in server.state.queue.values()] == [wire.UserMessage("7", "bob", "/approve 2")]
        with pytest.raises(AssertionError, match="no button 'Deny'"):
            await users.press("7", "Deny")


async def test_a_redelivery_keeps_the_id_of_the_update() -> None:
    async with LoopbackServer(PlatformState()) as server, LoopbackUsers(server.base_url) as users:
        update_id = await users.say("7", "hello")
        await users.redeliver(update_id)
        assert [one.update_id for one in server.state.queue.values()] == [update_id] * 2
        assert (await users.dump()).waiting == 2
