"""A conversation in the terminal. The model only echoes; everything around it is real."""

import asyncio
import sys
from pathlib import Path

from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import load
from everthread.domain.boundary import New
from everthread.domain.errors import Busy, Unavailable
from everthread.domain.model import Inbound, Message, Role, SessionKey
from everthread.ports.memory import MemoryProvider

HERE = SessionKey.parse("agent:main:cli:dm:echo")
OWNER = "me"


class Diary(MemoryProvider):
    """Writes one line per entry to `diary.txt`. It is unavailable while a file `closed` exists."""

    name = "diary"

    def on_session_switch(self, new_session_id, *, delivery, reason="", **_):
        self.write(delivery, f"opened, {reason}")

    def sync_turn(self, user, assistant, *, delivery, **_):
        self.write(delivery, f"{user} / {assistant}")

    def on_session_end(self, messages, *, delivery, **_):
        self.write(delivery, f"closed, {len(messages)} messages")

    def write(self, delivery, text):
        if Path("closed").exists():
            raise Unavailable(self.name, "the diary is closed")
        with Path("diary.txt").open("a+") as diary:
            diary.seek(0)
            if delivery.key not in diary.read().split():  # a repeated entry is written once
                diary.write(f"{delivery.key}  {text}\n")


async def echo(text):
    if text.startswith("think"):
        await asyncio.sleep(5)
    return f"{text}, {text}"


async def answer(lifecycle, claim):
    text = claim.message.inbound.text
    reply = await echo(text)
    done = await lifecycle.commit_turn(claim, [Message(Role.USER, text), Message(Role.ASSISTANT, reply)], reply)
    print(f"{done.number}> {reply}", flush=True)


async def catch_up(lifecycle):
    """Answer pending messages: first the unfinished turns of a killed process, then the inbox in order."""
    try:
        for turn_id in await lifecycle.recover():
            if claim := await lifecycle.resume_turn(turn_id):
                await answer(lifecycle, claim)
        while claim := await lifecycle.begin_turn(HERE):
            await answer(lifecycle, claim)
    except Busy as error:
        print(f"kept for later: {error}", flush=True)


async def main():
    async with Runtime(load(), providers=[Diary()]) as runtime:
        await runtime.start()
        await catch_up(runtime.lifecycle)
        while (text := await asyncio.to_thread(sys.stdin.readline)) != "":
            if text.strip() == "/new":
                crossing = await runtime.lifecycle.cross(HERE, New(), owner=OWNER)
                print(f"new session {crossing.ref.session_id}", flush=True)
            elif text.strip():
                await runtime.lifecycle.accept(Inbound(HERE, OWNER, text.strip()))
                await catch_up(runtime.lifecycle)


asyncio.run(main())
