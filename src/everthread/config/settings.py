"""Settings. Only this package and `bootstrap` look at the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from everthread.config.schema import (
    BASE_URLS,
    SCALARS,
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
    Terminal,
    Told,
    Tools,
    Trigger,
    Webhook,
    built_in_providers,
    without_secrets,
)
from everthread.domain.errors import BadConfig, StoreUnwritable
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy

__all__ = [
    "Compression",
    "Delegation",
    "Gateway",
    "Http",
    "Limits",
    "McpServer",
    "Memory",
    "Places",
    "PlatformAccount",
    "Price",
    "Provider",
    "ProviderKind",
    "Review",
    "Schedule",
    "Settings",
    "Terminal",
    "Tools",
    "Trigger",
    "Webhook",
    "Variables",
    "child_environment",
    "hermes_home",
    "debugging",
    "default_model",
    "load",
    "places",
    "wants_local_model",
    "working_folder",
]

LOCAL_MODEL = "local/smollm2"
_ASKED_FIRST = ("anthropic", "openai", "openrouter", "gemini")


class Places(Struct, frozen=True):
    """Where everything is, or would be."""

    home: Path
    config: Path
    env: Path
    mcp: Path


class Variables(Struct, frozen=True):
    """The environment, and behind it what `.env` says. An empty value counts as none. Shows nothing of itself."""

    environ: Mapping[str, str] = {}
    file: Mapping[str, str] = {}

    __repr__ = object.__repr__

    def get(self, name: str) -> str | None:
        return self.environ.get(name) or self.file.get(name) or None


class Settings(Struct, frozen=True, eq=False):
    home: Path
    """The folder that holds everything this program keeps."""
    config_path: Path = Path("config.toml")
    """As all of these paths: taken from the home, unless it is absolute."""
    env_path: Path = Path(".env")
    mcp_path: Path = Path("mcp.json")
    owner: str = "me"
    """The person at this machine."""
    profile: str = "main"
    model: str = ""
    """PROVIDER/MODEL; if it is empty, `default_model` says what to use."""
    auxiliary_model: str = ""
    """For titles and such; the same as `model` if it is empty."""
    fallback_models: tuple[str, ...] = ()
    providers: Mapping[str, Provider] = field(default_factory=built_in_providers)
    limits: Limits = Limits()
    delegation: Delegation = Delegation()
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    """By PROVIDER/MODEL."""
    memory: Memory = Memory()
    memory_providers: Mapping[str, Told] = field(default_factory=dict[str, Told])
    """What is said of each in its own table, `[memory.NAME]`."""
    compression: Compression = Compression()
    review: Review = Review()
    schedule: Schedule = Schedule()
    tools: Tools = Tools()
    terminal: Terminal = Terminal()
    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict[str, McpServer])
    reset: ResetPolicies = field(default_factory=lambda: ResetPolicies(ResetPolicy()))
    gateway: Gateway = Gateway()
    platforms: Mapping[str, PlatformAccount] = field(default_factory=dict[str, PlatformAccount])
    """By the names that they have in session keys."""
    warnings: tuple[str, ...] = ()
    """What is not wrong, but should not stay as it is."""
    variables: Variables = field(default_factory=Variables)

    def __post_init__(self) -> None:
        for name in ("config_path", "env_path", "mcp_path"):
            force_setattr(self, name, self.home / getattr(self, name))

    def __repr__(self) -> str:
        return without_secrets(self, "variables")

    def __eq__(self, other: object) -> bool:
        """Wherever they were read from."""
        return isinstance(other, Settings) and all(
            getattr(self, name) == getattr(other, name) for name in self.__struct_fields__ if name != "variables"
        )

    def __ne__(self, other: object) -> bool:
        # A Struct brings its own, which knows nothing of the one above.
        return not self == other

    @property
    def db_path(self) -> Path:
        return self.home / "everthread.db"

    @property
    def skills_path(self) -> Path:
        """The folder of the user's own skills."""
        return self.home / "skills"

    @property
    def media_path(self) -> Path:
        """The folder of what came with messages on platforms."""
        return self.home / "media"

    @property
    def file_folders(self) -> tuple[Path, ...]:
        """Where answers of scheduled tasks may be written; a path that does not say where is in the first of them."""
        return (self.home / "files", *self.schedule.folders)

    @property
    def zone(self) -> str:
        """Whose clock scheduled tasks go by, unless one says otherwise."""
        return self.schedule.zone or local_zone(self.variables.environ)

    @property
    def local_model_path(self) -> Path:
        """The folder of the local model, which `everthread setup local` fills."""
        return self.home / "models" / "local"

    @property
    def hermes_path(self) -> Path:
        """The environment with Hermes Agent, which `everthread setup memory` makes for its plugins."""
        return self.home / "hermes"

    def spend_per_day_of(self, owner: str) -> float | None:
        """In US dollars; None is no limit. Others than the person at this machine have the lower of two."""
        guests = self.gateway.spend_per_day if owner != self.owner else None
        both = [limit for limit in (self.limits.spend_per_day, guests) if limit is not None]
        return min(both, default=None)

    def secret(self, name: str) -> str | None:
        """The value of that variable, from the environment or else from `.env`; None if neither has one."""
        return self.variables.get(name)

    def filled_in(self, values: Mapping[str, str]) -> dict[str, str]:
        """Headers or variables with a value for every `${NAME}` in them. Raises `BadConfig` if one has none."""
        from everthread.config.secrets import filled_in  # noqa: PLC0415 - a home without any need not load it

        return {name: filled_in(text, self._needed) for name, text in values.items()}

    def _needed(self, name: str) -> str:
        value = self.secret(name)
        if value is None:
            raise BadConfig(f"{name} is not set; put {name}=... into {self.env_path}, or into the environment")
        return value


def load(
    home: str | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    owner: str = "",
    profile: str = "",
    model: str = "",
    auxiliary_model: str = "",
) -> Settings:
    """The settings in force: those given here, else of the environment, else of `.env`, else of `config.toml`.

    An empty value counts as none, and a file that is not there says nothing. Raises `BadConfig`, with the file and the
    line of the first thing that is wrong.
    """
    found = places(home, environ)
    variables, warnings = _variables(found.env, environ)
    settings = Settings(found.home, found.config, found.env, found.mcp, warnings=warnings, variables=variables)
    flags = {"owner": owner, "profile": profile, "model": model, "auxiliary_model": auxiliary_model}
    return _overridden(_with_files(settings), flags)


def places(home: str | None = None, environ: Mapping[str, str] = os.environ) -> Places:
    """Where the files are. The home is, in this order: the one given, `EVERTHREAD_HOME`, `$XDG_DATA_HOME/everthread`,
    `~/.everthread`. An empty value counts as none.

    A home that was named holds everything. Else each file is looked for in `$XDG_CONFIG_HOME/everthread` first.
    """
    chosen = home or environ.get("EVERTHREAD_HOME")
    if chosen:
        root = _expanded(chosen)
        return Places(root, root / "config.toml", root / ".env", root / "mcp.json")
    data = _xdg(environ, "XDG_DATA_HOME")
    root = data if data is not None else _expanded("~/.everthread")
    config = _xdg(environ, "XDG_CONFIG_HOME")
    return Places(root, *(_file(name, config, root) for name in ("config.toml", ".env", "mcp.json")))


def default_model(settings: Settings) -> str:
    """The model that was chosen; the one on this machine, if none was and there is no key for another.

    Raises `BadConfig` if there is a key but no model was chosen: which ones a service has is for the user to say.
    """
    if settings.model:
        return settings.model
    for name in _ASKED_FIRST:
        variable = settings.providers[name].api_key_env
        if variable and settings.secret(variable):
            raise BadConfig(
                f"{variable} is set, but no model is chosen; put this line at the top of {settings.config_path}: "
                f'model = "{name}/MODEL"'
            )
    return LOCAL_MODEL


def wants_local_model(settings: Settings) -> bool:
    """Whether the model in force is the one on this machine."""
    try:
        return default_model(settings) == LOCAL_MODEL
    except BadConfig:
        return False


def hermes_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Where Hermes keeps what it keeps, unless it was told another place."""
    return Path(environ.get("HERMES_HOME") or "~/.hermes").expanduser()


def child_environment(**more: str) -> dict[str, str]:
    """The environment of a process that is started: this one's, and more."""
    return {**os.environ, **more}


def working_folder() -> Path | None:
    """The folder that the program was started in; None if it is gone."""
    try:
        return Path.cwd()
    except OSError:
        return None


def notify_socket(environ: Mapping[str, str] = os.environ) -> str | None:
    """Where a service manager wants to be told how this process is."""
    return environ.get("NOTIFY_SOCKET") or None


def user_units(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the services that a user's systemd starts."""
    folder = Path(environ.get("XDG_CONFIG_HOME") or ".")
    return (folder if folder.is_absolute() else _expanded("~/.config")) / "systemd" / "user"


def local_zone(environ: Mapping[str, str] = os.environ, link: Path = Path("/etc/localtime")) -> str:
    """The IANA name of this machine's time zone; UTC if it does not say."""
    named = (environ.get("TZ") or "").removeprefix(":")
    if not named:
        try:
            named = os.readlink(link).partition("zoneinfo/")[2]
        except OSError:
            named = ""
    from everthread.domain.errors import BadPolicy  # noqa: PLC0415 - only some commands ask
    from everthread.domain.timezones import zone_named  # noqa: PLC0415 - as above

    try:
        zone_named(named or "UTC")
    except BadPolicy:
        return "UTC"
    return named or "UTC"


def debugging(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a traceback is wanted where one line would do."""
    return environ.get("EVERTHREAD_DEBUG", "") not in ("", "0")


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise StoreUnwritable(f"{path}: {error}; give another place with --home or EVERTHREAD_HOME") from error


def _xdg(environ: Mapping[str, str], name: str) -> Path | None:
    folder = Path(environ.get(name) or ".")
    # The XDG rules have a relative path ignored.
    return folder / "everthread" if folder.is_absolute() else None


def _file(name: str, config: Path | None, home: Path) -> Path:
    """The file where it is; where it would be made, if it is in neither place."""
    if config is None or (os.path.lexists(home / name) and not os.path.lexists(config / name)):
        return home / name
    return config / name


def _variables(file: Path, environ: Mapping[str, str]) -> tuple[Variables, tuple[str, ...]]:
    if not os.path.lexists(file):
        return Variables(environ), ()
    from everthread.config import dotenv  # noqa: PLC0415 - as below
    from everthread.config import tables as reading  # noqa: PLC0415 - as below

    text = reading.text_of(file)
    if text is None:
        return Variables(environ), ()
    warning = f"{file}: others on this machine can read it; run: chmod 600 {file}"
    open_to_others = file.stat().st_mode & 0o044
    return Variables(environ, dotenv.parse(file, text)), (warning,) if open_to_others else ()


def _with_files(settings: Settings) -> Settings:
    """What `config.toml` and `mcp.json` say."""
    if not os.path.lexists(settings.config_path) and not os.path.lexists(settings.mcp_path):
        return settings
    from everthread.config import load as files  # noqa: PLC0415 - a home without files need not load what reads them

    said = files.read(settings.home, settings.config_path, settings.env_path, settings.mcp_path)
    return replace(settings, **said)


def _overridden(settings: Settings, flags: Mapping[str, str]) -> Settings:
    """What the environment and the command say."""
    given: dict[str, tuple[str, str]] = {}
    for name in SCALARS:
        variable = f"EVERTHREAD_{name.upper()}"
        if flags[name]:
            given[name] = f"--{name.replace('_', '-')}", flags[name]
        elif value := settings.secret(variable):
            given[name] = variable, value
    addresses = {variable: value for variable in BASE_URLS if (value := settings.secret(variable))}
    if not given and not addresses:
        return settings
    from everthread.config import parse as parsing  # noqa: PLC0415 - as above

    providers = settings.providers
    for variable, value in addresses.items():
        providers = parsing.moved(providers, variable, value)
    checks = parsing.scalar_checks(providers)
    for name, (where, value) in given.items():
        if problem := checks[name](value):
            raise BadConfig(f"{where}: {problem}")
    return replace(settings, providers=providers, **{name: value for name, (_, value) in given.items()})
