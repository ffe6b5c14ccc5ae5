"""Test kits and fakes for authors of adapters (stores, lanes, memory, models, tools, platforms).

Contract kits. Subclass one in a test module and define its fixtures; every test of the kit then runs against the
adapter. The kits need the extra `everthread[testing]`.

| kit | fixtures the adapter provides |
|---|---|
| `contracts.store.StoreContract` | opens handles on one storage |
| `contracts.lanes.LanesContract` | the same, and one that creates lanes on a handle |
| `contracts.memory_provider.ProviderContract` | creates the provider; reads the contents of its back end |
| `contracts.model_client.ModelContract` | creates the client; the class attribute `protocol` names its protocol |
| `contracts.tools.ToolsContract` | offers the tools |
| `contracts.platform.PlatformContract` | creates the platform; controls the remote side |
| `contracts.transcriber.TranscriberContract` | creates the transcriber; controls its endpoint |

Fakes and servers on loopback, scripted by tests:

| module | contents |
|---|---|
| `model_server` | stub model endpoint: Chat Completions and Anthropic Messages |
| `backend_model` | stub embeddings and chat endpoint for memory back ends |
| `fault_proxy` | TCP proxy that injects seeded faults between a client and a server |
| `recording_provider` | in-memory memory provider that records calls and fails on demand |
| `loopback` | messaging platform for tests, with its adapter |
| `telegram` | Telegram Bot API emulator, usable with any bot library |
| `control_client` | client of a platform's control interface, base of `loopback.users` and `telegram.users` |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Wrap a coroutine function so that it runs in an event loop of its own. No pytest plugin is needed."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
