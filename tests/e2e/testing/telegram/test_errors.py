"""Error responses of the Bot API."""

from __future__ import annotations

from typing import Any

import aiohttp
from tests.e2e.telegram_fixture import scene
from tests.e2e.telegram_libraries import Aiogram

from everthread.testing.telegram.protocol import Fault


async def test_errors_have_the_format_of_the_bot_api() -> None:
    async with scene(Aiogram()) as s, aiohttp.ClientSession() as http:

        async def called(path: str) -> tuple[int, dict[str, Any]]:
            async with http.get(f"{s.emulator.base_url}/{path}") as response:
                return response.status, await response.json()

        assert await called("bot42:WRONG/getMe") == (
            401,
            {"ok": False, "error_code": 401, "description": "Unauthorized"},
        )
        not_found = {"ok": False, "error_code": 404, "description": "Not Found"}
        assert await called("bot42:TEST/noSuchMethod") == (404, not_found)
        assert await called("nonsense") == (404, not_found)
        assert await called("file/bot42:TEST/no/such") == (404, not_found)
        await s.people.fault(Fault("busy", seconds=35))
        description = "Too Many Requests: retry after 35"
        parameters = {"retry_after": 35}
        assert await called("bot42:TEST/getMe") == (
            429,
            {"ok": False, "error_code": 429, "description": description, "parameters": parameters},
        )
