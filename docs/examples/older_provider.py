"""Use a class without an Everthread base class as a provider: each hook gets the arguments that it accepts."""

import asyncio
import tempfile
from pathlib import Path

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.model import Inbound, Message, Role, SessionKey

HERE = SessionKey.parse("agent:main:cli:dm:1")


class Scrapbook:
    name = "scrapbook"

    def sync_turn(self, user, assistant):
        print("turn:", user, "/", assistant)

    def on_session_switch(self, new_session_id, parent_session_id=""):
        print("switch, parent:", repr(parent_session_id))


async def main(home):
    async with Runtime(Settings(Path(home)), providers=[Scrapbook()]) as runtime:
        await runtime.start()
        await runtime.lifecycle.accept(Inbound(HERE, "me", "hello"))
        claim = await runtime.lifecycle.begin_turn(HERE)
        await runtime.lifecycle.commit_turn(claim, [Message(Role.USER, "hello"), Message(Role.ASSISTANT, "hi")], "hi")
        await runtime.drain()


with tempfile.TemporaryDirectory() as home:
    asyncio.run(main(home))
