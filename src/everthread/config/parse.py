"""From the tables of a file to the values of `schema`: what each setting may be.

What `[gateway]` and `[platforms]` may say.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TypedDict, cast, get_args

from msgspec.structs import fields, replace

from everthread.config.provider_settings import chosen, described
from everthread.config.schema import (
    BASE_URLS,
    SCALARS,
    Approvers,
    Background,
    BusyMode,
    Compression,
    Delegation,
    Gateway,
    Http,
    Limits,
    McpServer,
    Memory,
    PlatformAccount,
    Price,
    Provider,
    ProviderKind,
    Review,
    Schedule,
    Sharing,
    Terminal,
    Told,
    Tools,
    Trigger,
    Webhook,
    built_in_providers,
)
from everthread.config.secrets import address_problem, references_problem, variable_problem
from everthread.config.tables import Check, Table, nearest
from everthread.domain.errors import BadConfig, BadPolicy
from everthread.domain.model import HANDED_OVER, ChatType
from everthread.domain.pairing import person_problem, user_problem
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.domain.timezones import zone_named

MCP_SERVERS = "mcpServers"
_TOP = (
    *SCALARS,
    *(
        "fallback_models",
        "providers",
        "limits",
        "delegation",
        "prices",
        "memory",
        "compression",
        "review",
        "schedule",
        "tools",
        "terminal",
    ),
    *(MCP_SERVERS, "reset", "gateway", "platforms"),
)
_ENTRIES_MAX = 1000
_MODEL_CHARS_MAX = 200
_DAY_S = 86_400
_IDLE_MINUTES = 1440
_IDLE_MINUTES_MAX = 525_600
_HOUR = 4

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TOOL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class FromFile(TypedDict, total=False):
    """The arguments of `Settings` that come from `config.toml`."""

    owner: str
    profile: str
    model: str
    auxiliary_model: str
    fallback_models: tuple[str, ...]
    providers: Mapping[str, Provider]
    limits: Limits
    delegation: Delegation
    prices: Mapping[str, Price]
    memory: Memory
    memory_providers: Mapping[str, Told]
    compression: Compression
    review: Review
    schedule: Schedule
    tools: Tools
    terminal: Terminal
    mcp_servers: Mapping[str, McpServer]
    reset: ResetPolicies
    gateway: Gateway
    platforms: Mapping[str, PlatformAccount]


def parsed(top: Table, home: Path) -> FromFile:
    """All that a file says. Raises `BadConfig` for the first thing that is wrong with it."""
    top.allow(*_TOP)
    providers = _providers(top.table("providers"))
    checks = scalar_checks(providers)
    scalars = {name: top.text(name, check=checks[name]) for name in SCALARS if name in top}
    found: FromFile = {
        "fallback_models": top.texts("fallback_models", _model_check(providers)),
        "providers": providers,
        "limits": _limits(top.table("limits")),
        "prices": _prices(top.table("prices"), providers),
        "delegation": _delegation(top.table("delegation")),
        "memory": _memory(top.table("memory")),
        "memory_providers": described(top.table("memory"), [field.name for field in fields(Memory)]),
        "compression": _compression(top.table("compression")),
        "review": _review(top.table("review")),
        "schedule": _schedule(top.table("schedule"), home),
        "tools": _tools(top.table("tools")),
        "terminal": _terminal(top.table("terminal")),
        "mcp_servers": mcp_servers(top.table(MCP_SERVERS), home),
        "reset": _reset(top.table("reset")),
        "gateway": gateway(top.table("gateway")),
        "platforms": platforms(top.table("platforms")),
    }
    return cast("FromFile", scalars | found)


def scalar_checks(providers: Collection[str]) -> dict[str, Check]:
    model = _model_check(providers)
    return {
        "owner": user_problem,
        "profile": name_problem,
        "model": lambda text: model(text) if text else "",
        "auxiliary_model": lambda text: model(text) if text else "",
    }


def name_problem(text: str) -> str:
    return "" if _NAME.fullmatch(text) else "a name must be 1 to 64 letters, digits, or any of _ . -"


def _tool_problem(text: str) -> str:
    return "" if _TOOL.fullmatch(text) else "is no name of a tool"


def _header_problem(text: str) -> str:
    return "" if _HEADER.fullmatch(text) else "is no name of a header"


def _model_check(providers: Collection[str]) -> Check:
    def problem(text: str) -> str:
        provider, slash, name = text.partition("/")
        if len(text) > _MODEL_CHARS_MAX or not text.isprintable() or " " in text or not (provider and slash and name):
            return "not a model; write PROVIDER/MODEL, such as ollama/qwen3"
        if provider not in providers:
            return f"there is no provider {provider!r}; {nearest(provider, providers)}"
        return ""

    return problem


# --- Providers -------------------------------------------------------------------------------------------------------


def _providers(table: Table) -> dict[str, Provider]:
    providers = built_in_providers()
    for name, written in _entries(table):
        written.allow(*(field.name for field in fields(Provider)))
        providers[name] = _provider(written, providers.get(name, Provider()))
    return providers


def _provider(table: Table, base: Provider) -> Provider:
    kinds: tuple[ProviderKind, ...] = get_args(ProviderKind)

    def kind_problem(text: str) -> str:
        return "" if text in kinds else f"there is no kind {text[:60]!r}; {nearest(text, kinds)}"

    provider = Provider(
        kind=cast("ProviderKind", table.text("kind", base.kind, kind_problem)),
        base_url=table.text("base_url", base.base_url, address_problem).rstrip("/"),
        api_key_env=table.text("api_key_env", base.api_key_env, lambda text: text and variable_problem(text)),
        headers=table.strings("headers", _header_problem, references_problem) or base.headers,
        tools=table.flag("tools", base.tools),
        context_tokens=table.whole("context_tokens", base.context_tokens, 256, 100_000_000),
    )
    if provider.kind != "local" and not provider.base_url:
        raise table.bad((), 'has no address; add base_url = "https://..."')
    return provider


def moved(providers: Mapping[str, Provider], variable: str, value: str) -> dict[str, Provider]:
    """The providers with one of them at the address that the environment gives."""
    name = BASE_URLS[variable]
    url = _ollama_url(value) if variable == "OLLAMA_HOST" else value.strip()
    problem = address_problem(url)
    if problem:
        raise BadConfig(f"{variable} {problem}")
    return {**providers, name: replace(providers[name], base_url=url.rstrip("/"))}


def _ollama_url(host: str) -> str:
    """The address to ask at, from what may be meant for the server: a host, a port, 0.0.0.0 for everywhere."""
    host = host.strip().rstrip("/")
    if not _SCHEME.match(host):
        name, colon, port = host.rpartition(":")
        if not colon or not port.isdigit():
            name, port = host, "11434"
        host = f"http://{name or '127.0.0.1'}:{port}"
    host = host.replace("//0.0.0.0", "//127.0.0.1", 1)
    return host if host.endswith("/v1") else f"{host}/v1"


# --- Numbers ---------------------------------------------------------------------------------------------------------


def _limits(table: Table) -> Limits:
    table.allow(*(field.name for field in fields(Limits)))
    usual = Limits()
    return Limits(
        iterations=table.whole("iterations", usual.iterations, 1, 10_000),
        turn_s=table.number("turn_s", usual.turn_s, 1, _DAY_S),
        output_tokens=table.whole("output_tokens", usual.output_tokens, 1, 1_000_000),
        spend_per_day=table.number_or_none("spend_per_day", 0, 1_000_000),
    )


def _delegation(table: Table) -> Delegation:
    table.allow(*(field.name for field in fields(Delegation)))
    usual = Delegation()
    return Delegation(
        parallel=table.whole("parallel", usual.parallel, 1, 32),
        iterations=table.whole("iterations", usual.iterations, 1, 10_000),
        turn_s=table.number("turn_s", usual.turn_s, 1, _DAY_S),
        spend=table.number_or_none("spend", 0, 1_000_000),
    )


def _memory(table: Table) -> Memory:
    usual = Memory()
    return Memory(
        providers=chosen(table),
        recall_s=table.number("recall_s", usual.recall_s, 0.01, 60),
        recall_tokens=table.whole("recall_tokens", usual.recall_tokens, 1, 1_000_000),
        notes_chars=table.whole("notes_chars", usual.notes_chars, 1, 1_000_000),
        user_chars=table.whole("user_chars", usual.user_chars, 1, 1_000_000),
    )


def _compression(table: Table) -> Compression:
    table.allow(*(field.name for field in fields(Compression)))
    usual = Compression()
    return Compression(
        enabled=table.flag("enabled", usual.enabled),
        share=table.number("share", usual.share, 0.05, 0.8),
        tail_tokens=table.whole("tail_tokens", usual.tail_tokens, 0, 1_000_000),
    )


def _terminal(table: Table) -> Terminal:
    table.allow("background")
    background = table.text("background", Terminal().background, one_of(get_args(Background)))
    return Terminal(cast("Background", background))


def _review(table: Table) -> Review:
    table.allow(*(field.name for field in fields(Review)))
    usual = Review()
    return Review(
        every_turns=table.whole("every_turns", usual.every_turns, 0, 10_000),
        iterations=table.whole("iterations", usual.iterations, 1, 100),
        spend=table.number_or_none("spend", 0, 1_000_000),
    )


def _schedule(table: Table, home: Path) -> Schedule:
    table.allow(*(field.name for field in fields(Schedule)))
    usual = Schedule()
    zone = table.text("zone", usual.zone)
    try:
        zone_named(zone or "UTC")
    except BadPolicy as error:
        raise table.bad("zone", "is no known time zone; give an IANA name such as Europe/Berlin or UTC") from error
    return Schedule(
        zone,
        tuple(_path(table, "folders", text, home) for text in table.texts("folders", _argument_problem)),
        per_owner=table.whole("per_owner", usual.per_owner, 0, 10_000),
        every_minutes=table.number("every_minutes", usual.every_minutes, 1, _IDLE_MINUTES_MAX),
    )


def _prices(table: Table, providers: Collection[str]) -> dict[str, Price]:
    return {model: _price(written) for model, written in _entries(table, _model_check(providers))}


def _price(table: Table) -> Price:
    names = tuple(field.name for field in fields(Price))
    table.allow(*names)
    for name in ("input", "output"):
        if name not in table:
            raise table.bad((), f"has no {name!r}; add {name} = DOLLARS, for a million tokens")
    return Price(
        input=table.number("input", 0, 0, 100_000),
        output=table.number("output", 0, 0, 100_000),
        cached=table.number_or_none("cached", 0, 100_000),
    )


def _tools(table: Table) -> Tools:
    table.allow(*(field.name for field in fields(Tools)))
    return Tools(table.texts("allow", _tool_problem))


# --- Servers of tools ------------------------------------------------------------------------------------------------


def mcp_servers(table: Table, home: Path) -> dict[str, McpServer]:
    return {name: _mcp_server(written, home) for name, written in _entries(table)}


def _mcp_server(table: Table, home: Path) -> McpServer:
    # Other programs' files say with `type` what command and url say already.
    table.allow(*(field.name for field in fields(McpServer)), "type")
    command = table.text("command")
    url = table.text("url", check=address_problem)
    if bool(command) == bool(url):
        problem = "has both a command and a url; keep one" if command else "has neither a command nor a url; add one"
        raise table.bad((), problem)
    kinds = ("stdio",) if command else ("http", "streamable-http", "sse")
    if table.text("type", kinds[0]) not in kinds:
        raise table.bad("type", f"must be {' or '.join(kinds)} beside a {'command' if command else 'url'}")
    for key in ("headers",) if command else ("args", "env", "cwd"):
        if key in table:
            raise table.bad(key, f"means nothing beside a {'command' if command else 'url'}; remove it")
    return McpServer(
        command=command,
        args=table.texts("args", _argument_problem),
        env=table.strings("env", variable_problem, references_problem),
        cwd=_folder(table, home),
        url=url,
        headers=table.strings("headers", _header_problem, references_problem),
        timeout_s=table.number("timeout_s", McpServer().timeout_s, 0.1, _DAY_S),
        trust=table.flag("trust", False),
        disabled=table.flag("disabled", False),
    )


def _argument_problem(text: str) -> str:
    return "has a NUL in it; leave it out" if "\0" in text else ""


def _folder(table: Table, home: Path) -> Path | None:
    written = table.text("cwd")
    return _path(table, "cwd", written, home) if written else None


def _path(table: Table, key: str, written: str, home: Path) -> Path:
    try:
        return home / Path(written).expanduser()
    except RuntimeError as error:
        raise table.bad(key, "begins with ~, and there is no such user; write the whole path") from error


# --- When a conversation starts afresh -------------------------------------------------------------------------------

_MODES = ("none", "idle", "daily", "both")
_POLICY = ("mode", "idle_minutes", "hour", "zone")


def _reset(table: Table) -> ResetPolicies:
    table.allow(*_POLICY, "platforms", "chat_types")

    def chat_type_problem(text: str) -> str:
        known = [chat_type.value for chat_type in ChatType]
        return "" if text in known else f"is no chat type; {nearest(text, known)}"

    platforms = _entries(table.table("platforms"))
    chat_types = _entries(table.table("chat_types"), chat_type_problem)
    return ResetPolicies(
        _policy(table),
        {name: _override(written) for name, written in platforms},
        {ChatType(name): _override(written) for name, written in chat_types},
    )


def _override(table: Table) -> ResetPolicy:
    table.allow(*_POLICY)
    return _policy(table)


def _policy(table: Table) -> ResetPolicy:
    mode = table.text(
        "mode", "none", lambda text: "" if text in _MODES else f"is no mode; use one of {', '.join(_MODES)}"
    )
    idle_minutes = table.number("idle_minutes", _IDLE_MINUTES, 1, _IDLE_MINUTES_MAX)
    hour = table.whole("hour", _HOUR, 0, 23)
    zone = table.text("zone", "UTC")
    idle, daily = mode in ("idle", "both"), mode in ("daily", "both")
    for key, used, needed in (("idle_minutes", idle, "idle"), ("hour", daily, "daily"), ("zone", daily, "daily")):
        if key in table and not used:
            raise table.bad(key, f'means nothing with mode = "{mode}"; set mode to "{needed}" or "both"')
    try:
        return ResetPolicy(idle_minutes * 60 if idle else None, hour if daily else None, zone)
    except BadPolicy as error:
        raise table.bad("zone", "is no known time zone; give an IANA name such as Europe/Berlin or UTC") from error


def _entries(table: Table, check: Check = name_problem) -> Iterator[tuple[str, Table]]:
    """The tables in it, whose names are the user's own."""
    for count, entry in enumerate(table.tables(check), start=1):
        if count > _ENTRIES_MAX:
            raise table.error(entry[0], f"more than {_ENTRIES_MAX} tables; remove some")
        yield entry


_ACCOUNT_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_RESERVED = ("cli", "group", "hooks", "http", HANDED_OVER)
_USER = re.compile(r"[^\s]{1,128}")
_ACCOUNT = re.compile(r"[a-z][a-z0-9_-]{0,31}:[^\s]{1,128}")
_COMMAND = re.compile(r"[a-z][a-z_-]{0,31}")
_ONLY_HERE = re.compile(r"http://(127\.0\.0\.1|localhost)[:/]")
_MODEL = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_.-]{0,63}/\S{1,200})?")
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
    return "" if _ACCOUNT_NAME.fullmatch(text) else "a name must be 1 to 32 small letters, digits, - or _"


def _user_problem(text: str) -> str:
    return "" if _USER.fullmatch(text) else "is no user of a platform; give the platform's own id of them"


def _account_problem(text: str) -> str:
    return "" if _ACCOUNT.fullmatch(text) else "must be PLATFORM:USER, such as telegram:12345"


def _command_problem(text: str) -> str:
    return "" if _COMMAND.fullmatch(text) else "is no name of a command; leave out the slash"
