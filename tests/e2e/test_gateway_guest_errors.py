"""What somebody who does not run the agent is told when something is wrong with it: that it is, and a reference."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from tests.fake_platform import FakePlatform
from tests.gateway import gateway_fixture
from tests.http_gateway import http_gateway

from everthread.config.settings import GatewaySettings
from everthread.domain.model import SessionKey
from everthread.store.compression_pauses import CompressionPause
from everthread.testing.model_server.replies import Fail, Say
from everthread.testing.model_server.server import ModelServer
from everthread.testing.recording_provider import RecordingProvider

FAILURES = [
    (Fail(400, "no such thing at box-7"), "does not take this"),
    (Fail(401, "who are you, box-7?"), "as it is set up"),
    (Fail(404, "box-7 has no model one"), "as it is set up"),
    (Fail(413, "box-7: too much"), "more than the model can read"),
    (Fail(503, "box-7 is down", headers={"Retry-After": "3600"}), "can't be reached now"),
]
ME = GatewaySettings(links={"me": ("fake:mine",)})


def reference(text: str) -> str:
    found = re.search(r"under (\w{8})\.", text)
    assert found, text
    return found[1]


@pytest.mark.parametrize(("fail", "plain"), FAILURES, ids=lambda value: str(getattr(value, "status", "")))
async def test_an_endpoints_trouble_is_told_plainly_to_guests_and_whole_to_the_owner(
    tmp_path: Path, fail: Fail, plain: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    platform = FakePlatform()
    async with ModelServer(lambda _: fail) as model, gateway_fixture(tmp_path, model, platform, gateway=ME) as there:
        (told,) = await there.hear("hello", "7")
        assert plain in told
        assert "127.0.0.1" not in told
        assert "box-7" not in told
        logged = [record.getMessage() for record in caplog.records if reference(told) in record.getMessage()]
        assert logged
        assert "127.0.0.1" in logged[0]
        assert "127.0.0.1" in (await there.hear("hello", "mine"))[0]


@pytest.mark.parametrize(("fail", "plain"), FAILURES, ids=lambda value: str(getattr(value, "status", "")))
async def test_over_http_too(tmp_path: Path, fail: Fail, plain: str, caplog: pytest.LogCaptureFixture) -> None:
    async with ModelServer(lambda _: fail) as model, http_gateway(tmp_path, model) as there:
        guest, mine = await there.token("bea"), await there.token("me")
        body = {"model": "everthread", "messages": [{"role": "user", "content": "hello"}]}
        answers = [
            await there.say("hello", guest, X_Session_Key="desk"),
            await there.say("hello", guest),
            await there.ask("POST", "/v1/chat/completions", {**body, "stream": True}, guest),
            await there.ask("POST", "/v1/chat/completions", {**body, "stream": True}, guest, X_Session_Key="desk"),
        ]
        for answer in answers:
            said = answer.body.decode()
            assert "127.0.0.1" not in said
            assert "box-7" not in said
            if fail.status != 401:
                assert plain in said
                assert any(reference(said) in r.getMessage() and "127.0.0.1" in r.getMessage() for r in caplog.records)
        if fail.status == 503:
            assert answers[1].headers["Retry-After"] == "3601"
        if fail.status != 401:
            assert b"127.0.0.1" in (await there.say("hello", mine)).body
            assert b"127.0.0.1" in (await there.say("hello", mine, X_Session_Key="desk")).body


async def test_what_everybody_said_is_counted_for_the_owner_alone(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Fail(400)) as model, http_gateway(tmp_path, model) as there:
        assert (await there.ask("GET", "/metrics")).status == 200, "no tokens: whoever sits at this machine"
        guest, mine = await there.token("bea"), await there.token("me")
        refused = await there.ask("GET", "/metrics", token=guest)
        assert (refused.status, refused.code) == (403, "not_yours")
        assert (await there.ask("GET", "/metrics", token=mine)).status == 200


async def test_a_guest_is_not_told_how_memory_fares(tmp_path: Path) -> None:
    providers = (RecordingProvider(),)
    async with (
        ModelServer(lambda _: Fail(400)) as model,
        gateway_fixture(tmp_path, model, gateway=ME, providers=providers) as there,
    ):
        assert "Memory" in (await there.hear("/status", "mine"))[0]
        assert "Memory" not in (await there.hear("/status", "7"))[0]


async def test_why_nothing_was_compressed_is_told_plainly(tmp_path: Path) -> None:
    failing = False

    def script(request: object) -> Say | Fail:
        return Fail(400, "no such thing at box-7") if failing else Say("Yes. " * 200)

    platform = FakePlatform()
    async with ModelServer(script) as model, gateway_fixture(tmp_path, model, platform, gateway=ME) as there:
        for who in ("7", "mine"):
            for _ in range(8):
                await there.hear("tell me more " * 50, who)
        failing = True
        guest, mine = (await there.hear("/compress", "7"))[0], (await there.hear("/compress", "mine"))[0]
        assert "box-7" in mine
        assert "box-7" not in guest
        assert "127.0.0.1" not in guest


@pytest.mark.parametrize("poor", [0, 9])
async def test_why_a_conversation_is_not_compressed_is_for_the_owner_to_know(tmp_path: Path, poor: int) -> None:
    platform = FakePlatform()
    async with (
        ModelServer(lambda _: Say("Yes.")) as model,
        gateway_fixture(tmp_path, model, platform, gateway=ME) as there,
    ):
        for who in ("7", "mine"):
            await there.hear("hello", who)
            session = await there.session(SessionKey.parse(f"agent:main:fake:dm:{who}"))
            rest = CompressionPause(session.id, "stub/one", poor, there.clock.now() + 600, "box-7 is down")
            await there.runtime.store.write(lambda uow, rest=rest: uow.compression_pauses.put(rest))
        assert "box-7" in (await there.hear("/status", "mine"))[0]
        (guest,) = await there.hear("/status", "7")
        assert "Not compressed" in guest
        assert "box-7" not in guest
