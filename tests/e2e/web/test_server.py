"""The HTTP server: its address, its start and its shutdown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import msgspec
import pytest
from tests.gateway import GatewayFixture, gateway_fixture
from tests.http_gateway import http_gateway
from tests.runtime import until

from everthread.config.schema import GatewaySettings, HttpSettings, Variables, WebhookSettings
from everthread.domain.errors import BadConfig
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.web import Web

MODEL = lambda _: Say("Hello.")  # noqa: E731


def bound_to(fixture: GatewayFixture, host: str, port: int = 0) -> Web:
    settings = fixture.gateway.settings
    changed = msgspec.structs.replace(settings.gateway, http=HttpSettings(host=host, port=port))
    fixture.gateway.settings = msgspec.structs.replace(settings, gateway=changed)
    return fixture.runtime.web(fixture.gateway)


async def test_a_public_address_requires_a_token(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, gateway_fixture(tmp_path, model) as fixture:
        with pytest.raises(BadConfig, match="tokens new"):
            await bound_to(fixture, "0.0.0.0").start()
        from everthread.store.api_keys import ApiKey

        await fixture.runtime.store.write(lambda uow: uow.api_keys.add(ApiKey("h", "anna", "x", 1.0)))
        web = bound_to(fixture, "0.0.0.0")
        await web.start()
        assert web.port
        await web.stop()


async def test_a_port_in_use_and_a_missing_webhook_secret_are_reported(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        with pytest.raises(BadConfig, match=r"can't listen on 127\.0\.0\.1"):
            await bound_to(fixture, "127.0.0.1", fixture.web.port or 0).start()
    hooked = GatewaySettings(webhooks={"ci": WebhookSettings("NO_SUCH_SECRET", "everthread")})
    async with ModelServer(MODEL) as model, gateway_fixture(tmp_path / "b", model, gateway=hooked) as fixture:
        with pytest.raises(BadConfig, match="NO_SUCH_SECRET"):
            await bound_to(fixture, "127.0.0.1").start()


async def test_two_webhooks_with_the_same_secret_do_not_stop_the_server(tmp_path: Path) -> None:
    webhooks = {"ci": WebhookSettings("CI_SECRET", "github"), "raw": WebhookSettings("RAW_SECRET", "everthread")}
    same = Variables({"CI_SECRET": "hidden words", "RAW_SECRET": "hidden words"})
    async with (
        ModelServer(MODEL) as model,
        gateway_fixture(tmp_path, model, gateway=GatewaySettings(webhooks=webhooks), variables=same) as fixture,
    ):
        web = bound_to(fixture, "127.0.0.1")
        await web.start()
        assert not web.state.webhooks
        await web.stop()


async def test_stopping_the_server_lets_running_requests_end(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("slow", chunks=4, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as fixture,
    ):
        waiting = asyncio.ensure_future(fixture.say("hello", X_Session_Key="desk"))
        await until(lambda: fixture.gateway.worker.running == 1)
        await fixture.web.stop()
        assert (await waiting).text == "slow"
        with pytest.raises(aiohttp.ClientConnectionError):
            await fixture.ask("GET", "/health")


async def test_a_stopping_gateway_refuses_messages_and_answers_waiting_requests(tmp_path: Path) -> None:
    script = lambda _: Say("very slow", chunks=100, delay_s=0.1)  # noqa: E731
    async with (
        ModelServer(script) as model,
        http_gateway(tmp_path, model, gateway=GatewaySettings(drain_s=0.2)) as fixture,
    ):
        waiting = asyncio.ensure_future(fixture.say("hello", X_Session_Key="desk"))
        await until(lambda: fixture.gateway.worker.running == 1)
        stopping = asyncio.ensure_future(fixture.gateway.stop(0.3))
        await until(lambda: fixture.gateway.draining)
        assert (await fixture.ask("GET", "/ready")).status == 503
        assert (await fixture.ask("GET", "/health")).status == 200
        refused = await fixture.say("more", X_Session_Key="desk")
        assert (refused.status, refused.code) == (503, "stopping")
        await stopping
        await fixture.web.stop()
        answer = await waiting
        assert (answer.status, answer.code) == (503, "stopping")
