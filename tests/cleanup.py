"""Providers that close their connections when the event loop of a test ends, whatever its result."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from everthread.ports.memory import MemoryProvider

P = TypeVar("P", bound=MemoryProvider)


def close_with_loop(kind: type[P], **arguments: Any) -> P:
    """Create a provider of that class. The contract kit ends many loops without a shutdown."""

    class Tidy(kind):  # pyright: ignore[reportGeneralTypeIssues] - a subclass of whatever comes
        async def initialize(self, **settings: Any) -> None:
            await super().initialize(**settings)  # pyright: ignore[reportGeneralTypeIssues]
            # The loop closes its async generators when it ends.
            self.until_the_end = self._until_the_end()
            await anext(self.until_the_end)

        async def _until_the_end(self) -> AsyncGenerator[None, None]:
            try:
                yield
            finally:
                await self.shutdown()  # pyright: ignore[reportGeneralTypeIssues]

    return Tidy(**arguments)  # pyright: ignore[reportReturnType]
