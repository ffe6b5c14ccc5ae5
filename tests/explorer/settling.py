"""After a schedule: the faults stop, the processes continue, and all remaining work must be completed."""

from __future__ import annotations

from tests.explorer.actions import Action
from tests.explorer.delivery_steps import deliver_to, delivery, has_entries, has_replies, send
from tests.explorer.turn_steps import answer, commit, recover, run_command
from tests.explorer.world import KEYS, PROCESSES, World
from tests.simulator.reference_types import require

ROUNDS_MAX = 40


def answer_everything(world: World) -> None:
    """Let the processes commit their turns. Then Q dies, and P answers all messages."""
    for process in PROCESSES:
        for turn_id in list(world.state.processes[process].claims):
            commit(world, Action("commit", process, detail=turn_id))
    world.expire_leases("Q")
    _answer_waiting(world)
    world.replace_process("Q")


def send_everything(world: World) -> None:
    """Let P run the hooks, deliver to the providers and send the replies."""
    _run_hooks(world)
    for provider in world.providers:
        deliver_everything(world, provider)
        if world.rows("SELECT 1 FROM redeliveries WHERE provider = ? LIMIT 1", provider):
            world.run(delivery(world, "P", provider).retry(provider))
            deliver_everything(world, provider)
    if has_replies(world):
        world.state.processes["P"].sends = False
        send(world, Action("send"))


def _answer_waiting(world: World) -> None:
    for _ in range(ROUNDS_MAX):
        recover(world, Action("recover"))
        for turn_id in list(world.state.processes["P"].claims):
            commit(world, Action("commit", detail=turn_id))
        waiting = [(key, row) for key in world.keys if (row := world.tables.inbox.next(KEYS[key]))]
        if not waiting:
            return
        for key, row in waiting:
            world.name_ids_after(key)
            if row.inbound.command:
                run_command(world, Action("run command", key=key))
            else:
                answer(world, Action("answer", key=key))
    require(False, f"messages wait for ever: {waiting}")


def deliver_everything(world: World, provider: str) -> None:
    """Deliver until a provider has every entry."""
    for _ in range(ROUNDS_MAX):
        if not has_entries(world, provider):
            return
        due = world.run(deliver_to(world, "P", provider))
        later = due - world.state.now if due is not None and due > world.state.now else 0.0
        world.pass_time(later)
    require(False, f"{provider} never gets everything")


def _run_hooks(world: World) -> None:
    """Record the queued hooks as called, in the order in which a plugin would get them."""
    lease = world.do("P", None, world.lease("P", "hooks"))
    require(lease is not None, "nobody can run the hooks")
    for hook in world.tables.leases.hooks(1000):
        world.state.hooks_called[hook.key].append((hook.call.hook, hook.call.session_id))
        world.tables.leases.drop_hook(hook.id)
