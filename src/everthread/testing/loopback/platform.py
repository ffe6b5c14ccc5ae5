"""Platform adapter for the loopback server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

from everthread.domain.errors import PlatformError, PlatformRefused, PlatformUnavailable, SendUncertain
from everthread.domain.model import ChatType
from everthread.ports.platform import Address, Button, Capabilities, Media, Outbound, Take, Update
from everthread.testing.loopback import protocol as wire
from everthread.testing.loopback.server import TEXT_CHARS_MAX

POLL_S = 25.0
CALL_S = 10.0


class LoopbackPlatform:
    """One account on a loopback server."""

    def __init__(
        self, name: str, base_url: str, *, idempotent: bool = True, edits: bool = False, call_s: float = CALL_S
    ) -> None:
        """Set `idempotent` if the server deduplicates repeated sends: see its option `--repeats`."""
        self._name = name
        self._base_url = base_url
        self._call_s = call_s
        self._session: aiohttp.ClientSession | None = None
        self.capabilities = Capabilities(
            TEXT_CHARS_MAX,
            edits=edits,
            edit_every_s=0.2,
            typing=True,
            buttons=True,
            files=True,
            threads=True,
            idempotent_send=idempotent,
            markdown="none",
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def finder(self) -> None:
        return None

    async def run(self, take: Take) -> None:
        offset = 0
        while True:
            poll = wire.Poll(offset, POLL_S)
            posted = await self._call("poll", poll, list[wire.PostedUpdate], timeout_s=POLL_S + self._call_s)
            await self._hand_over(posted, take)
            offset = max((one.number + 1 for one in posted), default=offset)

    async def send(self, message: Outbound) -> str:
        send = wire.Send(
            message.id,
            message.to.chat,
            message.text,
            message.to.thread,
            _pairs(message.buttons),
            tuple(file.name for file in message.files),
        )
        return (await self._call("send", send, dict[str, str], uncertain=True))["message_id"]

    async def edit(self, to: Address, message_id: str, text: str, buttons: tuple[Button, ...] = ()) -> None:
        await self._call("edit", wire.Edit(to.chat, message_id, text, _pairs(buttons)), None)

    async def show_typing(self, to: Address) -> None:
        await self._call("typing", wire.Typing(to.chat), None)

    async def fetch(self, media: Media, bytes_max: int) -> bytes:
        raise PlatformRefused("nothing comes with a message here")

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _hand_over(self, posted: Sequence[wire.PostedUpdate], take: Take) -> None:
        """Deliver each chat's updates in order and the chats concurrently. A chat that waits delays no other chat."""
        chats: defaultdict[str, list[Update]] = defaultdict(list)
        for one in posted:
            chats[one.said.chat].append(self._update(one))

        async def one_chat(updates: list[Update]) -> None:
            for update in updates:
                await take(update)

        try:
            async with asyncio.TaskGroup() as tasks:
                for updates in chats.values():
                    tasks.create_task(one_chat(updates))
        except ExceptionGroup as group:
            # An update that could not be stored is not acknowledged, so the server delivers it again.
            raise group.exceptions[0] from None

    def _update(self, posted: wire.PostedUpdate) -> Update:
        said, kind = posted.said, ChatType(posted.said.chat_type)
        return Update(
            self._name, "bot", posted.update_id, said.chat, kind, said.user, said.text, said.thread, said.user_name
        )

    async def _call(
        self, path: str, body: object, kind: Any, *, timeout_s: float = 0.0, uncertain: bool = False
    ) -> Any:
        """Call the server. Set `uncertain` for calls whose effect is unknown after a broken connection."""
        broken = SendUncertain if uncertain else PlatformUnavailable
        try:
            async with self._http().post(
                f"{self._base_url}/{path}",
                data=msgspec.json.encode(body),
                timeout=aiohttp.ClientTimeout(timeout_s or self._call_s),
            ) as response:
                answer = await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise PlatformUnavailable(f"it can't be reached ({type(error).__name__})") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise broken(f"the connection broke off ({type(error).__name__})") from None
        if response.status != 200:
            raise self._failure(response, broken)
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError:
            raise broken("it answered nonsense") from None

    def _failure(self, response: aiohttp.ClientResponse, broken: type[PlatformError]) -> PlatformError:
        if response.status == 429:
            return PlatformUnavailable("too much at once", float(response.headers.get("Retry-After", "1")))
        if response.status == 503:
            return PlatformUnavailable("it is overloaded")
        return broken(f"it failed ({response.status})") if response.status >= 500 else PlatformRefused("it refused")

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session


def _pairs(buttons: Sequence[Button]) -> tuple[tuple[str, str], ...]:
    return tuple((button.label, button.command) for button in buttons)
