"""Recall across sessions, with the provider of `shelf.py`."""

import asyncio
import tempfile
from pathlib import Path

from shelf import Shelf

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import Inbound, Message, Role, SessionKey

HERE = SessionKey.parse("agent:main:cli:dm:1")


async def main(home):
    async with Runtime(Settings(home), providers=[Shelf(home / "shelf.db")]) as runtime:
        await runtime.start()
        await runtime.lifecycle.accept(Inbound(HERE, "me", "I keep bees in Aarhus"))
        claim = await runtime.lifecycle.begin_turn(HERE)
        messages = [Message(Role.USER, "I keep bees in Aarhus"), Message(Role.ASSISTANT, "How many hives?")]
        await runtime.lifecycle.commit_turn(claim, messages, "How many hives?")
        crossing = await runtime.lifecycle.cross(HERE, New(), owner="me")
        await runtime.drain()

        recall = await runtime.memory.recall("where are my bees", ref=crossing.ref)
        for item in recall.items:
            print(f"{item.provider} and {item.also}: {item.text!r}, turn {item.turn}")
        print("usable here:", recall.usable_at(crossing.ref))
        later = await runtime.lifecycle.cross(HERE, New(), owner="me")
        print("usable after the next boundary:", recall.usable_at(later.ref))


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder)))
