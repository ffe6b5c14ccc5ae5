"""A plugin that prints session events, and one that fails."""

import asyncio
import tempfile
from pathlib import Path

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import New, Rewind
from everthread.domain.model import Inbound, Message, Role, SessionKey
from everthread.plugins import hookimpl

HERE = SessionKey.parse("agent:main:cli:dm:1")


class Follower:
    @hookimpl
    def on_session_start(self, session):
        print("start", session.cause.value)

    @hookimpl
    def on_turn_end(self, turn):
        print("turn", turn.number, turn.status.value)

    @hookimpl
    def on_session_finalize(self, platform):
        print("finalize, on", platform)

    @hookimpl
    def on_session_reset(self, session_id):
        print("reset")

    @hookimpl
    def on_boundary(self, boundary):
        print("boundary", boundary.kind, "by", boundary.actor)


class Clumsy:
    __name__ = "clumsy"  # its name in incident reports

    @hookimpl
    def on_session_reset(self):
        raise RuntimeError("dropped it")


async def main(home):
    async with Runtime(Settings(Path(home)), plugins=[Follower(), Clumsy()]) as runtime:
        await runtime.start()
        lifecycle = runtime.lifecycle
        await lifecycle.accept(Inbound(HERE, "me", "hello"))
        claim = await lifecycle.begin_turn(HERE)
        await lifecycle.commit_turn(claim, [Message(Role.USER, "hello"), Message(Role.ASSISTANT, "hi")], "hi")
        await lifecycle.cross(HERE, Rewind(), owner="me")
        await lifecycle.cross(HERE, New(), owner="me")
        await runtime.drain()
        for incident in await runtime.store.read(lambda uow: uow.incidents.newest(10)):
            print("incident", incident.source, incident.text)


with tempfile.TemporaryDirectory() as home:
    asyncio.run(main(home))
