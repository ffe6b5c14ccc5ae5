"""The Telegram adapter: buttons that Telegram accepts, and files that are fetched only from its server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.fakes.scripted import ScriptedService

from everthread.adapters.platforms.telegram import TelegramPlatform, TokenLock
from everthread.config.schema import PlatformAccount
from everthread.domain.errors import PlatformRefused
from everthread.ports.platform import BUTTON_COMMAND_BYTES_MAX, Address, Button, Media, Outbound
from everthread.testing.telegram.server import TOKEN, TelegramEmulator
from everthread.testing.telegram.users import TelegramUsers

ANN = 7


@asynccontextmanager
async def platform_at(base_url: str, folder: Path) -> AsyncIterator[TelegramPlatform]:
    account = PlatformAccount("telegram", base_url=base_url)
    platform = TelegramPlatform("telegram", account, TOKEN, TokenLock(folder, TOKEN), commands={})
    try:
        yield platform
    finally:
        await platform.aclose()


async def test_a_button_whose_command_has_too_many_bytes_is_left_out(tmp_path: Path) -> None:
    fits, too_long = "é" * (BUTTON_COMMAND_BYTES_MAX // 2), "é" * (BUTTON_COMMAND_BYTES_MAX // 2 + 1)
    buttons = (Button("Fits", fits), Button("Too long", too_long))
    async with TelegramEmulator(TOKEN) as emulator, TelegramUsers(emulator.base_url) as users:
        await users.say(ANN, "hello")
        async with platform_at(emulator.base_url, tmp_path) as platform:
            await platform.send(Outbound("turn-1.0", Address(str(ANN)), "May I?", buttons))
        shown = (await users.messages(ANN))[-1]
    assert [button for row in shown.buttons for button in row] == [("Fits", fits)]


async def test_a_file_of_this_machine_is_never_read(tmp_path: Path) -> None:
    """A server may answer with a path instead of a URL, and the library does not change the path of a local file."""
    secret = tmp_path / "passwords.txt"
    secret.write_text("hunter2")
    with ScriptedService() as service:
        found = {"file_id": "f", "file_unique_id": "u", "file_path": str(secret)}
        service.script(f"POST /bot{TOKEN}/getFile", {"ok": True, "result": found})
        async with platform_at(service.address, tmp_path) as platform:
            with pytest.raises(PlatformRefused, match="can't be fetched from there"):
                await platform.fetch(Media("file", handle="f"), 1000)
        # Nor is the path sent anywhere.
        assert service.calls == [f"POST /bot{TOKEN}/getFile"]


async def test_a_url_of_a_file_is_fetched_only_from_the_server(tmp_path: Path) -> None:
    with ScriptedService() as service:
        found = {"file_id": "f", "file_unique_id": "u", "file_path": "file:///etc/passwd"}
        service.script(f"POST /bot{TOKEN}/getFile", {"ok": True, "result": found})
        async with platform_at(service.address, tmp_path) as platform:
            with pytest.raises(PlatformRefused, match="no longer available"):
                await platform.fetch(Media("file", handle="f"), 1000)
        assert service.calls[1:] == [f"GET /file/bot{TOKEN}/file:///etc/passwd"]
