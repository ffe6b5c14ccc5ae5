"""The check of the gateway: running, platforms up, replies delivered, HTTP protected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from everthread.cli.commands.doctor.check import Case, Finding, bad, well
from everthread.cli.commands.doctor.store import RECENT_S
from everthread.cli.commands.gateway.token_access import LOST, LOST_FIX
from everthread.domain.model import ChatType, Reply, ReplyState, SessionKey
from everthread.domain.schedule import ScheduleState
from everthread.domain.text_format import local_time, pluralize, shorten
from everthread.lifecycle.local_token import LocalToken, no_valid_key

if TYPE_CHECKING:
    from everthread.cli.commands.gateway.status import GatewayStatus
    from everthread.cli.context import CliRuntime
    from everthread.config.schema import Settings
    from everthread.store.unit_of_work import UnitOfWork

HTTP = "http"
SILENT_S = 30.0
_REPLIES_MAX = 1000
_PEOPLE_MAX = 1000
_PRUNE = "old data: everthread sessions prune"
_REMOVE_TASKS = "tasks: everthread cron remove NAME --owner OWNER"


async def gateway(case: Case) -> Finding:
    from everthread.cli.commands.gateway.status import status_at
    from everthread.config.webhook_secrets import webhook_problems

    assert case.settings is not None
    runtime, now = case.open_runtime, case.open_runtime.clock.now()
    found = await status_at(case.settings.home, runtime)
    problems = [
        *(webhook_problems(case.settings) if case.settings.gateway.http.enabled else ()),
        *await _check_open_access(case.settings, runtime),
        *_check_queue(found),
        *await _check_quotas(case.settings, runtime),
        *_check_report(found, now),
        *map(_describe_undelivered, await runtime.store.read(lambda uow: _undelivered_replies(uow, now - RECENT_S))),
    ]
    if problems:
        says, fix = problems[0]
        return bad(f"{says}{f' (and {len(problems) - 1} more)' if len(problems) > 1 else ''}", fix)
    if not found.seen.running:
        return well("not running, and nothing is queued for it")
    up = len(found.report.platforms) if found.report is not None else 0
    return well(f"running, {pluralize(up, 'platform')} up")


async def http(case: Case) -> Finding:
    """Check that clients of the HTTP interface can get in, with a token only."""
    assert case.settings is not None
    runtime, settings = case.open_runtime, case.settings
    if not settings.gateway.http.enabled:
        return well("disabled")
    if settings.gateway.http.auth == "none":
        return well(f"no tokens; only your user can connect to {settings.gateway.http.socket}")
    # A client that has conversations: before tokens were required, it may have sent none.
    beginning = str(SessionKey(settings.profile, HTTP, ChatType.DM, "x"))[:-1]
    keys, ever, has_clients = await runtime.store.read(
        lambda uow: (uow.api_keys.all(), uow.api_keys.ever_existed(), uow.sessions.has_key(beginning))
    )
    local = LocalToken(runtime.store, runtime.clock, settings.local_token_path)
    if await local.is_lost(keys):
        return bad(LOST, LOST_FIX)
    if has_clients and all(key.automatic and key.used_at is None for key in keys) and (keys or not ever):
        return bad(
            "every HTTP request needs a token now, and none was used yet: clients that send none stop working",
            f"{'' if ever else 'everthread gateway start; '}give them the token that everthread tokens show prints",
        )
    if not ever:
        return well("no token yet; the first start of a gateway creates one: everthread tokens show")
    if no_valid_key(keys, runtime.clock.now()):
        return bad("no valid API token: every HTTP request is refused", "everthread tokens new NAME")
    return well(pluralize(len(keys), "token"))


async def _check_open_access(settings: Settings, runtime: CliRuntime) -> list[tuple[str, str]]:
    http = settings.gateway.http
    if not http.enabled or http.is_loopback:
        return []
    if not all(key.automatic for key in await runtime.store.read(lambda uow: uow.api_keys.all())):
        return []
    says = f"gateway.http.host is {http.host}, open to other machines, and you have created no API token"
    return [(says, "everthread config set gateway.http.host 127.0.0.1, or create a token: everthread tokens new NAME")]


async def _check_quotas(settings: Settings, runtime: CliRuntime) -> list[tuple[str, str]]:
    """Name the people who have reached a quota, which may be lower than what they had without one."""
    quotas = settings.quotas

    def read(uow: UnitOfWork) -> list[tuple[str, str]]:
        problems: list[tuple[str, str]] = []
        for owner in uow.quota_counters.owners(_PEOPLE_MAX):
            if owner == quotas.exempt:
                continue
            counts = uow.quota_counters.get(owner) or uow.quota_counters.count(owner)
            for name, count, limit, remove in (
                ("sessions", counts.sessions, quotas.sessions, _PRUNE),
                ("stored_bytes", counts.stored_bytes, quotas.stored_bytes, _PRUNE),
                ("media_bytes", counts.media_bytes, quotas.media_bytes, _PRUNE),
                ("schedules", _count_tasks(uow, owner), quotas.schedules, _REMOVE_TASKS),
            ):
                if count >= max(limit, 1):
                    says = f"{owner} has reached gateway.quotas.{name} ({count:,} of {limit:,}) and is refused more"
                    problems.append((says, f"raise gateway.quotas.{name}, or remove {remove}"))
        return problems

    return await runtime.store.read(read)


def _count_tasks(uow: UnitOfWork, owner: str) -> int:
    return sum(schedule.state is not ScheduleState.OVER for schedule in uow.schedules.all(owner))


def _check_queue(found: GatewayStatus) -> Iterator[tuple[str, str]]:
    waiting = found.waiting
    if not found.seen.running and (waiting.conversations or waiting.replies):
        replies = pluralize(waiting.replies, "reply", "replies")
        what = f"{pluralize(waiting.conversations, 'conversation')} and {replies}"
        yield f"{what} queued, but no gateway is running", "everthread gateway start"


def _check_report(found: GatewayStatus, now: float) -> Iterator[tuple[str, str]]:
    report = found.report
    if not found.seen.running or report is None:
        return
    if now - report.at > SILENT_S:
        yield f"no status report since {local_time(report.at)}", "everthread gateway restart"
    if report.lanes_problem:
        says = f"background delivery has stopped ({shorten(report.lanes_problem, 120)}) and is being restarted"
        yield says, "see everthread logs; everthread gateway restart"
    elif report.lane_restarts:
        yield f"background delivery was restarted {pluralize(report.lane_restarts, 'time')}", "see everthread logs"
    for name, platform in report.platforms.items():
        if not platform.up:
            yield (
                f"{name} is down: {shorten(platform.problem, 120)}",
                f"check its account and platforms.{name} in config.toml; the gateway retries automatically",
            )


def _undelivered_replies(uow: UnitOfWork, since: float) -> list[Reply]:
    """Return undelivered replies, newest first."""
    found = [r for state in (ReplyState.AMBIGUOUS, ReplyState.FAILED) for r in uow.outbox.replies(state, _REPLIES_MAX)]
    return sorted((reply for reply in found if reply.at >= since), key=lambda reply: -reply.at)


def _describe_undelivered(reply: Reply) -> tuple[str, str]:
    what = "may not have arrived" if reply.state is ReplyState.AMBIGUOUS else "was rejected"
    says = f"a reply to {reply.key.platform} chat {reply.key.chat} of {local_time(reply.at)} {what}"
    read = f" (text: everthread sessions show {reply.session_id})" if reply.session_id else ""
    return says, f"check the chat, and send it again if it is missing{read}"
