"""A stub server that accepts every request immediately."""

from __future__ import annotations

import asyncio

from everthread.testing.model_server.http import HttpServer, read_request, respond


class AcceptingServer(HttpServer):
    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await read_request(reader)
        return await respond(writer, 200, b"{}")


if __name__ == "__main__":
    AcceptingServer().run_as_process(0)
