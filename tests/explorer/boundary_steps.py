"""Steps that cross a boundary, and those that make time pass or a process fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from everthread.domain.boundary import Boundary, Branch, Compress, New, Reset, Resume, Rewind
from everthread.domain.errors import Fenced
from everthread.lifecycle import ForgetSession
from tests.explorer.actions import Action, Bounds, Step
from tests.explorer.turn_steps import abandon_claim
from tests.explorer.world import IDLE_S, KEYS, OWNER, PROCESSES, World
from tests.simulator import operations as asked
from tests.simulator.reference_types import ModelSession, require

Choices = Callable[[World, Bounds], Iterator[Action]]


def _cross(world: World, action: Action, boundary: Boundary) -> None:
    """Cross a boundary, and check that it is refused if, and only if, it must be."""
    key, expected = KEYS[action.key], _expects_refusal(world, action.key, boundary)
    work = world.lifecycle(action.process).cross(key, boundary, owner=OWNER)
    result = world.do(action.process, asked.Cross(key, boundary), work)
    require((result.refusal is not None) == expected, f"{action} ended with {result.refusal or 'a change'}")


def _expects_refusal(world: World, key: str, boundary: Boundary) -> bool:
    """Return True if the boundary must be refused in this state. `choices` leaves out other kinds of refusals."""
    here = world.session_at(key)
    match boundary:
        case Resume(target):
            return not target or _tip(world, target) is here
        case Compress(session_id, generation):
            is_stale = here is None or (here.id, here.generation) != (session_id, generation)
            has_forgotten = world.forgotten_sessions() > world.state.forgotten_before_summary
            return is_stale or has_forgotten or world.is_running(here)
        case _:
            return False


def _tip(world: World, session_id: str) -> ModelSession:
    """Return the newest continuation of a session."""
    session = world.state.model.sessions[session_id]
    following = world.state.model.sessions.get(session.continued_by or "")
    return session if following is None or following.forgotten else _tip(world, following.id)


def _opening(verb: str, *, needs_session: bool = False) -> Choices:
    """Choices of a boundary that opens a session at a key."""

    def choices(world: World, bounds: Bounds) -> Iterator[Action]:
        if len(world.state.model.sessions) < bounds.sessions:
            for key in world.keys:
                if not needs_session or world.session_at(key) is not None:
                    yield Action(verb, key=key)

    return choices


def _resume_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    for key in world.keys:
        yield Action("resume", key=key)
        here = world.session_at(key)
        for session in world.state.model.sessions.values():
            if session is not here and not session.forgotten:
                yield Action("resume", key=key, detail=session.id)


AS_IT_WAS = " as it was"


def _branch_from_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    if len(world.state.model.sessions) >= bounds.sessions:
        return
    for key in world.keys:
        for session in world.state.model.sessions.values():
            if not session.forgotten:
                yield Action("branch from", key=key, detail=session.id)
            if session.continued_by is not None and not session.forgotten:
                yield Action("branch from", key=key, detail=f"{session.id}{AS_IT_WAS}")


def branch_from(world: World, action: Action) -> None:
    """Branch from a named session: from its tip, or from the session itself."""
    parent = action.detail.removesuffix(AS_IT_WAS)
    _cross(world, action, Branch(parent=parent, as_it_was=parent != action.detail))


def _rewind_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    for key in world.keys:
        here = world.session_at(key)
        if here is None:
            continue
        turns = len(here.shown) + world.is_running(here)
        for count in range(1, min(turns, 2) + 1):
            yield Action("rewind", key=key, detail=str(count))


def _summarise_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    here = world.session_at(world.keys[0])
    if world.state.summary is None and here is not None and here.shown:
        yield Action("summarise", key=world.keys[0], detail="everything")
        if len(here.shown) > 1:
            yield Action("summarise", key=world.keys[0], detail="all but the last turn")


def summarise(world: World, action: Action) -> None:
    """Make a summary, to be applied later."""
    here = world.session_at(action.key)
    stored = world.tables.sessions.get(here.id) if here else None
    if here is None or stored is None:
        return
    last = here.shown[-1 if action.detail == "everything" else -2][0]
    forget_count = world.tables.erasure.forget_count(OWNER)
    world.state.forgotten_before_summary = world.forgotten_sessions()
    world.state.summary = Compress(stored.id, stored.generation, "a summary", last, forget_count)


def _compress_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    if world.state.summary is not None and len(world.state.model.sessions) < bounds.sessions:
        for key in world.keys:
            yield Action("compress", key=key)


def compress(world: World, action: Action) -> None:
    """Apply the stored summary, which may be stale."""
    summary = world.state.summary
    assert summary is not None
    _cross(world, action, summary)
    world.state.summary = None


def _expire_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    if world.tables.leases.due_timers(world.state.now, 1):
        yield Action("expire")


def expire(world: World, action: Action) -> None:
    """Expire the sessions whose timers are due."""
    lease = world.do(action.process, None, world.lease(action.process, "timers"))
    if lease is not None:
        try:
            world.do(action.process, None, world.lifecycle(action.process).expire_due(lease))
        except Fenced:
            del world.state.processes[action.process].leases["timers"]


def _suspend_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    for process in PROCESSES:
        if world.rows("SELECT 1 FROM serving WHERE holder = ?", world.state.processes[process].name):
            yield Action("suspend", process)
            yield Action("suspend", process, detail="close memory")


def suspend(world: World, action: Action) -> None:
    """Shut a process down cleanly, and start another in its place."""
    process, close_memory = world.state.processes[action.process], bool(action.detail)
    for claim in list(process.claims.values()):
        abandon_claim(world, action.process, claim)
    operation = asked.Stop(process.name, close_memory)
    on = set(world.state.model.on.values())
    serves = any(holder == process.name and session_id in on for holder, session_id in world.state.model.served)
    results = world.do(action.process, operation, world.lifecycle(action.process).suspend(close_memory=close_memory))
    require(any(result.refusal is None for result in results) == serves, f"{action} ended with {results}")
    store = world.stores[action.process]
    world.do(action.process, None, store.write(lambda uow: uow.leases.end_process(process.name)))
    world.replace_process(action.process)


def _forget_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    if world.state.used["forgets"] < bounds.forgets:
        for session in world.state.model.sessions.values():
            if not session.forgotten:
                yield Action("forget", detail=session.id)


def forget(world: World, action: Action) -> None:
    world.state.used["forgets"] += 1
    what = ForgetSession(action.detail)
    work = world.lifecycle(action.process).forget(what, owner=OWNER)
    world.do(action.process, asked.ForgetOperation(what, OWNER), work)


def _wait_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    if world.state.used["waits"] < bounds.waits:
        yield Action("wait")


def wait(world: World, action: Action) -> None:
    """Let a session's idle time pass, with both processes alive."""
    world.state.used["waits"] += 1
    world.pass_time(IDLE_S)


def _stall_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    if world.state.used["stalls"] < bounds.stalls:
        for process in PROCESSES:
            if world.state.processes[process].claims:
                yield Action("stall", process)


def stall(world: World, action: Action) -> None:
    """Stop a process for longer than its leases last. It then continues without noticing."""
    world.state.used["stalls"] += 1
    world.expire_leases(action.process)


def _kill_choices(world: World, bounds: Bounds) -> Iterator[Action]:
    if world.state.used["crashes"] < bounds.crashes:
        for process in PROCESSES:
            if world.state.processes[process].holds_something:
                yield Action("kill", process)


def kill(world: World, action: Action) -> None:
    """Kill a process between two operations."""
    world.restart(action.process)


BOUNDARY_STEPS = {
    "new": Step(_opening("new"), lambda world, action: _cross(world, action, New())),
    "reset": Step(_opening("reset"), lambda world, action: _cross(world, action, Reset())),
    "resume": Step(_resume_choices, lambda world, action: _cross(world, action, Resume(action.detail))),
    "branch": Step(_opening("branch", needs_session=True), lambda world, action: _cross(world, action, Branch())),
    "branch from": Step(_branch_from_choices, branch_from),
    "rewind": Step(_rewind_choices, lambda world, action: _cross(world, action, Rewind(int(action.detail)))),
    "summarise": Step(_summarise_choices, summarise),
    "compress": Step(_compress_choices, compress),
    "expire": Step(_expire_choices, expire),
    "suspend": Step(_suspend_choices, suspend),
    "forget": Step(_forget_choices, forget),
    "wait": Step(_wait_choices, wait),
    "stall": Step(_stall_choices, stall),
    "kill": Step(_kill_choices, kill),
}
