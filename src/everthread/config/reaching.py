"""What `[gateway]` and `[platforms]` may say."""

from __future__ import annotations

import re
from typing import cast, get_args

from msgspec.structs import fields

from everthread.config.reading import Check, Table, nearest
from everthread.config.schema import Approvers, BusyMode, Gateway, Http, PlatformAccount, Sharing, Trigger, Webhook
from everthread.config.secrets import address_problem, variable_problem
from everthread.domain.access import person_problem
from everthread.domain.model import HANDED_OVER

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_RESERVED = ("cli", "group", "hooks", "http", HANDED_OVER)
_USER = re.compile(r"[^\s]{1,128}")
_ACCOUNT = re.compile(r"[a-z][a-z0-9_-]{0,31}:[^\s]{1,128}")
_COMMAND = re.compile(r"[a-z][a-z_-]{0,31}")
_ONLY_HERE = re.compile(r"http://(127\.0\.0\.1|localhost)[:/]")
_MODEL = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_.-]{0,63}/\S{1,200})?")
_ENTRIES_MAX = 1000
_TEMPLATE_CHARS_MAX = 10_000


def gateway(table: Table) -> Gateway:
    table.allow(*(field.name for field in fields(Gateway)))
    usual = Gateway()
    return Gateway(
        busy=cast("BusyMode", table.text("busy", usual.busy, one_of(get_args(BusyMode)))),
        drain_s=table.number("drain_s", usual.drain_s, 0, 600),
        notices=table.flag("notices", usual.notices),
        review_notices=table.flag("review_notices", usual.review_notices),
        approvals=cast("Approvers", table.text("approvals", usual.approvals, one_of(get_args(Approvers)))),
        approval_s=table.number("approval_s", usual.approval_s, 5, 3600),
        pairing=table.flag("pairing", usual.pairing),
        messages_per_minute=table.whole("messages_per_minute", usual.messages_per_minute, 1, 100_000),
        spend_per_day=table.number_or_none("spend_per_day", 0, 1_000_000),
        admin_commands=table.texts("admin_commands", _command_problem)
        if "admin_commands" in table
        else usual.admin_commands,
        transcription_model=table.text("transcription_model", "", _model_problem),
        links=_links(table.table("links")),
        http=_http(table.table("http")),
        webhooks=_webhooks(table.table("webhooks")),
    )


def platforms(table: Table) -> dict[str, PlatformAccount]:
    return {name: _account(name, written) for name, written in table.tables(_platform_problem)}


def _account(name: str, table: Table) -> PlatformAccount:
    table.allow(*(field.name for field in fields(PlatformAccount)))
    usual = PlatformAccount(name)
    sharing = one_of(get_args(Sharing))
    account = PlatformAccount(
        kind=table.text("kind", name),
        enabled=table.flag("enabled", usual.enabled),
        token_env=table.text("token_env", "", variable_problem),
        base_url=table.text("base_url", "", address_problem).rstrip("/"),
        allow=table.texts("allow", _user_problem),
        allow_all=table.flag("allow_all", usual.allow_all),
        admins=table.texts("admins", _user_problem),
        busy=cast("BusyMode", table.text("busy", check=one_of(get_args(BusyMode)))) if "busy" in table else None,
        groups=cast("Sharing", table.text("groups", usual.groups, sharing)),
        threads=cast("Sharing", table.text("threads", usual.threads, sharing)),
        stream=table.flag("stream", usual.stream),
        trigger=cast("Trigger", table.text("trigger", usual.trigger, one_of(get_args(Trigger)))),
        webhook_url=table.text("webhook_url", "", _webhook_problem),
        webhook_host=table.text("webhook_host", usual.webhook_host, _host_problem),
        webhook_port=table.whole("webhook_port", usual.webhook_port, 0, 65535),
    )
    if account.allow_all and account.allow:
        raise table.bad("allow_all", "lets everybody in, so `allow` means nothing; keep one of them")
    return account


def _links(table: Table) -> dict[str, tuple[str, ...]]:
    links: dict[str, tuple[str, ...]] = {}
    whose: dict[str, str] = {}
    for owner in table:
        if problem := person_problem(owner):
            raise table.bad(owner, problem)
        links[owner] = table.texts(owner, _account_problem)
        for account in links[owner]:
            if (other := whose.setdefault(account, owner)) != owner:
                raise table.bad(owner, f"{account} is {other}'s already; an account is one person's")
    return links


def _http(table: Table) -> Http:
    table.allow(*(field.name for field in fields(Http)))
    usual = Http()
    return Http(
        enabled=table.flag("enabled", usual.enabled),
        host=table.text("host", usual.host, _host_problem),
        port=table.whole("port", usual.port, 0, 65535),
    )


def _webhooks(table: Table) -> dict[str, Webhook]:
    return {name: _webhook(written) for name, written in table.tables(_platform_problem)}


def _webhook(table: Table) -> Webhook:
    table.allow(*(field.name for field in fields(Webhook)))
    if "secret_env" not in table:
        raise table.bad((), 'has no secret; add secret_env = "NAME", and NAME=... to .env')
    return Webhook(
        secret_env=table.text("secret_env", "", variable_problem),
        template=table.text(
            "template", "", lambda text: "" if len(text) <= _TEMPLATE_CHARS_MAX else "is longer than a template may be"
        ),
        owner=table.text("owner", ""),
    )


def one_of(known: tuple[str, ...]) -> Check:
    return lambda text: "" if text in known else f"must be {' or '.join(known)}; {nearest(text, known)}"


def _model_problem(text: str) -> str:
    return "" if _MODEL.fullmatch(text) else "must be PROVIDER/MODEL, such as openai/whisper-1"


def _host_problem(text: str) -> str:
    return "" if text and " " not in text else "is no address"


def _webhook_problem(text: str) -> str:
    if problem := address_problem(text):
        return problem
    return "" if text.startswith("https://") or _ONLY_HERE.match(text) else "must begin with https://"


def _platform_problem(text: str) -> str:
    if text in _RESERVED:
        return "is a name that is taken; choose another"
    return "" if _NAME.fullmatch(text) else "a name must be 1 to 32 small letters, digits, - or _"


def _user_problem(text: str) -> str:
    return "" if _USER.fullmatch(text) else "is no user of a platform; give the platform's own id of them"


def _account_problem(text: str) -> str:
    return "" if _ACCOUNT.fullmatch(text) else "must be PLATFORM:USER, such as telegram:12345"


def _command_problem(text: str) -> str:
    return "" if _COMMAND.fullmatch(text) else "is no name of a command; leave out the slash"
