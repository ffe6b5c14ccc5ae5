"""Load the settings in force. Only this package and `bootstrap` read the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from everthread.config.environment import expand_path
from everthread.config.schema import BASE_URLS, ENV_SETTINGS, Settings, Variables
from everthread.domain.errors import BadConfig

LOCAL_MODEL = "local/smollm2"
_KEYS_CHECKED = ("anthropic", "openai", "openrouter", "gemini")
"""Providers whose API key means that the user wants another model than the local one, in the order of the message."""


class HomePaths(Struct, frozen=True):
    """Paths of the home and the configuration files, whether or not they exist."""

    home: Path
    config: Path
    env: Path
    mcp: Path


def load(
    home: str | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    owner: str = "",
    profile: str = "",
    model: str = "",
    auxiliary_model: str = "",
) -> Settings:
    """Load the settings: arguments first, then the environment, `.env`, and `config.toml` with `mcp.json`.

    An empty value counts as unset, and a missing file as empty. Raises `BadConfig` for the first mistake.
    """
    found = home_paths(home, environ)
    variables, warnings = _read_env(found.env, environ)
    settings = Settings(found.home, found.config, found.env, found.mcp, warnings=warnings, variables=variables)
    options = {"owner": owner, "profile": profile, "model": model, "auxiliary_model": auxiliary_model}
    return _override(_with_files(settings), options)


def home_paths(home: str | None = None, environ: Mapping[str, str] = os.environ) -> HomePaths:
    """Return the paths of the files. The home is the argument, `EVERTHREAD_HOME`, `$XDG_DATA_HOME/everthread` or
    `~/.everthread`: the first that is set.

    A home given by the first two contains every file. Otherwise `$XDG_CONFIG_HOME/everthread` is searched first.
    """
    chosen = home or environ.get("EVERTHREAD_HOME")
    if chosen:
        root = expand_path(chosen)
        return HomePaths(root, root / "config.toml", root / ".env", root / "mcp.json")
    data = _xdg(environ, "XDG_DATA_HOME")
    root = data if data is not None else expand_path("~/.everthread")
    config = _xdg(environ, "XDG_CONFIG_HOME")
    return HomePaths(root, *(_find(name, config, root) for name in ("config.toml", ".env", "mcp.json")))


def default_model(settings: Settings) -> str:
    """Return the chosen model; the local one if none was chosen and no API key is set.

    Raises `BadConfig` if an API key is set but no model was chosen: the user has to choose one of that service.
    """
    if settings.model:
        return settings.model
    for name in _KEYS_CHECKED:
        variable = settings.providers[name].api_key_env
        if variable and settings.secret(variable):
            raise BadConfig(
                f"{variable} is set, but no model is chosen; put this line at the top of {settings.config_path}: "
                f'model = "{name}/MODEL"'
            )
    return LOCAL_MODEL


def wants_local_model(settings: Settings) -> bool:
    """True if the model in force is the local one."""
    try:
        return default_model(settings) == LOCAL_MODEL
    except BadConfig:
        return False


def _xdg(environ: Mapping[str, str], name: str) -> Path | None:
    folder = Path(environ.get(name) or ".")
    # The XDG specification says to ignore a relative path.
    return folder / "everthread" if folder.is_absolute() else None


def _find(name: str, config: Path | None, home: Path) -> Path:
    """Return the path of an existing file, or the one where it would be created."""
    if config is None or (os.path.lexists(home / name) and not os.path.lexists(config / name)):
        return home / name
    return config / name


def _read_env(file: Path, environ: Mapping[str, str]) -> tuple[Variables, tuple[str, ...]]:
    """Read `.env`; return the variables, and a warning if others can read the file."""
    if not os.path.lexists(file):
        return Variables(environ), ()
    from everthread.config import dotenv  # noqa: PLC0415 - a home without files need not load what reads them
    from everthread.config.tables import read_text  # noqa: PLC0415 - as above

    text = read_text(file)
    if text is None:
        return Variables(environ), ()
    warning = f"{file}: others on this machine can read it; run: chmod 600 {file}"
    open_to_others = file.stat().st_mode & 0o044
    return Variables(environ, dotenv.parse(file, text)), (warning,) if open_to_others else ()


def _with_files(settings: Settings) -> Settings:
    """Apply `config.toml` and `mcp.json`."""
    if not os.path.lexists(settings.config_path) and not os.path.lexists(settings.mcp_path):
        return settings
    from everthread.config.parse import read_files  # noqa: PLC0415 - as above

    values = read_files(settings.home, settings.config_path, settings.env_path, settings.mcp_path)
    return replace(settings, **values)


def _override(settings: Settings, options: Mapping[str, str]) -> Settings:
    """Apply the environment and the options of the command line."""
    found: dict[str, tuple[str, str]] = {}
    for name in ENV_SETTINGS:
        variable = f"EVERTHREAD_{name.upper()}"
        if options[name]:
            found[name] = f"--{name.replace('_', '-')}", options[name]
        elif value := settings.secret(variable):
            found[name] = variable, value
    urls = {variable: value for variable in BASE_URLS if (value := settings.secret(variable))}
    if not found and not urls:
        return settings
    from everthread.config.parse import check_setting, move_provider  # noqa: PLC0415 - as above

    providers = settings.providers
    for variable, value in urls.items():
        providers = move_provider(providers, variable, value)
    for name, (where, value) in found.items():
        if problem := check_setting(name, value, providers):
            raise BadConfig(f"{where}: {problem}")
    return replace(settings, providers=providers, **{name: value for name, (_, value) in found.items()})
