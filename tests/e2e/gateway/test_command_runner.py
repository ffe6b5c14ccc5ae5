"""Commands from the inbox, and the queued messages that they set aside."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fake_platform import FakePlatform
from tests.gateway import gateway_fixture
from tests.runtime import until

from everthread.config.schema import GatewaySettings
from everthread.domain.model import SessionKey
from everthread.store.compression_pauses import CompressionPause
from everthread.testing.model_server.replies import Fail, Say
from everthread.testing.model_server.server import ModelServer
from everthread.testing.recording_provider import RecordingProvider


async def test_s30_each_of_many_messages_set_aside_is_named(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("slow", chunks=50, delay_s=0.1)) as model,
        gateway_fixture(tmp_path, model) as fixture,
    ):
        fixture.platform.say("m0")
        await until(lambda: fixture.gateway.worker.running == 1)
        for number in range(1, 13):
            fixture.platform.say(f"m{number}")
        fixture.platform.say("/new")
        await until(lambda: any("new session" in text for text in fixture.platform.texts()))
        named = ", ".join(f'"m{number}"' for number in range(1, 13))
        assert any(f"Set aside without an answer: {named}." in text for text in fixture.platform.texts())


async def test_messages_that_a_handoff_sets_aside_are_named(tmp_path: Path) -> None:
    other = FakePlatform("other")
    slow = lambda request: (  # noqa: E731
        Say("slowly " * 50, chunks=50, delay_s=0.1) if "long" in str(request.messages[-1].content) else Say("Yes.")
    )
    async with (
        ModelServer(slow) as model,
        gateway_fixture(
            tmp_path, model, others=(other,), gateway=GatewaySettings(links={"anna": ("fake:42", "other:7")})
        ) as fixture,
    ):
        await fixture.hear("hello")
        other.say("long story", chat="7")
        await until(lambda: fixture.gateway.worker.running)
        other.say("a second thing", chat="7")
        await until(lambda: len(other.taken) == 2)
        (said,) = await fixture.hear("/handoff other")
        await fixture.rest()
        assert "Continuing" in other.texts("7")[-1]
        assert "a second thing" in said
        assert "long story" in said


ME = GatewaySettings(links={"me": ("fake:mine",)})


async def test_a_guest_sees_no_memory_status(tmp_path: Path) -> None:
    providers = (RecordingProvider(),)
    async with (
        ModelServer(lambda _: Fail(400)) as model,
        gateway_fixture(tmp_path, model, gateway=ME, providers=providers) as fixture,
    ):
        assert "Memory" in (await fixture.hear("/status", "mine"))[0]
        assert "Memory" not in (await fixture.hear("/status", "7"))[0]


async def test_a_guest_gets_a_plain_reason_why_nothing_was_compressed(tmp_path: Path) -> None:
    failing = False

    def script(request: object) -> Say | Fail:
        return Fail(400, "no such thing at box-7") if failing else Say("Yes. " * 200)

    platform = FakePlatform()
    async with ModelServer(script) as model, gateway_fixture(tmp_path, model, platform, gateway=ME) as fixture:
        for who in ("7", "mine"):
            for _ in range(8):
                await fixture.hear("tell me more " * 50, who)
        failing = True
        guest, mine = (await fixture.hear("/compress", "7"))[0], (await fixture.hear("/compress", "mine"))[0]
        assert "box-7" in mine
        assert "box-7" not in guest
        assert "127.0.0.1" not in guest


@pytest.mark.parametrize("poor", [0, 9])
async def test_only_the_owner_sees_why_a_session_is_not_compressed(tmp_path: Path, poor: int) -> None:
    platform = FakePlatform()
    async with (
        ModelServer(lambda _: Say("Yes.")) as model,
        gateway_fixture(tmp_path, model, platform, gateway=ME) as fixture,
    ):
        for who in ("7", "mine"):
            await fixture.hear("hello", who)
            session = await fixture.session(SessionKey.parse(f"agent:main:fake:dm:{who}"))
            rest = CompressionPause(session.id, "stub/one", poor, fixture.clock.now() + 600, "box-7 is down")
            await fixture.runtime.store.write(lambda uow, rest=rest: uow.compression_pauses.put(rest))
        assert "box-7" in (await fixture.hear("/status", "mine"))[0]
        (guest,) = await fixture.hear("/status", "7")
        assert ("Compression has stopped" if poor else "Compression is paused") in guest
        assert "box-7" not in guest
