"""Metadata of a setting, and its evaluation: the annotations of `schema` as values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from msgspec import NODEFAULT, Struct, field

from everthread.config import checks
from everthread.config.checks import Check, check_chat_type, check_name, check_text, check_zone


class Setting(Struct, frozen=True):
    """Metadata of one setting, inside `Annotated`."""

    help: str = ""
    low: float = 0
    """The lowest and the highest number allowed."""
    high: float = 0
    check: Check = check_text
    """Check of each text in the value."""
    names: Check = check_name
    """Check of the names in a table that the user names entries of."""
    empty: bool = False
    """Accept an empty text without a check."""
    secret: bool = False
    """`config show` hides the value."""
    table: type[Struct] | None = None
    """The declaration of a table whose value is of a type without declarations."""
    default: str = ""
    """Description of the default for the reference page, if the value does not say it."""
    allowed: str = ""
    """Description of the allowed values, if type and bounds do not say it."""


class Declaration(Struct, frozen=True):
    """One setting of a table, with the key that it has in a file."""

    name: str
    key: str
    type: Any
    """The type of the value, without None."""
    setting: Setting
    default: Any
    """NODEFAULT if the setting is required; a factory's default is the factory."""

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def entry(self) -> Any:
        """The type of the values of an array or a table."""
        return self.setting.table or get_args(self.type)[0 if get_origin(self.type) is tuple else -1]


# --- Tables that are read into a type of `domain` --------------------------------------------------------------------

ResetMode = Literal["none", "idle", "daily", "both"]


class PriceTable(Struct, frozen=True):
    """Prices of one model; read into a `Price`."""

    input: Annotated[float, Setting("US dollars for a million tokens", 0, 100_000)]
    output: Annotated[float, Setting("the same", 0, 100_000)]
    cached: Annotated[
        float | None, Setting("the same, for input that the endpoint had cached", 0, 100_000, default="as `input`")
    ] = None


class ResetPolicyTable(Struct, frozen=True):
    """Rules for resetting a conversation; read into a `ResetPolicy`."""

    mode: Annotated[ResetMode, Setting("rule by which a conversation starts afresh")] = "none"
    idle_minutes: Annotated[float, Setting("for `idle` and `both`: minutes without a message", 1, 525_600)] = 1440.0
    hour: Annotated[int, Setting("for `daily` and `both`: hour of the day", 0, 23)] = 4
    zone: Annotated[
        str, Setting("for `daily` and `both`: time zone of that hour", check=check_zone, allowed="an IANA name")
    ] = "UTC"


class ResetTable(ResetPolicyTable, frozen=True):
    """The table `[reset]`: the default rule, and rules that replace it."""

    platforms: Annotated[Mapping[str, ResetPolicyTable], Setting()] = field(default_factory=dict[str, ResetPolicyTable])
    chat_types: Annotated[Mapping[str, ResetPolicyTable], Setting(names=check_chat_type)] = field(
        default_factory=dict[str, ResetPolicyTable]
    )


# --- Evaluation -------------------------------------------------------------------------------------------------------

_NAMES = {**vars(checks), "PriceTable": PriceTable, "ResetTable": ResetTable, "Setting": Setting}
"""Names that annotations use, and that `schema` imports for type checkers only."""


def keys_of(kind: type[Struct]) -> dict[str, str]:
    """Return the keys of a table, and the field of each. Fields without a `Setting` are not settings."""
    pairs = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
    return {key: name for key, name in pairs if _annotation(kind, name)[1].startswith("Annotated[")}


@cache
def declaration(kind: type[Struct], name: str) -> Declaration:
    """Evaluate the declaration of one field."""
    module, text = _annotation(kind, name)
    hint = eval(text, vars(sys.modules[module]), _NAMES)
    inner, setting = get_args(hint)
    if get_origin(inner) in (Union, UnionType):
        inner = next(each for each in get_args(inner) if each is not NoneType)
    place = kind.__struct_fields__.index(name) - len(kind.__struct_fields__)
    defaults = kind.__struct_defaults__
    default = defaults[place] if -place <= len(defaults) else NODEFAULT
    return Declaration(name, kind.__struct_encode_fields__[place], inner, setting, default)


def declarations(kind: type[Struct]) -> list[Declaration]:
    """Evaluate the declarations of a table, in their order."""
    return [declaration(kind, name) for name in keys_of(kind).values()]


def _annotation(kind: type[Struct], name: str) -> tuple[str, str]:
    """Return the text of an annotation, and the module that it is written in."""
    owner = next(base for base in kind.__mro__ if name in base.__dict__.get("__annotations__", ()))
    return owner.__module__, owner.__annotations__[name]


def is_table(kind: Any) -> TypeGuard[type[Struct]]:
    return isinstance(kind, type) and issubclass(kind, Struct)
