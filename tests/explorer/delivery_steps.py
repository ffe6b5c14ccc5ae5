"""Steps that send something out: log entries to memory providers, replies to the chat platform; and notes."""

from __future__ import annotations

from collections.abc import Iterator

from everthread.domain.errors import EverthreadError, Fenced
from everthread.domain.model import NoteAction, NoteTarget
from everthread.gateway.outbox import Outbox
from everthread.lifecycle import NoteChange
from everthread.memory.delivery import DeliveryService
from everthread.memory.delivery_results import Limits
from everthread.memory.manager import lane_name
from everthread.memory.provider_calls import Caller
from tests.explorer.actions import Action, Bounds, Step
from tests.explorer.platform import RecordingPlatform, provider_of
from tests.explorer.world import KEYS, OWNER, World
from tests.simulator import operations as asked
from tests.simulator.reference_types import require

LIMITS = Limits(lanes_max=1, backoff_s=1.0, backoff_s_max=4.0, breaker_failures=4, breaker_s=4.0)
"""One lane at a time: between the check of a lease and the attempt, no other lane can stall the process."""
FAULTS = ("error", "lost", "reject")
"""The provider is down; it stores the entry and its answer is lost; it rejects the entry for good."""
SEND_S = 60.0


def delivery(world: World, process: str, provider: str, fault: str = "") -> DeliveryService:
    """Create the delivery service of a process. It keeps nothing in memory that the store lacks."""

    def began(name: str, holder: str) -> None:
        rows = world.rows("SELECT holder FROM leases WHERE name = ?", lane_name(name))
        if rows != [(holder,)]:
            # Not raised, because the service would treat it as a failure of the provider.
            world.state.problems.append(f"{holder} delivers to {name}, the lease is {rows}")

    receiver = provider_of(world.state.backends[provider], world.state.processes[process].name, fault, began)
    callers = {provider: Caller(receiver)}
    return DeliveryService(world.stores[process], world, callers, random=lambda: 0.5, limits=LIMITS)


async def deliver_to(world: World, process: str, provider: str, fault: str = "") -> float | None:
    """Deliver all due entries. Returns the time at which the next one is due."""
    lease = await world.lease(process, lane_name(provider))
    if lease is None:
        return None
    service = delivery(world, process, provider, fault)
    try:
        due = await service.drain(provider, lease)
        await service.idle()
        while due is not None and due <= world.state.now:
            due = await service.drain(provider, lease)
            await service.idle()
        return due
    except Fenced:
        world.state.processes[process].leases.pop(lane_name(provider), None)
        return None


def has_entries(world: World, provider: str) -> bool:
    """Return True if a provider has entries to get, now or later."""
    return bool(
        world.rows(
            "SELECT 1 FROM providers WHERE name = ? AND scanned_pos < (SELECT MAX(pos) FROM log) UNION ALL "
            "SELECT 1 FROM cursors WHERE provider = ? AND due_at IS NOT NULL UNION ALL "
            "SELECT 1 FROM redeliveries WHERE provider = ? AND due_at IS NOT NULL LIMIT 1",
            *(provider, provider, provider),
        )
    )


def _deliver_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    if not has_entries(world, "alpha"):
        return
    for process in world.actors():
        yield Action("deliver", process)
    if world.state.used["faults"] < bounds.faults:
        for fault in FAULTS:
            yield Action("deliver", detail=fault)


def deliver(world: World, action: Action) -> None:
    """Deliver all due entries to `alpha`; the first attempt may fail."""
    world.state.used["faults"] += bool(action.detail)
    if action.overtaken_at:
        world.stores[action.process].interrupt(action.overtaken_at, lambda: _overtake(world, action))
    world.run(deliver_to(world, action.process, "alpha", action.detail))


async def _overtake(world: World, action: Action) -> None:
    """Let the process stall, and the other one deliver in its place."""
    world.state.used["stalls"] += 1
    world.expire_leases(action.process)
    await deliver_to(world, world.other(action.process), "alpha")


def _retry_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    if world.rows("SELECT 1 FROM redeliveries WHERE provider = 'alpha' AND due_at IS NULL LIMIT 1"):
        yield Action("retry")


def retry(world: World, action: Action) -> None:
    """Make the entries that `alpha` rejected due again."""
    world.run(delivery(world, action.process, "alpha").retry("alpha"))


def has_replies(world: World) -> bool:
    """Return True if a reply is to be sent, or was being sent when its process died."""
    return bool(world.rows("SELECT 1 FROM replies WHERE state IN ('ready', 'sending') LIMIT 1"))


def _send_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    if has_replies(world):
        yield Action("send")


def send(world: World, action: Action) -> None:
    """Send the replies that are ready. A new process first takes over those of the one before."""
    world.run(_send(world, action.process))


async def _send(world: World, process: str) -> None:
    platform = RecordingPlatform(world.state.sent)
    outbox = Outbox(world.stores[process], world, {platform.name: platform}, lambda: 0.5)
    if world.state.processes[process].sends:
        await outbox.sweep()
    else:
        world.state.processes[process].sends = True
        await outbox.begin()
    await outbox.finish(world.loop.time() + SEND_S)


def _note_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    if world.state.used["notes"] >= bounds.notes:
        return
    for label, process in world.state.processes.items():
        for turn_id in process.claims:
            yield Action("note", label, detail=turn_id)
    if world.session_at(world.keys[0]) is not None:
        yield Action("note", key=world.keys[0])


def note(world: World, action: Action) -> None:
    """Write a note in a running turn, whose key may have moved to another session, or at a key."""
    claim = world.state.processes[action.process].claims.get(action.detail)
    ref = claim.ref if claim is not None else world.tables.sessions.ref(KEYS[action.key])
    assert ref is not None
    world.state.used["notes"] += 1
    change = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, f"note in {ref.session_id}.")
    work = world.lifecycle(action.process).write_note(change, owner=OWNER, ref=ref)
    try:
        world.do(action.process, asked.Note(ref, OWNER, change), work)
    except EverthreadError:
        forgotten = world.state.model.sessions[ref.session_id].forgotten
        require(forgotten, f"a note in {ref.session_id} was refused")


DELIVERY_STEPS = {
    "deliver": Step(_deliver_choices, deliver, may_be_overtaken=True),
    "retry": Step(_retry_choices, retry),
    "send": Step(_send_choices, send),
    "note": Step(_note_choices, note),
}
