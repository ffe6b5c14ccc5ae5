"""The emulator as a process."""

from __future__ import annotations

import asyncio
import json
import sys

import aiohttp
from tests.e2e.telegram_fixture import ANN

from everthread.testing.telegram.users import TelegramUsers


async def test_the_process_prints_its_address_and_serves_until_it_is_stopped() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "everthread.testing.telegram", "--port", "0", "--token", "77:ABC", "--no-limits"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        address = json.loads(await process.stdout.readline())
        assert address == {
            "base_url": f"http://127.0.0.1:{address['port']}",
            "port": address["port"],
            "token": "77:ABC",
        }
        async with TelegramUsers(address["base_url"]) as people, aiohttp.ClientSession() as http:
            await people.say(ANN, "hello")
            bot_url = f"{address['base_url']}/bot77:ABC"
            for number in range(40):
                async with http.get(f"{bot_url}/sendMessage", params={"chat_id": ANN, "text": f"{number}"}) as response:
                    assert response.status == 200
            await people.until(lambda: len(people.texts(ANN)) == 40, "all of them, with no limits")
    finally:
        process.terminate()
        await process.wait()
