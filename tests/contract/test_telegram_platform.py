"""Test Telegram against the platform contract with the emulated Bot API, by polling and by webhook."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.telegram_gateway import TOKEN, EmulatorProcess, introduce

from everthread.adapters.platforms.telegram import TelegramPlatform, TokenLock
from everthread.config.schema import PlatformAccount
from everthread.ports.platform import Platform
from everthread.testing.contracts.platform import CHAT, OTHER_CHAT, PlatformContract, RemoteSide
from everthread.testing.telegram import protocol as wire
from everthread.testing.telegram.users import TelegramUsers


class ThroughPeople:
    """`RemoteSide` implemented with the users of the emulator."""

    def __init__(self, emulator: EmulatorProcess) -> None:
        self._emulator = emulator

    async def say(self, chat: str, text: str) -> None:
        async with TelegramUsers(self._emulator.base_url) as people:
            await people.say(int(chat), text)

    async def press(self, chat: str, label: str) -> None:
        async with TelegramUsers(self._emulator.base_url) as people:
            shown = [one for one in await people.messages(int(chat)) if one.buttons]
            with_it = [one for one in shown if any(label == button[0] for row in one.buttons for button in row)]
            await people.press(int(chat), int(chat), with_it[-1].message_id, label)

    async def shown(self, chat: str) -> list[str]:
        async with TelegramUsers(self._emulator.base_url) as people:
            await people.refresh()
            return people.texts(int(chat))

    async def busy(self, seconds: float) -> None:
        await self._fault(wire.Fault("busy", "sendMessage", seconds=seconds))

    async def lose(self) -> None:
        await self._fault(wire.Fault("drop_after", "sendMessage"))

    async def refuse(self) -> None:
        await self._fault(wire.Fault("refuse", "sendMessage"))

    async def stall(self) -> None:
        await self._fault(wire.Fault("delay", "sendMessage", seconds=60.0))

    async def leave(self) -> None:
        self._emulator.end()

    async def _fault(self, fault: wire.Fault) -> None:
        async with TelegramUsers(self._emulator.base_url) as people:
            await people.fault(fault)


class TestTelegram(PlatformContract):
    @pytest.fixture
    def emulator(self) -> Iterator[EmulatorProcess]:
        emulator = EmulatorProcess()
        asyncio.run(introduce(emulator.base_url, int(CHAT), int(OTHER_CHAT)))
        yield emulator
        emulator.end()

    @pytest.fixture
    def remote(self, emulator: EmulatorProcess) -> RemoteSide:
        return ThroughPeople(emulator)

    @pytest.fixture
    def platform(self, emulator: EmulatorProcess, tmp_path: Path) -> Platform:
        account = PlatformAccount("telegram", base_url=emulator.base_url)
        return TelegramPlatform("telegram", account, TOKEN, TokenLock(tmp_path, TOKEN), commands={})


class TestTelegramByWebhook(TestTelegram):
    @pytest.fixture
    def platform(self, emulator: EmulatorProcess, tmp_path: Path) -> Platform:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        account = PlatformAccount(
            "telegram",
            base_url=emulator.base_url,
            webhook_url=f"http://127.0.0.1:{port}/telegram",
            webhook_port=port,
        )
        return TelegramPlatform("telegram", account, TOKEN, TokenLock(tmp_path, TOKEN), commands={}, secret="a-secret")
