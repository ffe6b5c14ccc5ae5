"""Voice messages and a stub transcription endpoint."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from everthread.testing.telegram import protocol as wire

VOICE = wire.AttachedFile("voice", b"OggS some sounds", duration_s=3)


class TranscriptionServer:
    """Stub transcription endpoint."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.open = asyncio.Event()
        """Requests wait while it is not set."""
        self.open.set()
        self.asked: list[tuple[str, bytes, str]] = []

    async def __aenter__(self) -> TranscriptionServer:
        async def hear(request: web.Request) -> web.Response:
            form = await request.post()
            file: Any = form["file"]
            self.asked.append((str(form["model"]), file.file.read(), request.headers.get("Authorization", "")))
            await self.open.wait()
            return web.json_response({"text": " buy milk "}, status=self.status)

        app = web.Application()
        app.router.add_post("/v1/audio/transcriptions", hear)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.open.set()
        await self._runner.cleanup()
