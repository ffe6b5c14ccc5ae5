"""Recovery answers messages of dead terminals and leaves those of live processes alone."""

from collections.abc import Sequence
from pathlib import Path

from tests.e2e.chat_worker import ScriptedRuntime

from everthread.agent.events import TurnEnded
from everthread.cli.chat.recovery import Recovery
from everthread.cli.chat.session import ChatOptions, enter_session
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import ChatType, Inbound, SessionKey, SessionKind, TurnStatus


def terminal(process: str, profile: str = "main", platform: str = "cli") -> SessionKey:
    return SessionKey(profile, platform, ChatType.DM, process)


async def recovered(runtime: ScriptedRuntime, inbounds: Sequence[Inbound]) -> list[str]:
    for inbound in inbounds:
        await runtime.lifecycle.accept(inbound)
    finished: list[str] = []

    async def tell(ended: TurnEnded) -> None:
        finished.append(ended.text)

    key = await enter_session(runtime, ChatOptions())
    await Recovery(runtime, key, runtime.choices, tell, finished.append).once()
    return finished


async def test_only_messages_of_dead_terminals_are_recovered(tmp_path: Path) -> None:
    async with ScriptedRuntime(Settings(tmp_path), {}) as runtime:
        await runtime.ready()
        me, now = runtime.settings.owner, runtime.clock.now()
        await runtime.store.write(lambda uow: uow.leases.keep_alive("living", now, 30.0))
        finished = await recovered(
            runtime,
            [
                Inbound(terminal("gone"), me, "one"),
                Inbound(terminal("gone"), me, "two"),
                Inbound(terminal("living"), me, "not mine"),
                Inbound(terminal(runtime.holder), me, "this terminal's own"),
                Inbound(terminal("gone", platform="telegram"), me, "answered where it was asked"),
                Inbound(terminal("gone", profile="work"), me, "of another profile"),
                Inbound(terminal("gone too"), "somebody", "of another person"),
            ],
        )
        assert [text[:8] for text in finished] == ["echo one", "echo two"]
        assert len(await runtime.store.read(lambda uow: uow.inbox.keys_waiting())) == 5


async def test_delegated_work_without_a_waiting_turn_is_settled_and_not_answered(tmp_path: Path) -> None:
    async with ScriptedRuntime(Settings(tmp_path), {}) as runtime:
        await runtime.ready()
        me, key = runtime.settings.owner, terminal("1", platform="subagent")
        parent = (await runtime.lifecycle.cross(terminal("2"), New(), owner=me)).ref
        assert parent is not None
        await runtime.lifecycle.cross(key, New(kind=SessionKind.SUBAGENT, parent=parent.session_id), owner=me)
        await runtime.lifecycle.accept(Inbound(key, me, "look it up"))
        ticket = await runtime.lifecycle.begin_turn(key)
        assert ticket is not None
        # Simulate a process that died before it settled the turn.
        await runtime.store.write(lambda uow: uow.slots.take_over(ticket.turn_id, "gone"))
        assert await recovered(runtime, []) == []
        turn = await runtime.store.read(lambda uow: uow.turns.get(ticket.ref.session_id, 1))
        assert turn is not None
        assert turn.status is TurnStatus.INTERRUPTED
