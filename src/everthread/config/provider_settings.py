"""Settings of memory providers, in tables `[memory.NAME]`: declarations, and their checks.

`bootstrap` makes the providers and passes the values to `initialize`, by the names of the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from everthread.config.checks import check_text, check_url, check_variable
from everthread.config.schema import ProviderTable
from everthread.config.tables import Table, parse_toml, read_text, suggest
from everthread.domain.errors import BadConfig

GROUP = "everthread.memory_providers"
BUILTIN = "builtin"
HERMES = "hermes"
"""Prefix of the names of Hermes Agent plugins, as in `hermes:holographic`. The plugins share one table."""
PROVIDERS_MAX = 16
MEM0_MODES = ("library", "platform")
_LIBRARY, _PLATFORM = (("mode", mode) for mode in MEM0_MODES)
FieldType = Literal["text", "address", "whole", "number", "flag", "secret"]
Value = str | int | float | bool


class Field(Struct, frozen=True):
    """One setting of a provider.

    A `secret` is never in the file. Its `default` is the name of the variable that holds it. A file can name another
    variable, under the field's name followed by `_env`. The provider gets the value.
    """

    name: str
    label: str
    """The question of the set-up wizard, such as "Address of the server"."""
    kind: FieldType = "text"
    default: Value | None = None
    """None: the provider does not get the setting unless it is set."""
    required: bool = False
    choices: tuple[str, ...] = ()
    only_if: tuple[str, Value] | None = None
    """Another field and the value that it must have; otherwise the wizard skips this one."""
    low: float = 0
    high: float = 1_000_000

    @property
    def key(self) -> str:
        """The key in the file."""
        return f"{self.name}_env" if self.kind == "secret" else self.name


class ProviderInfo(Struct, frozen=True):
    """A provider that comes with this program."""

    description: str
    """Description for the person who chooses a provider."""
    fields: tuple[Field, ...] = ()


BUNDLED_PROVIDERS: dict[str, ProviderInfo] = {
    "hindsight": ProviderInfo(
        "extracts facts from conversations; on your own server, or hosted",
        (
            Field("address", "Address of the server", "address", default="http://127.0.0.1:8888"),
            Field("key", "API key, if the server needs one", "secret", default="HINDSIGHT_API_KEY"),
            Field("bank", "Prefix of its bank names", default="everthread"),
        ),
    ),
    HERMES: ProviderInfo(
        "a memory plugin of Hermes Agent, written hermes:PLUGIN; `everthread memory bridge list` lists the plugins",
        (
            Field("python", "Python interpreter with hermes-agent; empty to use the one installed here"),
            Field("home", "Existing home of Hermes Agent to use, such as ~/.hermes; empty to use a separate home"),
            Field(
                "people",
                "Users of the plugin: only you, or each person separately",
                default="one",
                choices=("one", "each"),
            ),
        ),
    ),
    "honcho": ProviderInfo(
        "draws conclusions about each person; hosted, or on your own server",
        (
            Field("url", "Address of the server", "address", "https://api.honcho.dev"),
            Field("workspace", "Name of the workspace; empty for everthread-PROFILE"),
            Field("api_key", "API key, if the server needs one", "secret", "HONCHO_API_KEY"),
        ),
    ),
    "mem0": ProviderInfo(
        "extracts facts from conversations with a model of your choice; on this machine, or hosted",
        (
            Field(
                "mode", "The library on this machine, or the hosted platform", default=_LIBRARY[1], choices=MEM0_MODES
            ),
            Field("model", "Model that extracts facts", default="gpt-5-mini", only_if=_LIBRARY),
            Field(
                "model_url", "Its OpenAI-compatible endpoint", "address", "https://api.openai.com/v1", only_if=_LIBRARY
            ),
            Field("model_key", "API key of that endpoint", "secret", "OPENAI_API_KEY", only_if=_LIBRARY),
            Field("embedder", "Embedding model", default="text-embedding-3-small", only_if=_LIBRARY),
            Field("embedder_url", "Endpoint of the embedding model, if different", "address", only_if=_LIBRARY),
            Field(
                "embedder_key",
                "API key of the endpoint for embeddings",
                "secret",
                "MEM0_EMBEDDER_KEY",
                only_if=_LIBRARY,
            ),
            Field("python", "Python interpreter with mem0ai; empty to use this one", only_if=_LIBRARY),
            Field("url", "Address of the platform", "address", "https://api.mem0.ai", only_if=_PLATFORM),
            Field("api_key", "API key of the platform", "secret", "MEM0_API_KEY", only_if=_PLATFORM),
            Field("infer", "Extract facts; otherwise turns are stored verbatim", "flag", default=True),
        ),
    ),
    "openviking": ProviderInfo(
        "extracts memories into files when a conversation is closed; on your own server",
        (
            Field("url", "Address of the server", "address", "http://127.0.0.1:1933"),
            Field("account", "Prefix of its account name", default="everthread"),
            Field("api_key", "Root API key, if the server has one", "secret", "OPENVIKING_API_KEY"),
        ),
    ),
    "supermemory": ProviderInfo(
        "searches past conversations and keeps a profile of each person; hosted",
        (
            Field("url", "Address of the service", "address", "https://api.supermemory.ai"),
            Field("namespace", "Prefix of its namespaces; empty for everthread-PROFILE"),
            Field("api_key", "API key", "secret", "SUPERMEMORY_API_KEY", required=True),
        ),
    ),
}
"""The module of each is in `bootstrap/memory_providers.py`."""


def table_name(name: str) -> str:
    """Return the name of a provider's table: its own, or the one that the plugins of Hermes Agent share."""
    return HERMES if name.startswith(f"{HERMES}:") else name


def provider_table_names(table: Table, known: Collection[str]) -> list[str]:
    """Return the names of the tables that may be in `[memory]`, besides the known keys."""
    chosen = table.texts("providers", check_provider_name) if "providers" in table else ()
    others = [name for name in chosen if table_name(name) not in BUNDLED_PROVIDERS and name != BUILTIN]
    if not {*table} <= {*known, *BUNDLED_PROVIDERS, *others}:
        # A table may stay when its provider is no longer in use.
        others += [name for name in _installed() if name not in (*BUNDLED_PROVIDERS, *others, *known)]
    return [*BUNDLED_PROVIDERS, *others]


def check_provider_names(table: Table, names: Sequence[str]) -> None:
    if len(names) > PROVIDERS_MAX:
        raise table.bad("providers", f"names more than {PROVIDERS_MAX} providers; remove some")
    for place, name in enumerate(names):
        if name in names[:place]:
            raise table.bad(("providers", place), f"names {name} twice; keep one of them")


def read_provider_tables(table: Table, known: Collection[str]) -> dict[str, ProviderTable]:
    """Read the tables of the providers.

    Those of providers from other packages are checked later, by `read_provider_table`.
    """
    names = [name for name in provider_table_names(table, known) if name in table]
    tables = {name: table.table(name) for name in names}
    return {
        name: _read_fields(tables[name], BUNDLED_PROVIDERS[name].fields)
        if name in BUNDLED_PROVIDERS
        else _read_unchecked(tables[name])
        for name in names
    }


def read_provider_table(config: Path, name: str, fields: Sequence[Field]) -> dict[str, Value]:
    """Read the table of one provider from another package. The file is read again, for the line of a mistake."""
    text = read_text(config)
    return {} if text is None else _read_fields(parse_toml(config, text).table("memory").table(name), fields)


def arguments(
    name: str, fields: Sequence[Field], written: ProviderTable, secret: Callable[[str], str | None], env: Path
) -> dict[str, Value]:
    """Return the arguments for `initialize`. Raises `BadConfig` if a required one is missing."""
    found: dict[str, Value] = {}
    for field in fields:
        value = written.get(field.key, field.default)
        if field.kind == "secret" and value is not None:
            variable = str(value)
            value = secret(variable)
            if value is None and field.required:
                raise BadConfig(f"memory.{name}: {variable} is not set; put {variable}=... into {env}")
        if value is None and field.required:
            raise BadConfig(
                f"memory.{name}: {field.key!r} is missing; add it under [memory.{name}], or run everthread setup"
            )
        if value is not None:
            found[field.name] = value
    return found


def check_field(field: Field, text: str) -> str:
    """Check a text as the value of a field that is not a secret."""
    if field.choices and text not in field.choices:
        return f"must be one of {', '.join(field.choices)}"
    return check_url(text) if field.kind == "address" else check_text(text)


def _installed() -> list[str]:
    """Return the names of providers from other packages."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and rarely needed

    return sorted({entry.name for entry in entry_points(group=GROUP)})


def check_provider_name(text: str) -> str:
    """Check the spelling of a provider's name; the provider need not exist."""
    if text == HERMES:
        return f"must name the plugin: {HERMES}:NAME; `everthread memory bridge list` shows the plugins"
    text = text.removeprefix(f"{HERMES}:")
    if not text or len(text) > 64 or not text.replace("_", "").replace("-", "").isalnum() or not text.isascii():
        return f"not the name of a memory provider. {suggest(text, [BUILTIN, *BUNDLED_PROVIDERS])}"
    return ""


def _read_fields(table: Table, fields: Sequence[Field]) -> dict[str, Value]:
    """Read the keys that a table sets."""
    table.allow(*(field.key for field in fields))
    return {field.key: _read_field(table, field) for field in fields if field.key in table}


def _read_field(table: Table, field: Field) -> Value:
    match field.kind:
        case "whole":
            return table.integer(field.key, field.low, field.high)
        case "number":
            return table.number(field.key, field.low, field.high)
        case "flag":
            return table.boolean(field.key)
        case "secret":
            return table.text(field.key, check_variable)
        case "text" | "address":
            text = table.text(field.key, lambda text: check_field(field, text))
            return text.rstrip("/") if field.kind == "address" else text


def _read_unchecked(table: Table) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for key, value in table.values.items():
        if not isinstance(value, str | int | float | bool):
            raise table.bad(key, "must be a string, a number, or true or false")
        found[key] = value
    return found
