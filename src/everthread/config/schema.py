"""What can be set, and what holds if it is not. These values are made by `parsing`, which checks them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from everthread.domain.spend import Price as Price

ProviderKind = Literal["openai_compat", "anthropic", "local"]

SCALARS = ("owner", "profile", "model", "auxiliary_model")
"""Settings that a variable EVERTHREAD_<NAME> may set too."""

BASE_URLS = {"OPENAI_BASE_URL": "openai", "ANTHROPIC_BASE_URL": "anthropic", "OLLAMA_HOST": "ollama"}
"""Variables that other programs read too, and the provider whose address each gives."""


class Provider(Struct, frozen=True):
    """An endpoint that models are asked at."""

    kind: ProviderKind = "openai_compat"
    base_url: str = ""
    """Without a slash at the end; empty for `local`."""
    api_key_env: str = ""
    """The name of the variable that has the key; empty if none is needed."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values may have `${NAME}` in them: `Settings.filled_in` puts in what it stands for."""
    tools: bool = True
    context_tokens: int = 128_000

    def __repr__(self) -> str:
        return without_secrets(self, "headers")


class Limits(Struct, frozen=True):
    """What one turn, or one day, may take at most."""

    iterations: int = 50
    turn_s: float = 600.0
    output_tokens: int = 8192
    spend_per_day: float | None = None
    """In US dollars; None is no limit."""


class Delegation(Struct, frozen=True):
    """What one piece of delegated work may take at most, and how many of a turn's run at once."""

    parallel: int = 3
    iterations: int = 30
    turn_s: float = 300.0
    spend: float | None = None
    """In US dollars, for one piece; None is no limit but that of the day."""


Told = Mapping[str, str | int | float | bool]
"""What a table says of one memory provider, by its keys; `memory_providers` knows what may be there."""


class Memory(Struct, frozen=True):
    recall_s: float = 2.0
    recall_tokens: int = 1500
    notes_chars: int = 8000
    """How much of MEMORY.md the model is shown."""
    user_chars: int = 4000
    """How much of USER.md."""
    providers: tuple[str, ...] = ("builtin",)
    """Where memories are kept and found, all at once."""


class Compression(Struct, frozen=True):
    """When a long conversation is summarised."""

    enabled: bool = True
    share: float = 0.5
    """Of the model's context."""
    tail_tokens: int = 16_000
    """About how much of the end is kept word for word."""


class Review(Struct, frozen=True):
    """The background review of what was said."""

    every_turns: int = 10
    """0 is never."""
    iterations: int = 8
    """At most so many steps for one review."""
    spend: float | None = None
    """In US dollars, for one review; None is no limit but that of the day."""


class Schedule(Struct, frozen=True):
    """Scheduled tasks: whose clock they go by, and what the agent may do about them by itself."""

    zone: str = ""
    """An IANA name; empty is the zone of this machine."""
    folders: tuple[Path, ...] = ()
    """Where answers may be written to files, besides the folder `files` of the home."""
    per_owner: int = 20
    """So many tasks may the agent keep for one person."""
    every_minutes: float = 15.0
    """It may have nothing done more often than that."""


class Tools(Struct, frozen=True):
    allow: tuple[str, ...] = ()
    """Dangerous tools that nobody needs to approve."""


class McpServer(Struct, frozen=True):
    """A server of tools: a program that is started (`command`), or one that is running (`url`); never both."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values may have `${NAME}` in them, as those of `headers`: see `Settings.filled_in`."""
    cwd: Path | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: float = 30.0
    trust: bool = False
    """Its tools need no approval."""
    disabled: bool = False

    def __repr__(self) -> str:
        return without_secrets(self, "args", "env", "url", "headers")


def without_secrets(value: Struct, *hidden: str) -> str:
    """The value in words, but for what may hold a key or a password: what is shown here ends up in logs."""
    shown = (f"{name}={getattr(value, name)!r}" for name in value.__struct_fields__ if name not in hidden)
    return f"{type(value).__name__}({', '.join(shown)})"


Background = Literal["auto", "dark", "light"]


class Terminal(Struct, frozen=True):
    background: Background = "auto"
    """What is behind the text, for the colours of code; `auto` is what the terminal says, or dark if it is silent."""


BusyMode = Literal["queue", "interrupt", "steer"]
Sharing = Literal["per_user", "shared"]
Trigger = Literal["mention", "all"]
Approvers = Literal["admins", "everybody", "nobody"]


class PlatformAccount(Struct, frozen=True):
    """An account on a messaging platform, and who may write to it."""

    kind: str
    enabled: bool = True
    token_env: str = ""
    """The name of the variable that has its token."""
    base_url: str = ""
    """Where the platform is, if not at its usual place."""
    allow: tuple[str, ...] = ()
    """Users who may write; others are turned away, unless they are paired."""
    allow_all: bool = False
    admins: tuple[str, ...] = ()
    """Users who may write, and give the commands that are for admins only."""
    busy: BusyMode | None = None
    """What a message does while an answer is being written; None is as in `gateway`."""
    groups: Sharing = "per_user"
    """Whether those who write in a group have one conversation, or each their own."""
    threads: Sharing = "shared"
    stream: bool = True
    """Show answers while they are written, where the platform can."""
    trigger: Trigger = "mention"
    """What is answered in a group: what names the agent or answers it, or all that is said."""
    webhook_url: str = ""
    """Where the platform brings what comes in, as seen from outside; empty if it is asked for it instead."""
    webhook_host: str = "127.0.0.1"
    webhook_port: int = 8643


class Webhook(Struct, frozen=True):
    """A name under which another program may have something said to the agent."""

    secret_env: str
    """The name of the variable that has the secret which it signs with."""
    template: str = ""
    """What is said, with `{field}` or `{field.of.it}` from what was sent; empty is all of it."""
    owner: str = ""
    """Whose conversation it is; empty is the owner at this machine."""


class Http(Struct, frozen=True):
    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = 8642

    @property
    def only_here(self) -> bool:
        """Whether nobody but this machine can reach it."""
        if self.host.lower() == "localhost":
            return True
        from ipaddress import ip_address  # noqa: PLC0415 - only a gateway asks, and the program starts sooner without

        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


class Gateway(Struct, frozen=True):
    """Serving people who write from elsewhere."""

    busy: BusyMode = "queue"
    drain_s: float = 5.0
    """How long what runs may take to end when the gateway stops."""
    notices: bool = True
    """Tell people when their conversation has ended by itself."""
    review_notices: bool = False
    """Tell people in a line what a background review has noted of their conversation."""
    approvals: Approvers = "admins"
    """Who may allow a dangerous tool in a chat, each for themselves: a platform's admins and the owner at this machine,
    everybody who may write, or nobody."""
    approval_s: float = 300.0
    """How long an answer to that is waited for; none is a no."""
    pairing: bool = True
    """A stranger is given a code, which you can approve; else a stranger hears nothing."""
    messages_per_minute: int = 30
    """Of one person."""
    spend_per_day: float | None = None
    """In US dollars, for each person; None is no limit but that of `limits`."""
    admin_commands: tuple[str, ...] = ("model",)
    transcription_model: str = ""
    """PROVIDER/MODEL that makes words of voice messages; if it is empty, whoever speaks is asked to write."""
    links: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Who is one person: an owner, and PLATFORM:USER of each account they have."""
    http: Http = Http()
    webhooks: Mapping[str, Webhook] = field(default_factory=dict[str, Webhook])


def built_in_providers() -> dict[str, Provider]:
    """Those that need not be written down. A file may change them and add others."""
    return {
        "anthropic": Provider("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
        "openai": Provider(base_url="https://api.openai.com/v1", api_key_env="OPENAI_API_KEY"),
        "openrouter": Provider(base_url="https://openrouter.ai/api/v1", api_key_env="OPENROUTER_API_KEY"),
        "gemini": Provider(
            base_url="https://generativelanguage.googleapis.com/v1beta/openai", api_key_env="GEMINI_API_KEY"
        ),
        "ollama": Provider(base_url="http://127.0.0.1:11434/v1"),
        "vllm": Provider(base_url="http://127.0.0.1:8000/v1"),
        "llamacpp": Provider(base_url="http://127.0.0.1:8080/v1"),
        "local": Provider("local", tools=False, context_tokens=2048),
    }
