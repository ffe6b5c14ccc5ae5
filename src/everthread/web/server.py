"""Run the HTTP server in the gateway's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator

import uvicorn

from everthread.domain.errors import BadConfig
from everthread.gateway.server import Gateway
from everthread.web.app import make_app
from everthread.web.auth import is_loopback
from everthread.web.connections import Connection
from everthread.web.request import WebState

KEEP_ALIVE_S = 75
END_S_MAX = 2.0
"""Time to send the last error responses on shutdown."""


class Web:
    """The HTTP server of a started gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._http = gateway.settings.gateway.http
        self._state = WebState(gateway, is_local=is_loopback(self._http.host))
        self._server: _Server | None = None
        self._serving: asyncio.Future[None] | None = None
        self.port = 0
        """The port it listens on, after `start`."""

    async def start(self) -> None:
        """Listen. Raise `BadConfig` if the address is unavailable or open to strangers."""
        await self._check()
        listener = self._bind()
        self.port = listener.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                make_app(self._state),
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
        self._state.end_event_streams()
        if not self._gateway.draining:
            await asyncio.wait({serving}, timeout=self._gateway.settings.gateway.drain_s)
        self._state.stop()
        await asyncio.wait({serving}, timeout=END_S_MAX)
        server.force_exit = True
        for task in server.server_state.tasks:
            task.cancel()
        await asyncio.wait({serving}, timeout=END_S_MAX)
        serving.cancel()

    async def _check(self) -> None:
        host, settings = self._http.host, self._gateway.settings
        if not self._state.is_local and not await self._gateway.store.read_inline(lambda uow: uow.api_keys.any_exist()):
            raise BadConfig(
                f"gateway.http.host is {host!r}, which other machines can reach, and there is no token; "
                "create one with `everthread tokens new NAME`, or listen on 127.0.0.1"
            )
        for name, hook in settings.gateway.webhooks.items():
            if not settings.secret(hook.secret_env):
                raise BadConfig(
                    f"the webhook {name} has no secret; put {hook.secret_env}=... into {settings.env_path}, or into "
                    "the environment"
                )

    def _bind(self) -> socket.socket:
        host, port = self._http.host, self._http.port
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=2048)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise BadConfig(
                f"can't listen on {host}:{port}: {why}; choose another gateway.http.host or port"
            ) from error


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
