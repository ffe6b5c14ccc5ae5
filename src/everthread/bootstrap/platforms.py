"""The platforms that a configuration names: each kind is made by a function of its own, imported when it is wanted.

Others' platforms are found through the entry-point group `everthread.platforms`: the entry's name is the kind, and what
it leads to is called with the platform's name, its account, its token and a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from everthread.config import PlatformAccount, Settings
from everthread.config.reading import nearest
from everthread.domain.errors import BadConfig
from everthread.ports import Clock, Platform

GROUP = "everthread.platforms"

MakePlatform = Callable[[str, PlatformAccount, str, Clock], Platform]
"""From the name that the platform has in session keys, its account, its token (empty if it has none), and a clock."""

_OWN: Mapping[str, tuple[str, str]] = dict[str, tuple[str, str]]()
"""Kind -> module and function."""


def configured(settings: Settings, clock: Clock, *, besides: Collection[str] = ()) -> tuple[Platform, ...]:
    """Those that are enabled and not there already. Raises `BadConfig` for a kind that nobody has."""
    wanted = {n: account for n, account in settings.platforms.items() if account.enabled and n not in besides}
    if not wanted:
        return ()
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    return tuple(_made(name, account, settings, clock, others) for name, account in wanted.items())


def _made(
    name: str, account: PlatformAccount, settings: Settings, clock: Clock, others: Mapping[str, EntryPoint]
) -> Platform:
    where = f"{settings.config_path}: platforms.{name}"
    make = _maker(account.kind, where, others)
    token = (settings.secret(account.token_env) if account.token_env else None) or ""
    if account.token_env and not token:
        raise BadConfig(
            f"{where}: {account.token_env} is not set; put {account.token_env}=... into {settings.env_path}"
        )
    return make(name, account, token, clock)


def _maker(kind: str, where: str, others: Mapping[str, EntryPoint]) -> MakePlatform:
    if kind in _OWN:
        module, function = _OWN[kind]
        return cast("MakePlatform", getattr(import_module(module), function))
    if kind not in others:
        known = sorted({*_OWN, *others})
        hint = nearest(kind, known) if known else "none is installed; enabled = false leaves it out"
        raise BadConfig(f"{where}: there is no kind of platform {kind!r}; {hint}")
    try:
        return cast("MakePlatform", others[kind].load())
    except Exception as error:
        raise BadConfig(f"{where}: {others[kind].value} can't be loaded: {error!r}; install it anew") from error
