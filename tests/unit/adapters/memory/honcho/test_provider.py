"""The Honcho provider against a fake server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes.honcho import FakeHoncho
from tests.runtime import until

from everthread.adapters.memory.honcho.codec import session_name, user_peer
from everthread.adapters.memory.honcho.provider import Honcho
from everthread.domain.errors import BadConfig, Rejected, ToolFailed, Unavailable
from everthread.domain.events import Delivery, ForgetScope
from everthread.domain.model import ChatType, SessionKey, SessionRef
from everthread.memory.provider_calls import Caller

ANN, BOB = "telegram:1 ann", "telegram:1-ann"


def ref(session: str, owner: str = ANN) -> SessionRef:
    return SessionRef(session, 0, SessionKey("main", "telegram", ChatType.DM, owner), 1, owner)


def nth(seq: int, session: str = "s1", attempt: int = 1) -> Delivery:
    return Delivery(f"{session}:{seq}:honcho:0", seq, attempt)


@asynccontextmanager
async def honcho(fake: FakeHoncho, **settings: Any) -> AsyncIterator[Honcho]:
    provider = Honcho()
    await provider.initialize(**{"url": fake.address, "workspace": "everthread", **settings})
    try:
        yield provider
    finally:
        await provider.shutdown()


async def say(provider: Honcho, text: str, turn: int = 1, session: str = "s1", owner: str = ANN) -> None:
    await provider.sync_turn(text, "I see.", ref=ref(session, owner), delivery=nth(turn, session), turn=turn, at=1.0)


async def note(provider: Honcho, content: str, seq: int, session: str = "s1", action: str = "add") -> None:
    about = {"note_id": "n1"}
    await provider.on_memory_write(action, "user", content, about, ref=ref(session), delivery=nth(seq, session))


async def test_a_long_turn_is_split_and_more_than_a_hundred_parts_are_sent_in_turns() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            long = "word " * 520_000
            await say(provider, long)
            await say(provider, long)
        own = [one for one in fake.messages if one["peer_id"] == user_peer(ANN)]
        assert "".join(one["content"] for one in own) == long
        assert len(own) > 100
        assert [one["metadata"]["part"] for one in fake.messages] == list(range(len(own) + 1))


async def test_a_part_that_got_lost_between_two_requests_is_the_only_one_sent_again() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await say(provider, "word " * 20_000)
            fake.messages = [one for one in fake.messages if one["metadata"]["part"] != 1]
            await say(provider, "word " * 20_000)
        parts = [one["metadata"]["part"] for one in fake.messages]
        assert sorted(parts) == sorted(set(parts))
        assert 1 in parts


# --- No message twice ---


async def test_nothing_is_appended_without_a_look_though_it_is_the_first_attempt() -> None:
    """Who was killed after the server acted comes again, and calls it the first attempt."""
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await say(provider, "I keep bees")
        async with honcho(fake) as provider:
            await say(provider, "I keep bees")
        assert len(fake.messages) == 2


async def test_what_a_request_says_long_after_it_was_given_up_is_recalled_once_and_set_aside_by_the_close() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await provider.on_session_switch("s1", ref=ref("s1"), delivery=nth(1))
            fake.hang(only_deaf=True)
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await say(provider, "I keep bees", 2)
            fake.heal()
            await until(lambda: len(fake.messages) == 6)
            said = [item.text for item in await provider.prefetch("bees", ref=ref("s1"), limit=10)]
            assert said.count("user: I keep bees") == 1
            await provider.on_session_end([], ref=ref("s1"), delivery=nth(3), through_seq=2)
        assert [bool(one["metadata"].get("undone")) for one in fake.messages] == [False, False, True, True, True, True]


# --- Recall ---


async def test_a_message_leads_back_to_session_turn_and_time() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await say(provider, "I keep bees", 7, "notes:odd/session")
            found = await provider.prefetch("bees", ref=ref("other"), limit=10)
        assert [(item.session_id, item.turn, item.at) for item in found if item.text.startswith("user:")] == [
            ("notes:odd/session", 7, 1.0)
        ]
        assert {item.session_id for item in found} == {"notes:odd/session"}


async def test_a_server_that_ignores_filters_still_shows_nobody_anothers_words() -> None:
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


async def test_turns_that_were_taken_back_are_not_recalled() -> None:
    with FakeHoncho(derives_s=60) as fake:
        async with honcho(fake) as provider:
            await say(provider, "I keep bees", 1)
            await say(provider, "I keep wasps", 2)
            await provider.on_session_switch("s1", ref=ref("s1"), delivery=nth(3), rewound=True, turns=(2,))
            texts = [item.text for item in await provider.prefetch("I keep", ref=ref("s1"), limit=9)]
        assert "user: I keep bees" in texts
        assert not any("wasps" in text for text in texts)


# --- Notes ---


async def test_a_notes_newest_wording_takes_the_place_of_the_others_wherever_they_were_written() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await note(provider, "has seven hives", 1)
            await note(provider, "has eight hives", 2, action="replace")
            await note(provider, "has nine hives", 1, "notes:ann", action="replace")
            assert [one["content"] for one in fake.conclusions] == ["has nine hives"]
            await note(provider, "", 2, "notes:ann", action="remove")
        assert fake.conclusions == []


# --- Forgetting ---


async def test_a_fact_that_was_said_leaves_the_messages_and_the_rest_of_the_session_stays_in_order() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await provider.on_session_switch("s1", parent_session_id="s0", ref=ref("s1"), delivery=nth(1))
            for turn, text in enumerate(["I keep bees", "the code is 4711, mind", "and wasps"], 2):
                await say(provider, text, turn)
            await provider.forget(ForgetScope.FACT, ref=ref("notes:ann"), delivery=nth(1, "notes:ann"), text="4711")
            await say(provider, "and ants", 5)
        words = [one["content"] for one in fake.messages if one["peer_id"] == user_peer(ANN)]
        assert words == ["I keep bees", "the code is [forgotten], mind", "and wasps", "and ants"]
        assert not [one for one in fake.conclusions if "4711" in one["content"]]
        assert list(fake.sessions) == [session_name("s1") + "__r1"]
        assert fake.sessions[session_name("s1") + "__r1"]["metadata"]["parent"] == "s0"


async def test_a_fact_is_forgotten_though_the_first_try_broke_off_in_the_middle() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await say(provider, "the code is 4711", 1)
            fake.lose_next()
            with pytest.raises(Unavailable):
                await provider.forget(ForgetScope.FACT, ref=ref("s1"), delivery=nth(2), text="4711")
            await say(provider, "I keep bees", 3)
        async with honcho(fake) as provider:
            await provider.forget(ForgetScope.FACT, ref=ref("s1"), delivery=nth(2, attempt=2), text="4711")
        words = [one["content"] for one in fake.messages if one["peer_id"] == user_peer(ANN)]
        assert words == ["the code is [forgotten]", "I keep bees"]


async def test_a_person_who_was_forgotten_can_come_back_though_the_names_can_not() -> None:
    with FakeHoncho(deletes_s=0.3) as fake:
        async with honcho(fake) as provider:
            for round in range(3):
                await say(provider, f"round {round}", 1, "notes:ann")
                await note(provider, f"note {round}", 2, "notes:ann")
                await provider.forget(ForgetScope.OWNER, ref=ref("notes:ann"), delivery=nth(3, "notes:ann"))
                assert (fake.messages, fake.conclusions) == ([], [])
            await say(provider, "here again", 4, "notes:ann")
        assert [one["session_id"] for one in fake.messages] == [session_name("notes:ann") + "__r3"] * 2
        assert len(fake.gone) == 6


async def test_a_deletion_that_never_ends_is_an_outage() -> None:
    naps: list[float] = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)

    with FakeHoncho(deletes_s=600) as fake:
        provider = Honcho(sleep=sleep)
        await provider.initialize(url=fake.address, workspace="everthread")
        await say(provider, "I keep bees")
        with pytest.raises(Unavailable, match="deletion"):
            await provider.forget(ForgetScope.SESSION, ref=ref("s1"), delivery=nth(2))
        await provider.shutdown()
    assert sum(naps) == pytest.approx(20, abs=0.2)


# --- Health, tools, settings ---


async def test_it_says_what_is_wrong_and_never_the_key() -> None:
    with FakeHoncho(key="k-secret-1234") as fake:
        async with honcho(fake, api_key="k-secret-1234") as provider:
            assert await provider.health() == "ok"
        async with honcho(fake, api_key="k-wrong-9999") as provider:
            said = await provider.health()
            assert "401" in said
            assert "k-wrong" not in said
            with pytest.raises(Unavailable):
                await say(provider, "I keep bees")
    async with honcho(fake) as provider:
        assert "can't be reached" in await provider.health()


@pytest.mark.parametrize(
    ("status", "error"), [(429, Unavailable), (500, Unavailable), (409, Unavailable), (413, Rejected)]
)
async def test_what_a_status_means(status: int, error: type[Exception]) -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            fake.fail_next(status=status)
            with pytest.raises(error):
                await say(provider, "I keep bees")


async def test_an_error_does_not_quote_the_conversation() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            fake.reject_next()
            with pytest.raises(Rejected) as failure:
                await say(provider, "larkspur")
        assert "larkspur" not in str(failure.value)


@pytest.mark.parametrize("settings", [{"url": "honcho.example"}, {"api_key": "two words"}, {"api_key": "line\nline"}])
async def test_settings_that_make_no_sense_are_told_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(BadConfig):
        await Honcho().initialize(**{"url": "http://127.0.0.1:1", "workspace": "w", **settings})


async def test_its_tools_act_on_the_person_of_the_turn() -> None:
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


async def test_a_server_that_speaks_nonsense_is_an_outage() -> None:
    class Nonsense(FakeHoncho):
        def _answer(self, request: Any) -> Any:
            return (200, ["what?"]), False

    with Nonsense() as fake:
        async with honcho(fake) as provider:
            caller = Caller(provider)
            with pytest.raises(Unavailable, match="can't be read"):
                await caller.call("prefetch", "bees", ref=ref("s1"), limit=3, timeout_s=5)
