"""HTTP interface of a gateway on a real port, with a client."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from everthread.config.schema import GatewaySettings, HttpSettings
from everthread.domain.api_key import hash_token, make_token
from everthread.domain.model import SessionKey
from everthread.store.api_keys import ApiKey
from everthread.testing.model_server.server import ModelServer
from everthread.web import Web
from tests.gateway import GatewayFixture, gateway_fixture


class Answer:
    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def text(self) -> str:
        """Text of the agent's answer."""
        return self.json["choices"][0]["message"]["content"]

    @property
    def code(self) -> str:
        return self.json["error"]["code"]


def http_key(name: str, *, user: str | None = None) -> SessionKey:
    """Return the session key of a named conversation."""
    return SessionKey.parse(f"agent:main:http:dm:{name}" + (f"::{user}" if user else ""))


class HttpGateway(GatewayFixture):
    """GatewaySettings fixture with an HTTP server."""

    web: Web
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.web.port or 80}"

    @property
    def local_token(self) -> str:
        """The token that the gateway created at its first start."""
        return self.runtime.settings.local_token_path.read_text().strip()

    @property
    def auth(self) -> dict[str, str]:
        """The header of a request with the automatic token."""
        return {"Authorization": f"Bearer {self.local_token}"}

    async def token(self, owner: str, name: str = "test", **rights: Any) -> str:
        """Create an API key of that owner. Return its token."""
        token = make_token(f"{owner}-{name}".ljust(43, "x"))
        row = ApiKey(hash_token(token), owner, name, 1.0, **rights)
        await self.runtime.store.write(lambda uow: uow.api_keys.add(row))
        return token

    async def ask(self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str) -> Answer:
        """Send a request with that token: by default the automatic one, none if it is empty."""
        token = self.local_token if token is None else token
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        raw = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        data = None if raw is None else io.BytesIO(raw)
        async with self.http.request(method, self.url + path, data=data, headers=sent) as response:
            return Answer(response.status, response.headers, await response.read())

    async def converse(self, *texts: str, token: str | None = None, name: str = "desk") -> str:
        """Send messages in a conversation. Return the id of its session."""
        answers = [await self.say(text, token, X_Session_Key=name) for text in texts]
        return answers[-1].headers["X-Session-Id"]

    async def say(self, text: str, token: str | None = None, **headers: str) -> Answer:
        """Send a message in a conversation."""
        body = {"model": "everthread", "messages": [{"role": "user", "content": text}]}
        return await self.ask("POST", "/v1/chat/completions", body, token, **headers)


@asynccontextmanager
async def http_gateway(
    home: Path,
    model: ModelServer,
    *,
    gateway: GatewaySettings | None = None,
    http: HttpSettings | None = None,
    port: int = 0,
    **more: Any,
) -> AsyncIterator[HttpGateway]:
    http = http or HttpSettings(port=port)
    settings = msgspec.structs.replace(gateway or GatewaySettings(), http=http)
    connector = aiohttp.UnixConnector(str(http.socket)) if http.socket is not None else None
    async with (
        gateway_fixture(home, model, gateway=settings, **more) as fixture,
        aiohttp.ClientSession(connector=connector) as client,
    ):
        place = HttpGateway(fixture.runtime, fixture.gateway, fixture.platform, model, fixture.clock)
        place.web, place.http = fixture.runtime.web(fixture.gateway), client
        await place.web.start()
        try:
            yield place
        finally:
            async with asyncio.timeout(10):
                await place.web.stop()
