"""Test the configured services: model, memory provider, platform and MCP servers."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

from everthread.bootstrap.agent import Models, enabled_servers, mcp_servers
from everthread.bootstrap.memory_providers import make_provider
from everthread.config.schema import Settings
from everthread.domain.errors import EverthreadError, ModelUnavailable, Unavailable
from everthread.domain.model import Message, Role
from everthread.memory.provider_calls import Caller
from everthread.ports.clock import Clock
from everthread.ports.model import Prompt, Request

REACH_S_MAX = 30.0
LOCAL_S_MAX = 90.0
"""Longer, because a local model has to start first."""
MEMORY_S_MAX = 20.0
SHUTDOWN_S_MAX = 2.0
_OUTPUT_TOKENS = 16


async def reach(settings: Settings, model: str = "") -> str:
    """Send a one-word request to a model. Returns its name after the first output. Raises `ModelError`."""
    models = Models(settings)
    try:
        choice = models.choices(model)[0]
        is_local = settings.providers[choice.name.partition("/")[0]].kind == "local"
        bound_s = LOCAL_S_MAX if is_local else REACH_S_MAX
        head = choice.client.head(Prompt(choice.model, "Answer with one word."))
        request = Request(head, b"", (Message(Role.USER, "Say hello."),), output_tokens_max=_OUTPUT_TOKENS)
        try:
            async with asyncio.timeout(bound_s), aclosing(choice.client.stream(request)) as pieces:
                async for _ in pieces:
                    break
        except TimeoutError as error:
            raise ModelUnavailable(f"{choice.name} did not answer within {bound_s:g} s") from error
        return choice.name
    finally:
        await models.aclose()


async def try_memory(settings: Settings, name: str) -> str:
    """Start a memory provider, check its health and stop it. Raises `BadConfig` or `Unavailable`."""
    described = make_provider(name, settings)
    caller = Caller(described.provider, described.settings)
    try:
        await caller.ready(MEMORY_S_MAX)
        status = await caller.call("health", timeout_s=MEMORY_S_MAX) if caller.has("health") else "ok"
    except EverthreadError:
        raise
    except Exception as error:
        # A provider from another package may raise any exception.
        raise Unavailable(name, f"its health check failed: {str(error) or repr(error)}") from error
    finally:
        if caller.has("shutdown"):
            with suppress(Exception):
                await caller.call("shutdown", timeout_s=SHUTDOWN_S_MAX)
    if status != "ok":
        raise Unavailable(name, str(status).removeprefix(f"{name}: "))
    return str(status)


async def reach_platform(settings: Settings, clock: Clock, name: str) -> str:
    """Connect to a platform and return the account's name there. Raises `BadConfig` or `PlatformError`.

    A platform from another package is only created, because the `Platform` port can't return the account's name.
    """
    from everthread.bootstrap.platforms import make_platform

    platform = make_platform(settings, clock, name)
    try:
        if settings.platforms[name].kind != "telegram":
            return name
        from everthread.adapters.platforms.telegram import TelegramPlatform

        assert isinstance(platform, TelegramPlatform)
        return f"@{(await platform.who()).username}"
    finally:
        await platform.aclose()


async def try_mcp(settings: Settings, clock: Clock, *, offline: bool) -> dict[str, str]:
    """Start and stop the MCP servers. Returns the problem of each that can't be used."""
    wanted = {name: server for name, server in enabled_servers(settings).items() if server.command or not offline}
    if not wanted:
        return {}
    servers = mcp_servers(settings, wanted, clock)
    try:
        await servers.start()
        return servers.problems()
    finally:
        await servers.aclose()
