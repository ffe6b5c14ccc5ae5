"""A provider that rejects pictures until a file allows them. Run this, repair the journal, run it again."""

import asyncio
from pathlib import Path

from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import load
from everthread.domain.boundary import New
from everthread.domain.errors import Rejected
from everthread.domain.model import Inbound, Message, Role, SessionKey
from everthread.ports.memory import MemoryProvider

HERE = SessionKey.parse("agent:main:cli:dm:1")


class Album(MemoryProvider):
    name = "album"

    def sync_turn(self, user, assistant, *, delivery, **_):
        if "picture" in user and not Path("pictures-allowed").exists():
            raise Rejected(self.name, "no pictures")
        print(f"entry {delivery.seq}, replay {delivery.replay}: {user}")

    def on_session_end(self, messages, *, delivery, missing, **_):
        print(f"entry {delivery.seq}, replay {delivery.replay}: closed, missing {missing}")


async def say(lifecycle, text):
    await lifecycle.accept(Inbound(HERE, "me", text))
    claim = await lifecycle.begin_turn(HERE)
    await lifecycle.commit_turn(claim, [Message(Role.USER, text), Message(Role.ASSISTANT, "nice")], "nice")


async def main():
    async with Runtime(load(), providers=[Album()]) as runtime:
        await runtime.start()
        if await runtime.lifecycle.current(HERE) is None:
            await runtime.lifecycle.cross(HERE, New(title="Lisbon"), owner="me")
            for text in ("hello", "a picture of the river", "goodbye"):
                await say(runtime.lifecycle, text)
            await runtime.lifecycle.cross(HERE, New(), owner="me")
        await runtime.drain()


asyncio.run(main())
