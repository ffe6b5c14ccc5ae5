"""Create the configured platforms and the transcriber. The adapter of each kind is imported on use.

Platforms of other packages register in the entry-point group `everthread.platforms`: the entry's name is the kind, and
its object is called with the platform's name, its account, its token and a clock.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from everthread.config.schema import PlatformAccount, Settings
from everthread.config.tables import suggest
from everthread.domain.errors import BadConfig
from everthread.ports.clock import Clock
from everthread.ports.platform import Platform
from everthread.ports.transcriber import Transcriber

GROUP = "everthread.platforms"

MakePlatform = Callable[[str, PlatformAccount, str, Clock], Platform]
"""Factory of a platform: its name in session keys, its account, its token (empty if it has none), and a clock."""


def make_platforms(settings: Settings, clock: Clock, *, besides: Collection[str] = ()) -> tuple[Platform, ...]:
    """Create the enabled platforms whose names are not in `besides`. Raises `BadConfig` for an unknown kind."""
    wanted = {n: account for n, account in settings.platforms.items() if account.enabled and n not in besides}
    if not wanted:
        return ()
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    return tuple(_make(name, account, settings, clock, others) for name, account in wanted.items())


def make_platform(settings: Settings, clock: Clock, name: str) -> Platform:
    """Create one platform, enabled or not. Raises `BadConfig`."""
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    return _make(name, settings.platforms[name], settings, clock, others)


def _make(
    name: str, account: PlatformAccount, settings: Settings, clock: Clock, others: Mapping[str, EntryPoint]
) -> Platform:
    where = f"{settings.config_path}: platforms.{name}"
    make = _find_factory(account.kind, where, others, settings)
    variable = account.token_env or _TOKENS.get(account.kind, "")
    token = (settings.secret(variable) if variable else None) or ""
    if variable and not token:
        raise BadConfig(f"{where}: {variable} is not set; put {variable}=... into {settings.env_path}")
    return make(name, account, token, clock)


def _find_factory(kind: str, where: str, others: Mapping[str, EntryPoint], settings: Settings) -> MakePlatform:
    if kind in _OWN:
        return partial(_OWN[kind], settings)
    if kind not in others:
        known = sorted({*_OWN, *others})
        hint = suggest(kind, known) if known else "None is installed; set enabled = false to leave it out."
        raise BadConfig(f"{where}: unknown kind of platform {kind!r}. {hint}")
    try:
        return cast("MakePlatform", others[kind].load())
    except Exception as error:
        raise BadConfig(f"{where}: {others[kind].value} can't be loaded: {error!r}; reinstall it") from error


def make_transcriber(settings: Settings) -> Transcriber | None:
    """Create the transcriber of voice messages; None if no model is set. Raises `BadConfig` for a wrong provider."""
    name, _, model = settings.gateway.transcription_model.partition("/")
    if not name:
        return None
    where = f"{settings.config_path}: gateway.transcription_model"
    provider = settings.providers.get(name)
    if provider is None or provider.kind != "openai_compat":
        known = sorted(name for name, each in settings.providers.items() if each.kind == "openai_compat")
        raise BadConfig(f"{where}: {name!r} is not an OpenAI-compatible provider. {suggest(name, known)}")
    from everthread.adapters.transcription import OpenAICompatTranscriber

    key = (settings.secret(provider.api_key_env) if provider.api_key_env else None) or ""
    return OpenAICompatTranscriber(provider.base_url, model, key, headers=settings.expand_references(provider.headers))


def _telegram(settings: Settings, name: str, account: PlatformAccount, token: str, clock: Clock) -> Platform:
    try:
        from everthread.adapters.platforms.telegram import TelegramPlatform, TokenLock
    except ImportError as error:
        raise BadConfig(_not_installed(settings, name, "telegram", error)) from error
    if not TOKEN.fullmatch(token):
        variable = account.token_env or _TOKENS["telegram"]
        raise BadConfig(f"{variable} is not a bot token; get one like 123456789:AA... from @BotFather")
    from everthread.commands.registry import COMMANDS, hidden_commands

    hidden = hidden_commands(settings.gateway.admin_commands, admin=False)
    return TelegramPlatform(
        name,
        account,
        token,
        TokenLock(_shared_folder(settings), token),
        commands={command.name: command.help.splitlines()[0] for command in COMMANDS if command.name not in hidden},
        secret=secrets.token_urlsafe(32),
    )


def _not_installed(settings: Settings, name: str, extra: str, error: ImportError) -> str:
    return (
        f"{settings.config_path}: platforms.{name}: {error.name or extra} is not installed; run: "
        f"python -m pip install 'everthread[{extra}]', or set enabled = false"
    )


def _shared_folder(settings: Settings) -> Path:
    """Return the folder for bot locks that all homes of this user share."""
    state = os.environ.get("XDG_STATE_HOME") or ""
    try:
        base = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError:
        return settings.home / "bots"
    return base / "everthread" / "bots"


TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,100}")
_TOKENS = {"telegram": "TELEGRAM_BOT_TOKEN"}
"""Default variable of the token, by kind."""

_OWN: Mapping[str, Callable[[Settings, str, PlatformAccount, str, Clock], Platform]] = {"telegram": _telegram}
