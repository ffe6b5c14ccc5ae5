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


class Memory(Struct, frozen=True):
    recall_s: float = 2.0
    recall_tokens: int = 1500
    notes_chars: int = 8000
    """How much of MEMORY.md the model is shown."""
    user_chars: int = 4000
    """How much of USER.md."""


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
