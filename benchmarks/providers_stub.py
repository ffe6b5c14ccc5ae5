"""A stub server that accepts every request immediately."""

from __future__ import annotations

import asyncio
import contextlib

from everthread.testing.model_server.http import HttpServer, read_request, respond


class AcceptingServer(HttpServer):
    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await read_request(reader)
        return await respond(writer, 200, b"{}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(AcceptingServer().run_as_process(0))
