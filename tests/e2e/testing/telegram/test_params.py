"""Parameters of a call in every encoding that the Bot API accepts."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from tests.e2e.telegram_fixture import ANN, scene
from tests.e2e.telegram_libraries import Aiogram


@pytest.mark.parametrize("how", ["json", "form", "query", "multipart"])
async def test_parameters_are_read_from_every_encoding(how: str) -> None:
    async with scene(Aiogram()) as s, aiohttp.ClientSession() as http:
        url = f"{s.emulator.base_url}/bot{s.emulator.token}/sendmessage"
        keyboard = {"inline_keyboard": [[{"text": "Yes", "callback_data": "y"}]]}
        fields = {"chat_id": str(ANN), "text": "as it may", "reply_markup": json.dumps(keyboard)}
        sent: dict[str, Any] = {"data": fields}
        if how == "json":
            sent = {"json": {"chat_id": ANN, "text": "as it may", "reply_markup": keyboard}}
        elif how == "query":
            sent = {"params": fields}
        elif how == "multipart":
            form = aiohttp.FormData(default_to_multipart=True)
            for name, value in fields.items():
                form.add_field(name, value)
            sent = {"data": form}
        async with http.post(url, **sent) as response:
            body = await response.json()
        assert (body["ok"], body["result"]["text"]) == (True, "as it may")
        assert body["result"]["reply_markup"] == keyboard
        [_, shown] = await s.people.messages(ANN)
        assert shown.buttons == ((("Yes", "y"),),)
