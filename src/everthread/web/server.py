"""Run the HTTP server in the gateway's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Generator

import uvicorn

from everthread.config.webhook_secrets import missing_secrets
from everthread.domain.api_key import BYTES, make_token
from everthread.domain.errors import BadConfig
from everthread.gateway.server import Gateway
from everthread.lifecycle.local_token import LocalToken
from everthread.web.app import make_app
from everthread.web.connections import Connection
from everthread.web.request import WebState
from everthread.web.unix_socket import BACKLOG, UnixSocket

KEEP_ALIVE_S = 75
RECEIVE_BUFFER_BYTES = 32 * 1024
END_S_MAX = 2.0
"""Time to send the last error responses on shutdown."""


class Web:
    """The HTTP server of a started gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._http = gateway.settings.gateway.http
        self.state = WebState(gateway)
        self._socket: UnixSocket | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Future[None] | None = None
        self.port: int | None = None
        """The port it listens on, after `start`. None for a Unix socket."""

    async def start(self) -> None:
        """Listen. Raise `BadConfig` if the address is unavailable or open to strangers."""
        await self._check()
        if self._http.auth != "none":
            await self._create_token()
        listener = self._bind()
        self._server = _Server(
            uvicorn.Config(
                make_app(self.state),
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                # Invalid requests of strangers must not fill the log.
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self._serving = asyncio.ensure_future(self._server.serve([listener]))
        up = asyncio.ensure_future(self._server.up.wait())
        await asyncio.wait({self._serving, up}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._serving.done():
            self._serving.result()

    async def stop(self) -> None:
        """Accept no more requests, and let the running ones end within the drain time; answer the rest with an error.

        After the gateway's own `stop`, it does not wait.
        """
        server, serving = self._server, self._serving
        if server is None or serving is None:
            return
        self._server = self._serving = None
        server.should_exit = True
        self.state.end_event_streams()
        if not self._gateway.draining:
            await asyncio.wait({serving}, timeout=self._gateway.settings.gateway.drain_s)
        self.state.stop()
        await asyncio.wait({serving}, timeout=END_S_MAX)
        server.force_exit = True
        for task in server.server_state.tasks:
            task.cancel()
        await asyncio.wait({serving}, timeout=END_S_MAX)
        serving.cancel()
        if self._socket is not None:
            self._socket.remove()

    async def _check(self) -> None:
        http, settings = self._http, self._gateway.settings
        if http.auth == "none" and http.socket is None:
            raise BadConfig('gateway.http.auth is "none", which admits everybody; set gateway.http.socket beside it')
        if not http.is_loopback:
            keys = await self._gateway.store.read_inline(lambda uow: uow.api_keys.all())
            if all(key.automatic for key in keys):
                raise BadConfig(
                    f"gateway.http.host is {http.host!r}, which other machines can reach, and you have created no "
                    "token; create one with `everthread tokens new NAME`, or listen on 127.0.0.1"
                )
        for problem, fix in missing_secrets(settings):
            raise BadConfig(f"{problem}; {fix}")

    async def _create_token(self) -> None:
        gateway = self._gateway
        local = LocalToken(gateway.store, gateway.clock, gateway.settings.local_token_path)
        await local.create_first(make_token(secrets.token_urlsafe(BYTES)), gateway.settings.owner)

    def _bind(self) -> socket.socket:
        if self._http.socket is not None:
            self._socket = UnixSocket(self._http.socket)
            return self._socket.listener
        host, port = self._http.host, self._http.port
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
            # Accepted connections inherit it. It bounds a single read, and so the data that has arrived and that no
            # request has counted yet: without it, hundreds of connections can hold 256 KiB each.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise BadConfig(
                f"can't listen on {host}:{port}: {why}; choose another gateway.http.host or port"
            ) from error
        self.port = listener.getsockname()[1]
        return listener


class _Server(uvicorn.Server):
    """A server that handles no signals, and sets an event when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()
