"""What memory providers can be told in `[memory.NAME]`: each declares its settings, and they are checked here.

Nothing else of a provider is known at this point. `bootstrap` makes it and hands it the values, by the names of the
fields, as the arguments of `initialize`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from everthread.config.schema import Told
from everthread.config.secrets import address_problem, variable_problem
from everthread.config.tables import Table, nearest, printable, text_of, toml
from everthread.domain.errors import BadConfig

GROUP = "everthread.memory_providers"
BUILTIN = "builtin"
HERMES = "hermes"
"""What the names of Hermes Agent's plugins begin with, as in `hermes:holographic`. They share a table."""
PROVIDERS_MAX = 16
MEM0_MODES = ("library", "platform")
_HERE, _THERE = (("mode", mode) for mode in MEM0_MODES)
Kind = Literal["text", "address", "whole", "number", "flag", "secret"]
Value = str | int | float | bool


class Field(Struct, frozen=True):
    """One setting of a provider.

    A `secret` is never in the file. Its `default` is the variable that has it, and a file can name another one under
    the field's name with `_env` behind it; the provider is handed the value.
    """

    name: str
    asks: str
    """What the set-up wizard asks, such as "Address of the server"."""
    kind: Kind = "text"
    default: Value | None = None
    """None: it is left out if nobody gives it."""
    required: bool = False
    choices: tuple[str, ...] = ()
    only_if: tuple[str, Value] | None = None
    """Another field and the value it must have; else nobody is asked for this one."""
    low: float = 0
    high: float = 1_000_000

    @property
    def key(self) -> str:
        """What it is called in the file."""
        return f"{self.name}_env" if self.kind == "secret" else self.name


class Entry(Struct, frozen=True):
    """A provider that comes with this program."""

    words: str
    """What it is, for the one who chooses."""
    fields: tuple[Field, ...] = ()


OWN: dict[str, Entry] = {
    "hindsight": Entry(
        "draws facts from what is said; on a server of your own, or hosted",
        (
            Field("address", "Address of the server", "address", default="http://127.0.0.1:8888"),
            Field("key", "Its key, if it wants one", "secret", default="HINDSIGHT_API_KEY"),
            Field("bank", "What the names of its banks begin with", default="everthread"),
        ),
    ),
    HERMES: Entry(
        "a memory plugin of Hermes Agent's, as hermes:PLUGIN; `everthread memory bridge list` shows which there are",
        (
            Field("python", "An interpreter that has hermes-agent, if not one that is set up for it here"),
            Field("home", "A home of Hermes Agent's to use as it is, such as ~/.hermes, if not one of its own"),
            Field(
                "people",
                "Whose it is: one person's, or a separate one for each",
                default="one",
                choices=("one", "each"),
            ),
        ),
    ),
    "honcho": Entry(
        "draws conclusions about each person from what they say; hosted, or on a server of your own",
        (
            Field("url", "Address of the server", "address", "https://api.honcho.dev"),
            Field("workspace", "Name of the workspace, if not everthread-PROFILE"),
            Field("api_key", "Its key, if it wants one", "secret", "HONCHO_API_KEY"),
        ),
    ),
    "mem0": Entry(
        "draws facts from what is said, with a model of your choice; on this machine, or hosted",
        (
            Field("mode", "Its library on this machine, or its platform", default=_HERE[1], choices=MEM0_MODES),
            Field("model", "The model that draws facts", default="gpt-5-mini", only_if=_HERE),
            Field(
                "model_url", "Its endpoint, OpenAI-compatible", "address", "https://api.openai.com/v1", only_if=_HERE
            ),
            Field("model_key", "The endpoint's key", "secret", "OPENAI_API_KEY", only_if=_HERE),
            Field("embedder", "The model that embeds", default="text-embedding-3-small", only_if=_HERE),
            Field("embedder_url", "Its endpoint, if it is another", "address", only_if=_HERE),
            Field("embedder_key", "The other endpoint's key", "secret", "MEM0_EMBEDDER_KEY", only_if=_HERE),
            Field("python", "A Python that has mem0ai, if this one has not", only_if=_HERE),
            Field("url", "Address of the platform", "address", "https://api.mem0.ai", only_if=_THERE),
            Field("api_key", "The platform's key", "secret", "MEM0_API_KEY", only_if=_THERE),
            Field("infer", "Draw facts; if not, turns are kept word for word", "flag", default=True),
        ),
    ),
    "openviking": Entry(
        "files of what it draws from each conversation when that is closed; on a server of your own",
        (
            Field("url", "Address of the server", "address", "http://127.0.0.1:1933"),
            Field("account", "What the name of its account begins with", default="everthread"),
            Field("api_key", "Its root key, if it has one", "secret", "OPENVIKING_API_KEY"),
        ),
    ),
    "supermemory": Entry(
        "a hosted memory that searches what was said and keeps a profile of each person",
        (
            Field("url", "Address of the service", "address", "https://api.supermemory.ai"),
            Field("namespace", "What its namespaces' names begin with, if not everthread-PROFILE"),
            Field("api_key", "Its key", "secret", "SUPERMEMORY_API_KEY", required=True),
        ),
    ),
}
"""The module that has each stands in `bootstrap/memory_providers.py`."""


def table_of(name: str) -> str:
    """The table that says how a provider is set up: of its own name, or the one of all plugins of Hermes Agent's."""
    return HERMES if name.startswith(f"{HERMES}:") else name


def chosen(table: Table) -> tuple[str, ...]:
    """The names in `providers`, in their order."""
    if "providers" not in table:
        return (BUILTIN,)
    names = table.texts("providers", name_problem)
    if len(names) > PROVIDERS_MAX:
        raise table.bad("providers", f"names more than {PROVIDERS_MAX}; remove some")
    for place, name in enumerate(names):
        if name in names[:place]:
            raise table.bad(("providers", place), f"names {name} twice; keep one of them")
    return names


def described(table: Table, known: Sequence[str]) -> dict[str, Told]:
    """What the tables of the providers say. `known` are the other keys there are.

    Those of providers from other packages are taken as they are: `checked_later` looks at them.
    """
    ours = {name: entry.fields for name, entry in OWN.items()}
    others = [name for name in chosen(table) if table_of(name) not in ours and name != BUILTIN]
    if not {*table} <= {*known, *ours, *others}:
        # A table may stay when its provider is not used any more.
        others += [name for name in _installed() if name not in (*ours, *others, *known)]
    table.allow(*known, *ours, *others)
    found: dict[str, Told] = {}
    for name in (*ours, *others):
        if name in table:
            part = table.table(name)
            found[name] = checked(part, ours[name]) if name in ours else _as_written(part)
    return found


def checked(table: Table, fields: Sequence[Field]) -> dict[str, Value]:
    """What a table says, by the keys it uses; nothing of what it leaves out."""
    table.allow(*(field.key for field in fields))
    return {field.key: _READ[field.kind](table, field) for field in fields if field.key in table}


def checked_later(config: Path, name: str, fields: Sequence[Field]) -> dict[str, Value]:
    """The same for a provider whose fields are only known now. The file is read again, for the line of a mistake."""
    text = text_of(config)
    if text is None:
        return {}
    source, values = toml(config, text)
    return checked(Table(source, (), values).table("memory").table(name), fields)


def arguments(
    name: str, fields: Sequence[Field], written: Told, secret: Callable[[str], str | None], env: Path
) -> dict[str, Value]:
    """What `initialize` is handed. Raises `BadConfig` for what is missing, with what to do about it."""
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
                f"memory.{name} has no {field.key!r}; add it under [memory.{name}], or run everthread setup"
            )
        if value is not None:
            found[field.name] = value
    return found


def problem_of(field: Field, text: str) -> str:
    """What is wrong with a text as the value of a field that is no secret."""
    if field.choices and text not in field.choices:
        return f"must be one of {', '.join(field.choices)}"
    return address_problem(text) if field.kind == "address" else printable(text)


def _installed() -> list[str]:
    """The names under which other packages offer providers."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and hardly ever wanted

    return sorted({entry.name for entry in entry_points(group=GROUP)})


def name_problem(text: str) -> str:
    """What is wrong with the name of a provider, whether or not there is one of that name."""
    if text == HERMES:
        return f"must say which plugin: {HERMES}:NAME; `everthread memory bridge list` shows which there are"
    text = text.removeprefix(f"{HERMES}:")
    if not text or len(text) > 64 or not text.replace("_", "").replace("-", "").isalnum() or not text.isascii():
        return f"is no name of a memory provider; {nearest(text, [BUILTIN, *OWN])}"
    return ""


def _as_written(table: Table) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for key in table:
        value = table.plain(key)
        if not isinstance(value, str | int | float | bool):
            raise table.bad(key, "must be a string, a number, or true or false")
        found[key] = value
    return found


def _secret(table: Table, field: Field) -> str:
    return table.text(field.key, check=variable_problem)


def _text(table: Table, field: Field) -> str:
    text = table.text(field.key, check=lambda given: problem_of(field, given))
    return text.rstrip("/") if field.kind == "address" else text


_READ: Mapping[Kind, Callable[[Table, Field], Value]] = {
    "text": _text,
    "address": _text,
    "whole": lambda table, field: table.whole(field.key, 0, int(field.low), int(field.high)),
    "number": lambda table, field: table.number(field.key, 0.0, field.low, field.high),
    "flag": lambda table, field: table.flag(field.key, False),
    "secret": _secret,
}
