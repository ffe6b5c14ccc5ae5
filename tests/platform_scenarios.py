"""Fixtures for scenarios that run on each platform."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from everthread.bootstrap.runtime import TIMERS_LANE, Runtime
from everthread.domain.model import ChatType, Session, SessionKey, Turn
from everthread.gateway.server import Gateway
from everthread.testing.model_server.server import ModelServer
from everthread.testing.telegram import protocol as wire
from tests.fake_platform import FakePlatform
from tests.gateway import ANNA, GatewayFixture, gateway_fixture
from tests.runtime import MovableClock, until
from tests.telegram_gateway import ANN, ANN_KEY, BOB, TelegramGateway, telegram_gateway

Where = Literal["fake", "telegram"]
Person = Literal["ann", "bob"]


class PlatformFixture(Protocol):
    runtime: Runtime
    gateway: Gateway
    clock: MovableClock
    ann: SessionKey
    """Session key of Ann's direct chat with the agent."""

    async def say(self, text: str, who: Person = "ann") -> None: ...
    async def say_in_a_group(self, text: str) -> None:
        """Send a message as Ann in a group."""
        ...

    async def hear(self, text: str, who: Person = "ann") -> list[str]:
        """Send a message and wait for the answers."""
        ...

    async def texts(self, who: Person = "ann") -> list[str]:
        """Messages of the agent in a direct chat, with edits applied."""
        ...

    async def group_texts(self) -> list[str]: ...
    async def offered(self) -> list[str]:
        """Commands of the buttons under the last message to Ann."""
        ...


class FakePlatformFixture:
    ann = ANNA
    _people = {"ann": ANNA.chat, "bob": "43"}

    def __init__(self, fixture: GatewayFixture) -> None:
        self._there = fixture
        self.runtime, self.gateway, self.clock = fixture.runtime, fixture.gateway, fixture.clock

    async def say(self, text: str, who: Person = "ann") -> None:
        self._there.platform.say(text, chat=self._people[who])

    async def say_in_a_group(self, text: str) -> None:
        self._there.platform.say(text, chat="g1", user=ANNA.chat, chat_type=ChatType.GROUP)

    async def hear(self, text: str, who: Person = "ann") -> list[str]:
        return await self._there.hear(text, self._people[who])

    async def texts(self, who: Person = "ann") -> list[str]:
        return self._there.platform.texts(self._people[who])

    async def group_texts(self) -> list[str]:
        return self._there.platform.texts("g1")

    async def offered(self) -> list[str]:
        return [button.command for button in self._there.platform.sent[-1].buttons]


class TelegramFixture:
    ann = ANN_KEY
    _people = {"ann": ANN, "bob": BOB}
    _group = wire.Group(-1001, "The office")

    def __init__(self, fixture: TelegramGateway, clock: MovableClock) -> None:
        self._there = fixture
        self.runtime, self.gateway, self.clock = fixture.runtime, fixture.gateway, clock

    async def say(self, text: str, who: Person = "ann") -> None:
        await self._there.people.say(self._people[who], text)

    async def say_in_a_group(self, text: str) -> None:
        await self._there.people.say(ANN, text, chat=await self._there.people.group(self._group))

    async def hear(self, text: str, who: Person = "ann") -> list[str]:
        return await self._there.hear(text, self._people[who])

    async def texts(self, who: Person = "ann") -> list[str]:
        await self._there.people.refresh()
        return self._there.people.texts(self._people[who])

    async def group_texts(self) -> list[str]:
        await self._there.people.refresh()
        return self._there.people.texts(self._group.id)

    async def offered(self) -> list[str]:
        shown = (await self._there.people.messages(ANN))[-1]
        return [command for row in shown.buttons for _, command in row]


@asynccontextmanager
async def platform_fixture(
    where: Where, home: Path, server: ModelServer, *, stream: bool = False, **more: Any
) -> AsyncIterator[PlatformFixture]:
    """Open a platform. With `stream`, answers are shown while they are generated."""
    clock = MovableClock()
    if where == "fake":
        platform = FakePlatform(buttons=True, edits=stream)
        async with gateway_fixture(home, server, platform, clock=clock, **more) as fixture:
            yield FakePlatformFixture(fixture)
    else:
        async with telegram_gateway(home, server, clock=clock, account={"stream": stream}, **more) as fixture:
            yield TelegramFixture(fixture, clock)


async def session_of(fixture: PlatformFixture, key: SessionKey | None = None) -> Session:
    found = await fixture.runtime.store.read(lambda uow: uow.sessions.at(key or fixture.ann)[1])
    assert found is not None
    return found


async def turns_of(fixture: PlatformFixture, session_id: str) -> tuple[Turn, ...]:
    return await fixture.runtime.store.read(
        lambda uow: uow.turns.own_turns(session_id, after=0, up_to=10**9, limit=10**6)
    )


async def later(fixture: PlatformFixture, seconds: float) -> None:
    """Advance the clock without waiting."""
    fixture.clock.advance(seconds)
    fixture.runtime.lanes.wake(TIMERS_LANE)


async def ended(fixture: PlatformFixture, session_id: str) -> None:
    for _ in range(4000):
        session = await fixture.runtime.store.read(lambda uow: uow.sessions.get(session_id))
        if session is not None and session.ended_at is not None:
            return
        await fixture.clock.sleep(0.002)
    raise AssertionError("it never ended")


async def running(fixture: PlatformFixture, text: str) -> str:
    """Send a message with a slow answer and wait until its turn runs. Return the session's id."""
    await fixture.say(text)
    await until(lambda: fixture.gateway.worker.running, "a turn that runs")
    return (await session_of(fixture)).id


async def seen(fixture: PlatformFixture, wanted: Any, what: str) -> None:
    """Wait until the messages that Ann sees fulfil the condition."""
    for _ in range(3000):
        if wanted(await fixture.texts()):
            return
        await fixture.clock.sleep(0.01)
    raise AssertionError(f"timed out waiting for {what}; there is {await fixture.texts()}")
