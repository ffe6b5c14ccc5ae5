"""Steps of messages, turns and commands."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

from everthread.domain.boundary import New
from everthread.domain.errors import AlreadyDone, Busy, Fenced
from everthread.domain.model import Inbound, Message, Role
from everthread.lifecycle import TurnClaim
from tests.explorer.actions import Action, Bounds, Step
from tests.explorer.world import KEYS, OWNER, CrossByCommand, World
from tests.simulator import operations as asked
from tests.simulator.reference_types import require


def _accept_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    if len(world.state.model.fates) < bounds.messages:
        for key in world.keys:
            yield Action("accept", key=key)


def accept(world: World, action: Action) -> None:
    """Accept the next message twice, because a platform may repeat an update."""
    number = len(world.state.model.fates) + 1
    key, text = KEYS[action.key], f"m{number}."
    inbound = Inbound(key, OWNER, text, update_id=text)
    lifecycle = world.lifecycle(action.process)
    row, new = world.do(action.process, asked.Accept(key, text, OWNER), lifecycle.accept(inbound))
    require(new, f"{text!r} is taken for a repetition")
    again, new = world.do(action.process, None, lifecycle.accept(inbound))
    require(not new and again.id == row.id, f"{text!r} was accepted twice")


def _begin_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    for key in world.keys:
        if world.state.model.waiting[KEYS[key]]:
            for process in world.actors():
                yield Action("begin", process, key)


def begin(world: World, action: Action) -> None:
    """Begin a turn. The first turn of a session stores its prompt prefix."""
    key, lifecycle = KEYS[action.key], world.lifecycle(action.process)
    first = world.rows(
        "SELECT command FROM inbox WHERE key = ? AND (state = 'waiting' OR (command AND state = 'running')) "
        "ORDER BY id LIMIT 1",
        str(key),
    )
    try:
        claim = world.do(action.process, asked.Begin(key), lifecycle.begin_turn(key))
    except Busy:
        require(world.is_running(world.session_at(action.key)), f"no turn runs at {key}, and none may begin")
        return
    if claim is None:
        require(not first or first[0][0], f"the message at {key} was not taken up")
        return
    require(not first[0][0], f"{claim.message.inbound.text!r} has overtaken a command")
    world.state.processes[action.process].claims[claim.turn_id] = claim
    session_id = claim.ref.session_id
    if world.tables.turns.prefix(session_id) is None:
        content, forget_count = f"prefix of {session_id}".encode(), world.tables.erasure.forget_count(OWNER)
        world.state.prefixes[session_id] = content
        world.do(action.process, None, lifecycle.put_prefix(claim.ref, content, forget_count))


def _choices_by_claim(verb: str, world: World) -> Iterator[Action]:
    for label, process in world.state.processes.items():
        for turn_id, claim in process.claims.items():
            key = next(name for name, key in KEYS.items() if key == claim.ref.key)
            yield Action(verb, label, key, turn_id)


def _commit_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    return _choices_by_claim("commit", world)


def commit(world: World, action: Action) -> None:
    _commit(world, action.process, world.state.processes[action.process].claims[action.detail])


def _commit(world: World, process: str, claim: TurnClaim) -> None:
    text = claim.message.inbound.text
    messages = (Message(Role.USER, text), Message(Role.ASSISTANT, f"answer to {text}"))
    work = world.lifecycle(process).commit_turn(claim, messages, f"answer to {text}")
    _end_claim(world, process, claim, asked.Commit(claim), work)


def _abandon_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    return _choices_by_claim("abandon", world)


def abandon(world: World, action: Action) -> None:
    abandon_claim(world, action.process, world.state.processes[action.process].claims[action.detail])


def abandon_claim(world: World, process: str, claim: TurnClaim) -> None:
    _end_claim(world, process, claim, asked.Abandon(claim), world.lifecycle(process).abandon_turn(claim))


def _end_claim(
    world: World, process: str, claim: TurnClaim, operation: object, work: Coroutine[Any, Any, object]
) -> None:
    """Run the last operation of a claim. The store refuses it if the claim is not valid any more."""
    slot = world.state.model.slots.get(claim.turn_id)
    is_valid = slot is not None and slot.claim == (claim.holder, claim.fence)
    try:
        world.do(process, operation, work)
    except Fenced:
        require(not is_valid, f"{claim.holder} was fenced out of its own turn {claim.turn_id}")
    del world.state.processes[process].claims[claim.turn_id]


def _recover_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    orphans = world.tables.slots.orphans(world.state.now)
    for process in world.actors():
        if any(slot.turn_id not in world.state.processes[process].claims for slot in orphans):
            yield Action("recover", process)


def recover(world: World, action: Action) -> None:
    """Store the cancelled turns of dead processes, and take over the others."""
    lifecycle, claims = world.lifecycle(action.process), world.state.processes[action.process].claims
    for turn_id in world.do(action.process, asked.Recover(), lifecycle.recover()):
        if turn_id not in claims:
            claim = world.do(action.process, asked.TakeOver(), lifecycle.resume_turn(turn_id))
            if claim is not None:
                claims[turn_id] = claim


def _converse_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    for action in _accept_choices(world, bounds):
        if not world.state.model.waiting[KEYS[action.key]]:
            yield Action("converse", key=action.key)


def converse(world: World, action: Action) -> None:
    """Accept a message and answer it."""
    accept(world, action)
    answer(world, action)


def answer(world: World, action: Action) -> None:
    """Answer the next message of a key."""
    claims = world.state.processes[action.process].claims
    held = set(claims)
    begin(world, action)
    for turn_id in set(claims) - held:
        _commit(world, action.process, claims[turn_id])


def _command_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    if world.state.used["commands"] < bounds.commands:
        for key in world.keys:
            yield Action("command", key=key, detail="/new")


def command(world: World, action: Action) -> None:
    """Accept a command. Like a message, it waits in the inbox."""
    used = world.state.used
    inbound = Inbound(KEYS[action.key], OWNER, "/new", update_id=f"c{used['commands'] + 1}", command=True)
    world.do(action.process, None, world.lifecycle(action.process).accept(inbound))
    used["commands"] += 1


def _run_command_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    for key in world.keys:
        row = world.tables.inbox.next(KEYS[key])
        if row is not None and row.inbound.command:
            for process in world.actors():
                yield Action("run command", process, key)


def run_command(world: World, action: Action) -> None:
    """Carry out the command that is next, and answer it. After a crash it is tried again."""
    key, lifecycle = KEYS[action.key], world.lifecycle(action.process)
    row = world.tables.inbox.next(key)
    assert row is not None
    waiting = "SELECT content FROM inbox WHERE key = ? AND state = 'waiting' AND NOT command AND id < ?"
    before = frozenset(text for (text,) in world.rows(waiting, str(key), row.id))
    crossing = lifecycle.cross(key, New(), owner=OWNER, command_id=row.id)
    try:
        world.do(action.process, CrossByCommand(key, New(), row.id, before), crossing)
    except AlreadyDone:
        require(row.id in world.state.model.commands_done, f"command {row.id} was never carried out")
    world.do(action.process, None, lifecycle.answer_command(row, "a new conversation"))


TURN_STEPS = {
    "accept": Step(_accept_choices, accept),
    "begin": Step(_begin_choices, begin),
    "commit": Step(_commit_choices, commit),
    "abandon": Step(_abandon_choices, abandon),
    "recover": Step(_recover_choices, recover),
    "converse": Step(_converse_choices, converse),
    "command": Step(_command_choices, command),
    "run command": Step(_run_command_choices, run_command),
}
