"""Declaration of every setting: type, default, bounds and help text, in one place.

`parse` reads files by these declarations, `config show` prints them, and `docs/generate.py` writes the reference page
from them. The annotations are evaluated by `declaration.declarations` only, table by table, so that a start without a
configuration file pays for none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Struct, field
from msgspec.structs import force_setattr

from everthread.domain.errors import BadConfig
from everthread.domain.quota import Quotas
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.domain.spend import Price

if TYPE_CHECKING:
    from everthread.config.checks import (
        check_account,
        check_argument,
        check_command,
        check_grantee,
        check_header,
        check_host,
        check_model,
        check_name,
        check_owner,
        check_person,
        check_platform,
        check_plugin,
        check_proxy,
        check_references,
        check_template,
        check_tool,
        check_transcriber,
        check_url,
        check_user,
        check_variable,
        check_webhook_url,
        check_zone,
    )
    from everthread.config.declaration import PriceTable, ResetTable, Setting

ProviderKind = Literal["openai_compat", "anthropic", "local"]
Background = Literal["auto", "dark", "light"]
BusyMode = Literal["queue", "interrupt", "steer"]
Sharing = Literal["per_user", "shared"]
RecallInGroups = Literal["group", "owner"]
Trigger = Literal["mention", "all"]
Approvers = Literal["admins", "everybody", "nobody"]
HttpAuth = Literal["token", "none"]
WebhookScheme = Literal["everthread", "github"]

ENV_SETTINGS = ("owner", "profile", "model", "auxiliary_model")
"""Settings that a variable EVERTHREAD_<NAME> and an option --<name> override."""

BASE_URLS = {"OPENAI_BASE_URL": "openai", "ANTHROPIC_BASE_URL": "anthropic", "OLLAMA_HOST": "ollama"}
"""Variables shared with other programs, and the provider whose `base_url` each one overrides."""

DAY_S = 86_400
MINUTES_MAX = 525_600
USD_MAX = 1_000_000
QUOTA_BYTES_MAX = 10**15


class ProviderSettings(Struct, frozen=True):
    """An endpoint that serves models."""

    kind: Annotated[ProviderKind, Setting("protocol of the endpoint")] = "openai_compat"
    base_url: Annotated[str, Setting("URL of the endpoint; required unless `kind` is `local`", check=check_url)] = ""
    api_key_env: Annotated[
        str,
        Setting(
            "name of the variable that holds the API key; empty if none is needed", check=check_variable, empty=True
        ),
    ] = ""
    headers: Annotated[
        Mapping[str, str],
        Setting(
            "sent with every request; values may contain `${NAME}`",
            check=check_references,
            names=check_header,
            secret=True,
        ),
    ] = field(default_factory=dict[str, str])
    tools: Annotated[bool, Setting("the models accept tools")] = True
    context_tokens: Annotated[int, Setting("context length of the models, in tokens", 256, 100_000_000)] = 128_000

    def __repr__(self) -> str:
        return repr_without(self, "headers")


class LimitSettings(Struct, frozen=True):
    """Limits of one turn, and of one day."""

    iterations: Annotated[int, Setting("model calls in one turn", 1, 10_000)] = 50
    turn_s: Annotated[float, Setting("duration of one turn, in seconds", 1, DAY_S)] = 600.0
    output_tokens: Annotated[int, Setting("length of one answer, in tokens", 1, 1_000_000)] = 8192
    spend_per_day: Annotated[float | None, Setting("US dollars in 24 hours", 0, USD_MAX, default="no limit")] = None


class DelegationSettings(Struct, frozen=True):
    """Limits of one delegated task."""

    parallel: Annotated[int, Setting("tasks of one turn that run at the same time", 1, 32)] = 3
    iterations: Annotated[int, Setting("model calls in one task", 1, 10_000)] = 30
    turn_s: Annotated[float, Setting("duration of one task, in seconds", 1, DAY_S)] = 300.0
    spend: Annotated[
        float | None,
        Setting("US dollars for one task; `limits.spend_per_day` applies as well", 0, USD_MAX, default="no limit"),
    ] = None


ProviderTable = Mapping[str, str | int | float | bool]
"""The table `[memory.NAME]` of one memory provider; `provider_settings` declares and checks its keys."""


class MemorySettings(Struct, frozen=True):
    recall_s: Annotated[float, Setting("seconds that a turn waits for recall", 0.01, 60)] = 2.0
    recall_tokens: Annotated[int, Setting("length of the recall in a prompt, in tokens", 1, 1_000_000)] = 1500
    notes_chars: Annotated[int, Setting("characters of `MEMORY.md` in a prompt", 1, 1_000_000)] = 8000
    user_chars: Annotated[int, Setting("characters of `USER.md` in a prompt", 1, 1_000_000)] = 4000
    providers: Annotated[
        tuple[str, ...],
        Setting("memory providers, all in use at the same time; `builtin` is this machine", allowed="16 at most"),
    ] = ("builtin",)
    recall_in_groups: Annotated[
        RecallInGroups,
        Setting(
            "memory that an answer in a group chat may use: what was said in that chat, or everything of the person "
            "who asks, which the other members then read"
        ),
    ] = "group"


class CompressionSettings(Struct, frozen=True):
    """Compression of long conversations by summaries."""

    enabled: Annotated[bool, Setting("compress long conversations automatically; `/compress` always works")] = True
    share: Annotated[
        float, Setting("share of the model's context at which old turns are replaced by a summary", 0.05, 0.8)
    ] = 0.5
    tail_tokens: Annotated[
        int,
        Setting("about how many tokens at the end stay verbatim; at most a third of the threshold", 0, 1_000_000),
    ] = 16_000


class ReviewSettings(Struct, frozen=True):
    """The background review of a conversation."""

    every_turns: Annotated[
        int,
        Setting("review after this many of your messages, and when a conversation is closed; 0 is never", 0, 10_000),
    ] = 10
    iterations: Annotated[int, Setting("model calls in one review", 1, 100)] = 8
    spend: Annotated[
        float | None,
        Setting("US dollars for one review; `limits.spend_per_day` applies as well", 0, USD_MAX, default="no limit"),
    ] = None


class ScheduleSettings(Struct, frozen=True):
    """Scheduled tasks: their default time zone, and limits for tasks that the agent makes."""

    zone: Annotated[
        str,
        Setting(
            "time zone of tasks that name none",
            check=check_zone,
            empty=True,
            default="this machine's",
            allowed="an IANA name",
        ),
    ] = ""
    folders: Annotated[
        tuple[Path, ...],
        Setting("folders that answers may be written to, besides `files` in the home", check=check_argument),
    ] = ()
    per_owner: Annotated[
        int, Setting("tasks that the agent may keep for one person; 0 removes its tool for that", 0, 10_000)
    ] = 20
    every_minutes: Annotated[
        float, Setting("shortest interval of the agent's tasks; yours may run every minute", 1, MINUTES_MAX)
    ] = 15.0


class ToolSettings(Struct, frozen=True):
    allow: Annotated[tuple[str, ...], Setting("names of dangerous tools that need no approval", check=check_tool)] = ()
    approval_lines: Annotated[
        int, Setting("lines of a call that an approval request shows; a longer call is refused", 1, 1_000)
    ] = 40
    approval_chars: Annotated[
        int, Setting("characters of a call that an approval request shows; a longer call is refused", 100, 20_000)
    ] = 3_000


class PluginSettings(Struct, frozen=True):
    allow: Annotated[
        tuple[str, ...],
        Setting("names of plugins of installed packages that are loaded; others need an approval", check=check_plugin),
    ] = ()


class McpServer(Struct, frozen=True):
    """An MCP server: a program to start (`command`) or a running service (`url`), never both."""

    command: Annotated[str, Setting("program to start; either this or `url`")] = ""
    args: Annotated[tuple[str, ...], Setting("its arguments", check=check_argument, secret=True)] = ()
    env: Annotated[
        Mapping[str, str],
        Setting(
            "its environment variables; values may contain `${NAME}`",
            check=check_references,
            names=check_variable,
            secret=True,
        ),
    ] = field(default_factory=dict[str, str])
    cwd: Annotated[
        Path | None, Setting("its folder; `~` is your home folder, a relative path starts at Everthread's home")
    ] = None
    url: Annotated[str, Setting("URL of a running server", check=check_url)] = ""
    headers: Annotated[
        Mapping[str, str],
        Setting(
            "sent with every request; values may contain `${NAME}`",
            check=check_references,
            names=check_header,
            secret=True,
        ),
    ] = field(default_factory=dict[str, str])
    timeout_s: Annotated[float, Setting("seconds that a call may take", 0.1, DAY_S)] = 30.0
    trust: Annotated[bool, Setting("its tools need no approval, even if it changes them")] = False
    read_only: Annotated[
        tuple[str, ...],
        Setting("its tools that need no approval until it changes them; what it says about them does not count"),
    ] = ()
    disabled: Annotated[bool, Setting("do not use it")] = False

    def __repr__(self) -> str:
        return repr_without(self, "args", "env", "url", "headers")


def repr_without(value: Struct, *hidden: str) -> str:
    """Return a repr without the fields that may hold a key or a password: reprs end up in logs."""
    shown = (f"{name}={getattr(value, name)!r}" for name in value.__struct_fields__ if name not in hidden)
    return f"{type(value).__name__}({', '.join(shown)})"


class TerminalSettings(Struct, frozen=True):
    background: Annotated[
        Background,
        Setting("background of the terminal, for the colours of code; `auto` follows `COLORFGBG`, or else is dark"),
    ] = "auto"


class PlatformAccount(Struct, frozen=True):
    """An account on a messaging platform, and the people who may write to it."""

    kind: Annotated[str, Setting("platform of the account", default="the name")]
    enabled: Annotated[bool, Setting("serve this account")] = True
    token_env: Annotated[str, Setting("name of the variable that holds the token", check=check_variable)] = ""
    base_url: Annotated[str, Setting("URL of the platform, if not the usual one", check=check_url)] = ""
    allow: Annotated[
        tuple[str, ...],
        Setting("users who may write; others are refused unless they are paired", check=check_user, allowed="user ids"),
    ] = ()
    allow_all: Annotated[bool, Setting("everybody may write")] = False
    admins: Annotated[
        tuple[str, ...],
        Setting("users who may write, and use the commands for admins", check=check_user, allowed="user ids"),
    ] = ()
    busy: Annotated[BusyMode | None, Setting("effect of a message during an answer", default="as in `[gateway]`")] = (
        None
    )
    groups: Annotated[Sharing, Setting("in a group: one conversation for each user, or one for all of them")] = (
        "per_user"
    )
    threads: Annotated[Sharing, Setting("the same for a thread")] = "shared"
    stream: Annotated[bool, Setting("show answers while they are written, if the platform supports it")] = True
    trigger: Annotated[
        Trigger, Setting("messages answered in a group: those that mention the agent or reply to it, or all")
    ] = "mention"
    webhook_url: Annotated[
        str,
        Setting(
            "public URL that the platform sends updates to; without it, updates are polled",
            check=check_webhook_url,
            allowed="an https URL",
        ),
    ] = ""
    webhook_host: Annotated[str, Setting("address that the webhook listens on", check=check_host)] = "127.0.0.1"
    webhook_port: Annotated[int, Setting("port that the webhook listens on", 0, 65_535)] = 8643


class WebhookSettings(Struct, frozen=True):
    """A name under which another program may send messages to the agent."""

    secret_env: Annotated[
        str, Setting("name of the variable that holds the secret of the sender's signature", check=check_variable)
    ]
    scheme: Annotated[
        WebhookScheme | None,
        Setting(
            "signature of the sender: `X-Signature` with `X-Timestamp`, or GitHub's `X-Hub-Signature-256`; without it "
            "the webhook is disabled"
        ),
    ] = None
    template: Annotated[
        str,
        Setting(
            "the message, with `{field}` or `{field.inner}` taken from the request; empty is the whole request",
            check=check_template,
        ),
    ] = ""
    owner: Annotated[str, Setting("owner of the conversation", default="`owner`")] = ""


class HttpSettings(Struct, frozen=True):
    enabled: Annotated[bool, Setting("serve the HTTP interface")] = True
    host: Annotated[
        str, Setting("address to listen on; a public one is refused until you create a token", check=check_host)
    ] = "127.0.0.1"
    port: Annotated[int, Setting("port to listen on; 0 is any free port", 0, 65_535)] = 8642
    socket: Annotated[
        Path | None,
        Setting("Unix socket to listen on instead, for your user only; a relative path starts at the home"),
    ] = None
    auth: Annotated[
        HttpAuth,
        Setting("`token`: every request needs a token; `none`: every request acts as `owner`, only with `socket`"),
    ] = "token"
    trusted_proxies: Annotated[
        tuple[str, ...],
        Setting(
            "proxies whose `X-Forwarded-For` names the client, for the log and the limits of each address, such as "
            "slowing down failed authentications; never for access",
            check=check_proxy,
            allowed="addresses, networks, `unix`",
        ),
    ] = ()

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        if self.socket is not None or self.host.lower() == "localhost":
            return True
        from ipaddress import ip_address  # noqa: PLC0415 - only a gateway asks, and the program starts sooner without

        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


class QuotaSettings(Struct, frozen=True):
    """Quotas of each person except you. 0 forbids it."""

    sessions: Annotated[int, Setting("conversations; continuations of long ones do not count", 0, 10_000_000)] = 10_000
    forks_per_day: Annotated[int, Setting("branches in 24 hours", 0, 1_000_000)] = 100
    media_bytes: Annotated[int, Setting("bytes of attachments", 0, QUOTA_BYTES_MAX)] = 2_000_000_000
    schedules: Annotated[
        int, Setting("scheduled tasks that a person may ask for; `schedule.per_owner` applies as well", 0, 10_000)
    ] = 20
    stored_bytes: Annotated[
        int, Setting("bytes of messages, tool calls, results and all versions of notes", 0, QUOTA_BYTES_MAX)
    ] = 1_000_000_000


class GatewaySettings(Struct, frozen=True):
    """The gateway: messaging platforms and the HTTP interface."""

    busy: Annotated[
        BusyMode, Setting("effect of a message during an answer: it waits, stops the answer, or is added to it")
    ] = "queue"
    drain_s: Annotated[float, Setting("seconds that running turns have to end when the gateway stops", 0, 600)] = 5.0
    notices: Annotated[bool, Setting("tell people when their conversation has expired")] = True
    review_notices: Annotated[
        bool,
        Setting("tell people in one line what a background review has noted; not in groups with separate chats"),
    ] = False
    approvals: Annotated[
        Approvers,
        Setting("people who may approve a dangerous tool in a chat, each for themselves; you are one of the admins"),
    ] = "admins"
    approval_s: Annotated[float, Setting("seconds to wait for an approval; no answer is a refusal", 5, 3600)] = 300.0
    pairing: Annotated[bool, Setting("show strangers a code that you can approve; otherwise they get no answer")] = True
    messages_per_minute: Annotated[
        int,
        Setting(
            "messages of one person, and of one webhook; `/stop`, `/deny` and `/help` together have ten times as many",
            1,
            100_000,
        ),
    ] = 30
    spend_per_day: Annotated[
        float | None,
        Setting(
            "US dollars in 24 hours for each person except you; `limits.spend_per_day` applies as well",
            0,
            USD_MAX,
            default="no limit",
        ),
    ] = None
    admin_commands: Annotated[
        tuple[str, ...],
        Setting("commands for admins only; `/pair` always is", check=check_command, allowed="names of commands"),
    ] = ("model",)
    transcription_model: Annotated[
        str,
        Setting(
            "transcribes voice messages, at an OpenAI-compatible provider; without it, senders are asked to write",
            check=check_transcriber,
            empty=True,
            allowed="`PROVIDER/MODEL`",
        ),
    ] = ""
    links: Annotated[
        Mapping[str, tuple[str, ...]],
        Setting(
            'accounts of one person: `OWNER = ["PLATFORM:USER", ...]`; an account may be in one list only',
            check=check_account,
            names=check_person,
        ),
    ] = field(default_factory=dict[str, tuple[str, ...]])
    quotas: Annotated[QuotaSettings, Setting("see `[gateway.quotas]`")] = QuotaSettings()
    http: Annotated[HttpSettings, Setting("see `[gateway.http]`")] = HttpSettings()
    webhooks: Annotated[
        Mapping[str, WebhookSettings], Setting("see `[gateway.webhooks.NAME]`", names=check_platform)
    ] = field(default_factory=dict[str, WebhookSettings])


class AccessGrants(Struct, frozen=True):
    """Names that are granted in addition to the defaults."""

    tools: Annotated[
        tuple[str, ...],
        Setting(
            "tools, in addition to `memory`, `recall`, `session_search` and `schedule`",
            check=check_tool,
            allowed="names of tools, or `mcp:SERVER` for all tools of a server",
        ),
    ] = ()
    skills: Annotated[
        tuple[str, ...], Setting("skills that may be read", check=check_name, allowed="names of skills")
    ] = ()
    models: Annotated[
        tuple[str, ...],
        Setting("models that may be chosen, in addition to `model`", check=check_model, allowed="`PROVIDER/MODEL`"),
    ] = ()


class AccessSettings(Struct, frozen=True):
    """Rights of everybody except you: what is granted to a role, on a platform, and to one person or group."""

    guests: Annotated[AccessGrants, Setting("`[access.guests]`: granted to everybody who may write, except groups")] = (
        AccessGrants()
    )
    admins: Annotated[AccessGrants, Setting("`[access.admins]`: granted to admins of a platform, as well")] = (
        AccessGrants()
    )
    groups: Annotated[
        AccessGrants, Setting("`[access.groups]`: granted to groups whose members share a conversation")
    ] = AccessGrants()
    platforms: Annotated[
        Mapping[str, AccessGrants],
        Setting(
            "`[access.platforms.NAME]`: granted to the people and groups of a platform, as well", names=check_platform
        ),
    ] = field(default_factory=dict[str, AccessGrants])
    people: Annotated[
        Mapping[str, AccessGrants],
        Setting(
            '`[access.people."PLATFORM:USER"]`: granted to a person or group, as well, by account or owner',
            names=check_grantee,
        ),
    ] = field(default_factory=dict[str, AccessGrants])


class Variables(Struct, frozen=True):
    """The environment, then the variables of `.env`. An empty value counts as unset. The repr shows no values."""

    environ: Mapping[str, str] = {}
    file: Mapping[str, str] = {}

    __repr__ = object.__repr__

    def get(self, name: str) -> str | None:
        return self.environ.get(name) or self.file.get(name) or None


def built_in_providers() -> dict[str, ProviderSettings]:
    """Return the providers that need no table. A file may change them and add others."""
    return {
        "anthropic": ProviderSettings("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
        "openai": ProviderSettings(base_url="https://api.openai.com/v1", api_key_env="OPENAI_API_KEY"),
        "openrouter": ProviderSettings(base_url="https://openrouter.ai/api/v1", api_key_env="OPENROUTER_API_KEY"),
        "gemini": ProviderSettings(
            base_url="https://generativelanguage.googleapis.com/v1beta/openai", api_key_env="GEMINI_API_KEY"
        ),
        "ollama": ProviderSettings(base_url="http://127.0.0.1:11434/v1"),
        "vllm": ProviderSettings(base_url="http://127.0.0.1:8000/v1"),
        "llamacpp": ProviderSettings(base_url="http://127.0.0.1:8080/v1"),
        "local": ProviderSettings("local", tools=False, context_tokens=2048),
    }


class Settings(Struct, frozen=True, eq=False, rename={"mcp_servers": "mcpServers"}):
    """All settings in force."""

    home: Path
    """The folder with the database and all other files."""
    config_path: Path = Path("config.toml")
    """This path and the next two are relative to the home, or absolute."""
    env_path: Path = Path(".env")
    mcp_path: Path = Path("mcp.json")
    owner: Annotated[str, Setting("the person at this machine", check=check_owner, allowed="1 to 256 characters")] = (
        "me"
    )
    profile: Annotated[
        str,
        Setting("profile in session keys", check=check_name, allowed="1 to 64 letters, digits, `_`, `.` or `-`"),
    ] = "main"
    model: Annotated[
        str,
        Setting("model that answers", check=check_model, empty=True, default="see below", allowed="`PROVIDER/MODEL`"),
    ] = ""
    auxiliary_model: Annotated[
        str,
        Setting(
            "model for titles and summaries",
            check=check_model,
            empty=True,
            default="as `model`",
            allowed="`PROVIDER/MODEL`",
        ),
    ] = ""
    fallback_models: Annotated[
        tuple[str, ...],
        Setting("tried in this order if the model is not available", check=check_model, allowed="`PROVIDER/MODEL`"),
    ] = ()
    limits: Annotated[LimitSettings, Setting()] = LimitSettings()
    delegation: Annotated[DelegationSettings, Setting()] = DelegationSettings()
    memory: Annotated[MemorySettings, Setting()] = MemorySettings()
    memory_providers: Mapping[str, ProviderTable] = field(default_factory=dict[str, ProviderTable])
    """The tables `[memory.NAME]`, by name."""
    compression: Annotated[CompressionSettings, Setting()] = CompressionSettings()
    review: Annotated[ReviewSettings, Setting()] = ReviewSettings()
    schedule: Annotated[ScheduleSettings, Setting()] = ScheduleSettings()
    tools: Annotated[ToolSettings, Setting()] = ToolSettings()
    plugins: Annotated[PluginSettings, Setting()] = PluginSettings()
    terminal: Annotated[TerminalSettings, Setting()] = TerminalSettings()
    reset: Annotated[ResetPolicies, Setting(table=ResetTable)] = field(
        default_factory=lambda: ResetPolicies(ResetPolicy())
    )
    gateway: Annotated[GatewaySettings, Setting()] = GatewaySettings()
    platforms: Annotated[Mapping[str, PlatformAccount], Setting(names=check_platform)] = field(
        default_factory=dict[str, PlatformAccount]
    )
    """Accounts by the name in session keys."""
    access: Annotated[AccessSettings, Setting()] = AccessSettings()
    prices: Annotated[Mapping[str, Price], Setting(table=PriceTable, names=check_model)] = field(
        default_factory=dict[str, Price]
    )
    """Prices by PROVIDER/MODEL."""
    mcp_servers: Annotated[Mapping[str, McpServer], Setting()] = field(default_factory=dict[str, McpServer])
    providers: Annotated[Mapping[str, ProviderSettings], Setting()] = field(default_factory=built_in_providers)
    warnings: tuple[str, ...] = ()
    """Problems that are no errors, such as a `.env` that others can read."""
    variables: Variables = field(default_factory=Variables)

    def __post_init__(self) -> None:
        for name in ("config_path", "env_path", "mcp_path"):
            force_setattr(self, name, self.home / getattr(self, name))

    def __repr__(self) -> str:
        return repr_without(self, "variables")

    def __eq__(self, other: object) -> bool:
        """Compare everything but the environment."""
        return isinstance(other, Settings) and all(
            getattr(self, name) == getattr(other, name) for name in self.__struct_fields__ if name != "variables"
        )

    def __ne__(self, other: object) -> bool:
        # Struct defines its own, which does not call `__eq__`.
        return not self == other

    @property
    def db_path(self) -> Path:
        return self.home / "everthread.db"

    @property
    def local_token_path(self) -> Path:
        """The file with the text of the automatic API token."""
        return self.home / "local.token"

    @property
    def skills_path(self) -> Path:
        """The folder of the user's own skills."""
        return self.home / "skills"

    @property
    def media_path(self) -> Path:
        """The folder of attachments from messaging platforms."""
        return self.home / "media"

    @property
    def file_folders(self) -> tuple[Path, ...]:
        """Folders that scheduled tasks may write answers to; a relative path is in the first one."""
        return (self.home / "files", *self.schedule.folders)

    @property
    def zone(self) -> str:
        """Time zone of scheduled tasks that name none."""
        from everthread.config.environment import local_zone  # noqa: PLC0415 - only scheduled tasks need it

        return self.schedule.zone or local_zone(self.variables.environ)

    @property
    def local_model_path(self) -> Path:
        """The folder of the local model, made by `everthread setup local`."""
        return self.home / "models" / "local"

    @property
    def hermes_path(self) -> Path:
        """The Python environment for plugins of Hermes Agent, made by `everthread setup memory`."""
        return self.home / "hermes"

    def spend_per_day_of(self, owner: str) -> float | None:
        """Return the daily budget of an owner in US dollars; None is no limit. A guest has the lower of two limits."""
        guests = self.gateway.spend_per_day if owner != self.owner else None
        both = [limit for limit in (self.limits.spend_per_day, guests) if limit is not None]
        return min(both, default=None)

    @property
    def quotas(self) -> Quotas:
        """The quotas of each person except the owner."""
        quotas = self.gateway.quotas
        return Quotas(
            self.owner,
            quotas.sessions,
            quotas.forks_per_day,
            quotas.media_bytes,
            quotas.schedules,
            quotas.stored_bytes,
        )

    def secret(self, name: str) -> str | None:
        """Return the value of a variable from the environment or else from `.env`."""
        return self.variables.get(name)

    def expand_references(self, values: Mapping[str, str]) -> dict[str, str]:
        """Replace every `${NAME}` in headers or variables. Raises `BadConfig` if one has no value."""
        from everthread.config.checks import fill_references  # noqa: PLC0415 - a home without any need not load it

        return {name: fill_references(text, self._required) for name, text in values.items()}

    def _required(self, name: str) -> str:
        value = self.secret(name)
        if value is None:
            raise BadConfig(f"{name} is not set; put {name}=... into {self.env_path}, or into the environment")
        return value
