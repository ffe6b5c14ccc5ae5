"""Test the loopback platform against the platform contract, with its server in a separate process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from everthread.ports.platform import Platform
from everthread.testing.contracts.platform import PlatformContract, RemoteSide
from everthread.testing.loopback import protocol as wire
from everthread.testing.loopback.platform import LoopbackPlatform
from everthread.testing.loopback.users import LoopbackUsers


class Server:
    def __init__(self, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "everthread.testing.loopback.server", *options], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.base_url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class ThroughAdmin:
    """`RemoteSide` implemented with the server's admin calls."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def say(self, chat: str, text: str) -> None:
        async with LoopbackUsers(self._server.base_url) as people:
            await people.say(chat, text)

    async def press(self, chat: str, label: str) -> None:
        async with LoopbackUsers(self._server.base_url) as people:
            await people.press(chat, label)

    async def shown(self, chat: str) -> list[str]:
        async with LoopbackUsers(self._server.base_url) as people:
            await people.refresh()
            return people.texts(chat)

    async def busy(self, seconds: float) -> None:
        await self._fault(wire.Fault("busy", "send", seconds=seconds))

    async def lose(self) -> None:
        await self._fault(wire.Fault("drop_after", "send"))

    async def refuse(self) -> None:
        await self._fault(wire.Fault("refuse", "send"))

    async def stall(self) -> None:
        await self._fault(wire.Fault("delay", "send", seconds=60.0))

    async def leave(self) -> None:
        self._server.end()

    async def _fault(self, fault: wire.Fault) -> None:
        async with LoopbackUsers(self._server.base_url) as people:
            await people.fault(fault)


class TestLoopbackPlatform(PlatformContract):
    options: tuple[str, ...] = ()

    @pytest.fixture
    def server(self) -> Iterator[Server]:
        server = Server(*self.options)
        yield server
        server.end()

    @pytest.fixture
    def remote(self, server: Server) -> RemoteSide:
        return ThroughAdmin(server)

    @pytest.fixture
    def platform(self, server: Server) -> Platform:
        return LoopbackPlatform("loop", server.base_url, edits=True)


class TestWhereARepetitionShows(TestLoopbackPlatform):
    options = ("--repeats",)

    @pytest.fixture
    def platform(self, server: Server) -> Platform:
        return LoopbackPlatform("loop", server.base_url, idempotent=False)
