import asyncio
import tempfile
from pathlib import Path

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import Inbound, Message, Role, SessionKey
from everthread.ports.memory import MemoryProvider

HERE = SessionKey.parse("agent:main:cli:dm:1")  # where the conversation takes place
events = []


class Diary(MemoryProvider):
    name = "diary"

    async def on_session_switch(self, new_session_id, *, reason, **_):
        events.append((new_session_id, f"opened: {reason}"))

    async def sync_turn(self, user, assistant, *, ref, **_):
        events.append((ref.session_id, f"turn: {user} / {assistant}"))

    async def on_session_end(self, messages, *, ref, **_):
        events.append((ref.session_id, f"closed with {len(messages)} messages"))


async def say(lifecycle, text):
    await lifecycle.accept(Inbound(HERE, "me", text))  # from here on, the message is safe
    claim = await lifecycle.begin_turn(HERE)
    answer = f"You said: {text}"  # a model would go here
    await lifecycle.commit_turn(claim, [Message(Role.USER, text), Message(Role.ASSISTANT, answer)], answer)


async def main(home):
    async with Runtime(Settings(Path(home)), providers=[Diary()]) as runtime:
        await runtime.start()
        await say(runtime.lifecycle, "I keep bees.")
        await say(runtime.lifecycle, "Three hives.")
        await runtime.lifecycle.cross(HERE, New(title="Holidays"), owner="me")
        await runtime.drain()
    for session_id, event in sorted(events, key=lambda pair: pair[0]):
        print(session_id[-4:], event)


with tempfile.TemporaryDirectory() as home:
    asyncio.run(main(home))
