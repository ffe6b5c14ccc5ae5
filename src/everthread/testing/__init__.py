"""For authors of adapters (stores, lanes, memory, models, tools, platforms): kits to test one with, and honest fakes.

| kit | what an adapter brings |
|---|---|
| `store_contract.StoreContract` | a fixture that opens handles on one storage |
| `lanes_contract.LanesContract` | the same, and a fixture that makes lanes on a handle |
| `provider_contract.ProviderContract` | a fixture that makes the provider, and one that looks into its back end |
| `model_contract.ModelContract` | a fixture that makes the client, and the protocol it speaks |
| `tools_contract.ToolsContract` | a fixture that offers the tools |
| `platform_contract.PlatformContract` | a fixture that makes the platform, and one that is its other side |

A kit is a pytest class. Subclass it in a test module, give it its fixtures, and every test of the kit runs against your
adapter. The kits need the extra `everthread[testing]`.

For memory back ends, real or fake: `back_end_model`, a stub of the embeddings and the model that they want, and
`fault_proxy`, which spoils what goes between a client and a server, by a seed.

Platforms to try one on, each a server on loopback that tests script: `loopback`, and `telegram`, whose Bot API bots of
any library can be tested with. Memory services that can't be had on a test machine: `fake_honcho`,
`fake_mem0`, `fake_supermemory`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """The coroutine function as a plain one that runs it in an event loop of its own: no pytest plugin is needed."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
