"""The Honcho provider against a fake server."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes.honcho import FakeHoncho
from tests.unit.adapters.memory.honcho.deliveries import ANN, BOB, honcho, nth, ref, say

from everthread.adapters.memory.honcho.provider import Honcho
from everthread.domain.errors import BadConfig, ToolFailed


async def test_a_recalled_message_has_its_session_turn_and_time() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await say(provider, "I keep bees", 7, "notes:odd/session")
            found = await provider.prefetch("bees", ref=ref("other"), limit=10)
        assert [(item.session_id, item.turn, item.at) for item in found if item.text.startswith("user:")] == [
            ("notes:odd/session", 7, 1.0)
        ]
        assert {item.session_id for item in found} == {"notes:odd/session"}


async def test_no_other_owners_messages_are_recalled_if_the_server_ignores_filters() -> None:
    class Careless(FakeHoncho):
        def _answer(self, request: Any) -> Any:
            if isinstance(request.body, dict) and request.path.endswith(("/search", "/query")):
                request.body.pop("filters", None)
            return super()._answer(request)

    with Careless() as fake:
        async with honcho(fake) as provider:
            for number, (owner, word) in enumerate(((ANN, "larkspur"), (BOB, "foxglove"))):
                here, delivery = ref(f"s{number}", owner), nth(1, f"s{number}")
                await provider.sync_turn(f"my password is {word}", f"password {word}", ref=here, delivery=delivery)
            for owner, own, others in ((ANN, "larkspur", "foxglove"), (BOB, "foxglove", "larkspur")):
                texts = " ".join(
                    item.text for item in await provider.prefetch("password", ref=ref("s", owner), limit=9)
                )
                assert own in texts
                assert others not in texts


async def test_undone_turns_are_not_recalled() -> None:
    with FakeHoncho(derives_s=60) as fake:
        async with honcho(fake) as provider:
            await say(provider, "I keep bees", 1)
            await say(provider, "I keep wasps", 2)
            await provider.on_session_switch("s1", ref=ref("s1"), delivery=nth(3), rewound=True, turns=(2,))
            texts = [item.text for item in await provider.prefetch("I keep", ref=ref("s1"), limit=9)]
        assert "user: I keep bees" in texts
        assert not any("wasps" in text for text in texts)


@pytest.mark.parametrize("settings", [{"url": "honcho.example"}, {"api_key": "two words"}, {"api_key": "line\nline"}])
async def test_invalid_settings_are_refused_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(BadConfig):
        await Honcho().initialize(**{"url": "http://127.0.0.1:1", "workspace": "w", **settings})


async def test_tools_act_on_the_owner_of_the_turn() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await say(provider, "I keep bees")
            await say(provider, "I keep wasps", session="s2", owner=BOB)
            for owner, own, others in ((ANN, "bees", "wasps"), (BOB, "wasps", "bees")):
                here = ref("any", owner)
                for name, args in (("honcho_search", {"query": "keep"}), ("honcho_ask", {"question": "keep"})):
                    answer = await provider.handle_tool_call(name, args, ref=here)
                    assert own in answer
                    assert others not in answer
            assert await provider.handle_tool_call("honcho_profile", {}, ref=ref("any")) == "Nothing is known yet."
            with pytest.raises(ToolFailed):
                await provider.handle_tool_call("honcho_search", {}, ref=ref("any"))
            with pytest.raises(LookupError):
                await provider.handle_tool_call("honcho_delete", {}, ref=ref("any"))
            names = {schema["name"] for schema in provider.get_tool_schemas()}
            assert names == {"honcho_search", "honcho_ask", "honcho_profile"}
