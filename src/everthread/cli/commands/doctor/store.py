"""Checks of stored state: deliveries, incidents, hooks, turns and notes."""

from __future__ import annotations

from everthread.cli.commands.doctor.check import Case, Finding, bad, well
from everthread.domain.text_format import pluralize, shorten

LAG_MAX = 100
RECENT_S = 86_400.0
_LOOKED_AT = 1000
_OUR_SOURCES = ("inbound", "lanes", "delegation", "schedule")
"""Sources of incidents that no plugin or provider causes."""


async def parked(case: Case) -> Finding:
    found = [p for p in await case.open_runtime.memory.journal.status() if p.lanes.parked]
    if found:
        what = ", ".join(f"{pluralize(p.lanes.parked, 'entry', 'entries')} of {p.name}" for p in found)
        return bad(f"parked: {what}", f"see everthread journal status, then everthread journal retry {found[0].name}")
    return well("nothing is parked")


async def lanes(case: Case) -> Finding:
    for provider in await case.open_runtime.memory.journal.status():
        why = f" ({shorten(provider.last_error)})" if provider.last_error else ""
        if provider.breaker_open_until is not None:
            says = f"{provider.name} is paused after failures{why}"
            return bad(says, f"make sure that {provider.name} is reachable; deliveries are retried automatically")
        if provider.lanes.waiting_entries >= LAG_MAX:
            says = f"{provider.name} is {provider.lanes.waiting_entries} entries behind{why}"
            return bad(says, f"run a process that loads {provider.name}; check everthread journal status")
    return well("no provider is behind")


async def incidents(case: Case) -> Finding:
    runtime = case.open_runtime
    since = runtime.clock.now() - RECENT_S
    found = [i for i in await runtime.store.read(lambda uow: uow.incidents.newest(_LOOKED_AT)) if i.at >= since]
    if found:
        what = f"{pluralize(len(found), 'incident')} within a day; the last: {found[0].source}: {found[0].text}"
        ours = found[0].source in _OUR_SOURCES
        return bad(shorten(what, 200), "see everthread logs" if ours else "fix or remove this plugin or provider")
    return well("no incident within a day")


async def failed_updates(case: Case) -> Finding:
    found = await case.open_runtime.store.read(lambda uow: uow.failed_updates.newest(_LOOKED_AT))
    if found:
        newest = found[0]
        says = (
            f"{pluralize(len(found), 'update')} could not be handled; the newest: {newest.platform} update "
            f"{newest.update_id} ({newest.problem}, {pluralize(newest.attempts, 'attempt')})"
        )
        return bad(says, "the gateway retries them; see everthread logs for the error, or upgrade everthread")
    return well("every update was handled")


async def hooks(case: Case) -> Finding:
    found = [
        hook for hook in await case.open_runtime.store.read(lambda uow: uow.leases.hooks(_LOOKED_AT)) if hook.attempts
    ]
    if found:
        names = ", ".join(dict.fromkeys(hook.call.hook for hook in found))
        says = f"{pluralize(len(found), 'call')} of {names} failed and will be retried"
        return bad(says, "run a process that loads the plugin, or remove the plugin; see everthread logs")
    return well("no failed plugin call")


async def slots(case: Case) -> Finding:
    runtime = case.open_runtime
    now = runtime.clock.now()
    found = await runtime.store.read(lambda uow: uow.slots.orphans(now))
    if found:
        where = ", ".join(dict.fromkeys(slot.ref.session_id for slot in found[:3]))
        says = f"{pluralize(len(found), 'turn')} interrupted, in {where}"
        return bad(says, "start everthread; it finishes them in the background")
    return well("no interrupted turn")


async def notes(case: Case) -> Finding:
    runtime = case.open_runtime
    found = await runtime.note_files.unsynced(runtime.settings.owner)
    if found:
        return bad(f"{found[0]} was edited or could not be written", "everthread memory list synchronizes it")
    return well("MEMORY.md and USER.md match the store")
