"""The HTTP interface as a platform, so that it can run the platform contract.

The roles are reversed over HTTP. The caller is the upstream: it keeps requests that were not accepted, and sends them
again under the same `Idempotency-Key`. The interface sends only responses. To send a message, the adapter requests it
in that chat, the model says it, and the response carries it. Everything between is real: the gateway, its store, its
server, and a proxy that drops responses on demand.
"""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NoReturn

import aiohttp

from everthread.config.schema import GatewaySettings
from everthread.domain.errors import BadConfig, PlatformRefused, PlatformUnavailable, SendUncertain, StoreBusy
from everthread.domain.model import ChatType, Inbound
from everthread.ports.platform import Address, Button, Capabilities, Media, Outbound, Take, Update
from everthread.testing.fault_proxy import Fault, FaultProxy
from everthread.testing.model_server.replies import End, Fail, Reply, Say
from everthread.testing.model_server.server import ModelServer
from tests.http_gateway import Answer, HttpGateway, http_gateway

PER_MINUTE = 6
DRAIN_S = 0.5
AGAIN_S = 0.05
OTHER_WAY_ROUND = "over HTTP whoever is there comes by themselves"


class HttpGatewayFixture:
    """State shared by both sides: the gateway with its HTTP server, which can be stopped and restarted on the same
    home.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.to_say: dict[str, Reply] = {}
        """Replies of the model, by prompt."""
        self.fault: Reply | None = None
        """Reply of the model to the next sent message, instead of its text."""
        self.place: HttpGateway | None = None
        self.loses_the_next = False
        """Drop the next response."""
        self.taken: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Set when an update is accepted, by update id."""
        self.callers: set[asyncio.Future[None]] = set()
        self._listens = False
        self._stack = AsyncExitStack()
        self._squatter: socket.socket | None = None

    async def open(self) -> HttpGateway:
        if self.place is not None and not self._listens:
            self.place.web = self.place.runtime.web(self.place.gateway)
            await self.place.web.start()
        elif self.place is None:
            gateway = GatewaySettings(messages_per_minute=PER_MINUTE, drain_s=DRAIN_S)
            model = await self._stack.enter_async_context(ModelServer(self._reply))
            try:
                self.place = await self._stack.enter_async_context(
                    http_gateway(self._home, model, gateway=gateway, port=self.port, drain_s=DRAIN_S)
                )
            except BadConfig as error:
                await self.close()
                raise PlatformUnavailable(str(error)) from None
        self._listens = True
        return self.place

    async def shut_the_door(self) -> None:
        if self.place is not None and self._listens:
            self._listens = False
            await self.place.web.stop()

    async def close(self) -> None:
        self.place, self._listens = None, False
        await self._stack.aclose()

    async def finish(self) -> None:
        for caller in self.callers:
            caller.cancel()
        if self.callers:
            await asyncio.wait(self.callers)
        await self.close()
        if self._squatter is not None:
            self._squatter.close()

    def squat(self) -> None:
        """Occupy the port without answering on it."""
        self._squatter = socket.socket()
        self._squatter.bind(("127.0.0.1", self.port))

    def _reply(self, request: Any) -> Reply:
        asked = str([message.content for message in request.messages if message.role == "user"][-1]).splitlines()[0]
        return self.to_say.get(asked, Say(f"You said: {asked}"))

    async def ask_through(self, chat: str, text: str, update_id: str) -> Answer:
        """Send a request, through a proxy that drops the response if ordered."""
        if not self.loses_the_next:
            return await self.ask(self.port, chat, text, update_id)
        self.loses_the_next = False
        async with FaultProxy(self.port) as proxy:
            proxy.inject(Fault.LOST)
            return await self.ask(proxy.port, chat, text, update_id)

    async def ask(self, port: int, chat: str, text: str, update_id: str) -> Answer:
        """Send a request as a normal client."""
        file = self._home / "local.token"
        # Without the file, the gateway has never listened.
        token = file.read_text().strip() if file.exists() else ""
        headers = {"X-Session-Key": chat, "Idempotency-Key": update_id, "Content-Type": "application/json"}
        headers["Authorization"] = f"Bearer {token}"
        body = {"model": "everthread", "messages": [{"role": "user", "content": text}]}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, headers=headers) as response,
        ):
            return Answer(response.status, response.headers, await response.read())


class HttpAsPlatform:
    """`Platform` implemented with HTTP requests."""

    name = "http"
    capabilities = Capabilities(text_chars_max=300_000, idempotent_send=True, markdown="none")
    finder = None

    def __init__(self, building: HttpGatewayFixture) -> None:
        self._building = building

    async def run(self, take: Take) -> None:
        place = await self._building.open()
        accept, failed = place.gateway.lifecycle.accept, asyncio.get_running_loop().create_future()

        async def handed_over(inbound: Inbound, **more: Any) -> Any:
            try:
                await take(_update(inbound))
            except Exception as error:
                if not failed.done():
                    failed.set_exception(error)
                raise StoreBusy("another program holds the write lock; try again") from error
            accepted = await accept(inbound, **more)
            self._building.taken[inbound.update_id or ""].set()
            return accepted

        place.gateway.lifecycle.accept = handed_over  # type: ignore[method-assign]
        try:
            await failed
        finally:
            await self._building.shut_the_door()
            place.gateway.lifecycle.accept = accept  # type: ignore[method-assign]

    async def send(self, message: Outbound) -> str:
        asked = f"Please say {message.id}."
        self._building.to_say[asked] = self._building.fault or Say(message.text)
        self._building.fault = None
        place = await self._building.open()
        try:
            answer = await self._building.ask_through(message.to.chat, asked, message.id)
        except aiohttp.ClientConnectorError as error:
            raise PlatformUnavailable(str(error)) from None
        except aiohttp.ClientError as error:
            raise SendUncertain(str(error)) from None
        if answer.status != 200:
            self._tell(place, answer)
        assert answer.text == message.text
        return answer.headers["X-Turn-Id"]

    def _tell(self, place: HttpGateway, answer: Answer) -> NoReturn:
        assert answer.json["error"]["message"], "a refusal must state its reason"
        if answer.status in (429, 503):
            wait_s = float(answer.headers["Retry-After"])
            # Advance the clock by the retry-after time, so that the next request is allowed.
            place.clock.advance(wait_s)
            raise PlatformUnavailable(answer.json["error"]["message"], wait_s)
        assert 400 <= answer.status < 500, answer.body
        raise PlatformRefused(answer.json["error"]["message"])

    async def edit(self, to: Address, message_id: str, text: str, buttons: tuple[Button, ...] = ()) -> None:
        raise PlatformRefused("an answer that is out stays as it is")

    async def show_typing(self, to: Address) -> None:
        pass

    async def fetch(self, media: Media, bytes_max: int) -> bytes:
        raise PlatformRefused("nothing comes with a message")

    async def aclose(self) -> None:
        await self._building.finish()


class HttpUsers:
    """HTTP users with one conversation each. A rejected message is sent again, before later ones of its chat."""

    def __init__(self, building: HttpGatewayFixture) -> None:
        self._building = building
        self._last: dict[str, asyncio.Future[None]] = {}
        self._count = 0

    async def say(self, chat: str, text: str) -> None:
        self._count += 1
        before = self._last.get(chat)
        caller = asyncio.ensure_future(self._say(chat, text, f"said-{self._count}", before))
        self._last[chat] = asyncio.ensure_future(self._taken(f"said-{self._count}"))
        self._building.callers |= {caller, self._last[chat]}

    async def _taken(self, update_id: str) -> None:
        await self._building.taken[update_id].wait()

    async def _say(self, chat: str, text: str, update_id: str, before: asyncio.Future[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        while True:
            try:
                answer = await self._building.ask(self._building.port, chat, text, update_id)
            except aiohttp.ClientError:
                # The server is not listening.
                await asyncio.sleep(AGAIN_S)
                continue
            if answer.status == 200:
                return
            assert answer.status == 503, answer.body
            assert float(answer.headers["Retry-After"]) > 0
            assert answer.headers.get("X-Should-Retry") != "false", "not accepted, so the client must retry"
            await asyncio.sleep(AGAIN_S)

    async def press(self, chat: str, label: str) -> None:
        raise NotImplementedError(OTHER_WAY_ROUND)

    async def shown(self, chat: str) -> list[str]:
        was_open = self._building.place is not None
        place = await self._building.open()
        try:
            return await self._answers(place, chat)
        finally:
            if not was_open:
                await self._building.close()

    async def _answers(self, place: HttpGateway, chat: str) -> list[str]:
        """Answers in a conversation, as its owner can read them."""
        texts: list[str] = []
        for session in (await place.ask("GET", "/api/sessions?limit=200")).json["data"]:
            shown = await place.runtime.store.read(lambda uow, session_id=session["id"]: uow.sessions.get(session_id))
            if shown is not None and shown.key.chat == chat:
                page = (await place.ask("GET", f"/api/sessions/{session['id']}/messages?limit=500")).json
                texts += [one["content"] for one in page["data"] if one["role"] == "assistant"]
        return texts

    async def busy(self, seconds: float) -> None:
        """Exhaust the rate limit, so that the next message is allowed after `seconds`."""
        place = await self._building.open()
        owner = place.gateway.settings.owner
        while place.gateway.rate_limiter.refusal(owner, place.clock.elapsed()) is None:
            pass
        place.clock.advance(60.0 / PER_MINUTE - seconds)

    async def lose(self) -> None:
        self._building.loses_the_next = True

    async def refuse(self) -> None:
        self._building.fault = Fail(400, "that is against the rules", "content_filter")

    async def stall(self) -> None:
        # Open first, so that only the answer is slow.
        await self._building.open()
        self._building.fault = Say("hello", end=End.STALL)

    async def leave(self) -> None:
        self._building.squat()


def _update(inbound: Inbound) -> Update:
    return Update(
        inbound.key.platform,
        inbound.account,
        inbound.update_id or "",
        inbound.key.chat,
        ChatType.DM,
        inbound.owner,
        inbound.text,
    )
