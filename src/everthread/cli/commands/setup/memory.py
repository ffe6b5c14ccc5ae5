"""`everthread setup memory`: choose, configure and test memory providers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.commands.setup.secrets import ask_secret, with_secrets, write_settings
from everthread.cli.context import CliContext, common_options
from everthread.cli.output import Result, progress_bar, render
from everthread.domain.errors import BadInput
from everthread.domain.text_format import one_line, shorten

if TYPE_CHECKING:
    from everthread.config.provider_settings import Field, Value
    from everthread.config.schema import Settings

_BUILTIN = "builtin"
_WHICH_PLUGIN = "give a plugin of Hermes Agent, such as hermes:holographic; `everthread memory bridge list` shows all"


@dataclass
class MemoryChoice:
    """The settings to write, by provider and key, and the secrets, by variable."""

    providers: tuple[str, ...]
    settings: dict[str, dict[str, Value]] = field(default_factory=lambda: dict[str, dict[str, "Value"]]())
    secrets: dict[str, str] = field(default_factory=lambda: dict[str, str](), repr=False)


@click.command("memory")
@click.argument("names", metavar="[PROVIDER]...", nargs=-1)
@click.option("--set", "given", metavar="PROVIDER.KEY=VALUE", multiple=True, help="Setting of a provider.")
@click.option("--offline", is_flag=True, help="Do not test the providers.")
@common_options
def setup_memory(cli: CliContext, names: tuple[str, ...], given: tuple[str, ...], offline: bool, as_json: bool) -> None:
    """Choose, configure and test memory providers.

    The given providers are used together, in this order, and no others; `builtin` stores memory on this machine. Keys
    are entered hidden and written to .env, readable for your user only; other settings go to config.toml. If providers
    are given, no questions are asked: missing settings keep their values or defaults.

    \b
    Examples:
      everthread setup memory
      everthread setup memory builtin hindsight --set hindsight.address=http://127.0.0.1:8888
      everthread setup memory builtin hermes:holographic
      everthread setup memory builtin --json
    """
    from everthread.config.provider_settings import HERMES, table_name

    if not names and (as_json or not sys.stdin.isatty()):
        raise click.UsageError("No terminal to ask questions. Give the providers to use, such as builtin")
    settings = cli.settings
    unopened = cli.unopened_runtime(settings)
    known = {_BUILTIN: "stored on this machine; needs no setup", **unopened.known_memories()}
    chosen = names or _ask_providers(settings, known)
    _check_names(chosen, known)
    choice = MemoryChoice(tuple(dict.fromkeys(chosen)))
    others = [name for name in choice.providers if name != _BUILTIN]
    fields = {table_name(name): unopened.memory_fields(name) for name in others}
    for name, of_it in fields.items():
        choice.settings[name] = dict(settings.memory_providers.get(name, {}))
        if not names:
            _ask(settings, name, of_it, choice)
    _apply_options(given, fields, choice)
    if HERMES in fields and not offline:
        _install_hermes(settings, choice, may_ask=not names)
    health = {} if offline else _test(cli, _updated_settings(settings, choice), others)
    _write(cli, choice)
    new = [name for name in others if name not in settings.memory.providers]
    lines = [
        *(f"{name}: {one_line(status)}" for name, status in health.items()),
        f"Memory providers in use: {', '.join(choice.providers)}.",
        *(f"To deliver earlier sessions to it: everthread memory copy --to {name}" for name in new),
    ]
    data = {"memory": list(choice.providers), "tried": not offline, "health": health}
    render(Result(data, lines), as_json)


def _check_names(chosen: Sequence[str], known: Mapping[str, str]) -> None:
    from everthread.config.provider_settings import HERMES, check_provider_name, table_name
    from everthread.config.tables import suggest

    for name in chosen:
        if name == HERMES:
            raise BadInput(_WHICH_PLUGIN)
        if table_name(name) == HERMES and (problem := check_provider_name(name)):
            raise BadInput(f"{name[:60]!r}: {problem}")
        if table_name(name) not in known:
            raise BadInput(f"Unknown memory provider {name[:60]!r}. {suggest(name, list(known))}")


def _ask_providers(settings: Settings, known: Mapping[str, str]) -> tuple[str, ...]:
    from everthread.config.provider_settings import HERMES, table_name

    names = list(known)
    for number, name in enumerate(names, start=1):
        mark = "*" if name in map(table_name, settings.memory.providers) else " "
        click.echo(f"{mark}{number:>2}  {name:<12}  {one_line(known[name])}")

    def parse(text: str) -> tuple[str, ...]:
        found: list[str] = []
        for word in text.replace(",", " ").split():
            if word.isdecimal() and 1 <= int(word) <= len(names):
                word = names[int(word) - 1]
            if word == HERMES:
                raise click.BadParameter(_WHICH_PLUGIN)
            if table_name(word) in names:
                found.append(word)
            else:
                raise click.BadParameter(f"unknown provider {word[:60]!r}; enter numbers or names, separated by spaces")
        if not found:
            raise click.BadParameter("enter at least one")
        return tuple(found)

    current = " ".join(name for name in settings.memory.providers if table_name(name) in known)
    return click.prompt("Memory providers (numbers or names)", default=current or _BUILTIN, value_proc=parse)


def _ask(settings: Settings, name: str, fields: Sequence[Field], choice: MemoryChoice) -> None:
    defaults = {each.name: each.default for each in fields}
    for each in fields:
        if each.only_if is not None:
            other, wanted = each.only_if
            if choice.settings[name].get(other, defaults.get(other)) != wanted:
                continue
        if each.kind == "secret":
            _ask_variable(settings, name, each, choice)
            continue
        is_written = each.key in choice.settings[name]
        current = choice.settings[name].get(each.key, each.default)
        shown = "" if current is None else str(current).lower() if isinstance(current, bool) else str(current)
        value = click.prompt(
            f"{name}: {each.label}",
            default=shown,
            show_default=bool(shown),
            value_proc=lambda text, of=each, there=is_written: _value_or_nothing(of, text, there),
        )
        # Write a default only over a value that is in the file.
        if value is not None and (is_written or value != each.default):
            choice.settings[name][each.key] = value


def _ask_variable(settings: Settings, name: str, each: Field, choice: MemoryChoice) -> None:
    variable = str(choice.settings[name].get(each.key, each.default) or "")
    if not variable:
        variable = choice.settings[name][each.key] = f"{name}_{each.name}".upper().replace("-", "_")
    exists = settings.secret(variable) is not None
    key = ask_secret(f"{name}: {each.label}", variable, exists=exists, required=each.required)
    if key:
        choice.secrets[variable] = key


def _value_or_nothing(each: Field, text: str, is_written: bool) -> Value | None:
    value = _value(each, text)
    if value is None and is_written:
        raise click.BadParameter("to remove the setting, use `everthread config edit`")
    return value


def _value(each: Field, text: str) -> Value | None:
    """Parse a value of a field; None if the text is empty."""
    from everthread.config.provider_settings import check_field

    text = text.strip()
    if not text:
        if each.required:
            raise click.BadParameter("is empty")
        return None
    try:
        match each.kind:
            case "whole":
                number: float = int(text)
            case "number":
                number = float(text)
            case "flag":
                if text.lower() not in ("true", "false", "yes", "no"):
                    raise click.BadParameter("enter yes or no")
                return text.lower() in ("true", "yes")
            case _:
                if problem := check_field(each, text):
                    raise click.BadParameter(problem)
                return text
    except ValueError:
        raise click.BadParameter("enter a number") from None
    if not each.low <= number <= each.high:
        raise click.BadParameter(f"enter a number from {each.low:g} to {each.high:g}")
    return number


def _apply_options(given: Sequence[str], fields: Mapping[str, Sequence[Field]], choice: MemoryChoice) -> None:
    from everthread.config.tables import suggest

    for text in given:
        setting, equals, value = text.partition("=")
        name, _, key = setting.partition(".")
        known = {each.key: each for each in fields.get(name, ())}
        if any(each.kind == "secret" and each.name == key for each in fields.get(name, ())):
            raise click.UsageError(
                f"--set {setting}: do not give a key on the command line. Put it into .env, or run everthread setup "
                "memory without names"
            )
        if not equals or key not in known:
            names = [f"{provider}.{each.key}" for provider, of_it in fields.items() for each in of_it]
            raise click.UsageError(f"--set: Unknown setting {shorten(setting)!r}. {suggest(setting, names)}")
        try:
            parsed = _variable(value) if known[key].kind == "secret" else _value(known[key], value)
        except click.BadParameter as error:
            raise click.UsageError(f"--set {setting}: {error.message}") from error
        if parsed is not None:
            choice.settings[name][key] = parsed


def _variable(text: str) -> str:
    """Check the name of a variable. An invalid one may be the key itself, so the message does not repeat it."""
    from everthread.config.checks import check_variable

    if problem := check_variable(text.strip()):
        raise click.BadParameter(f"{problem}; put the key itself into .env")
    return text.strip()


def _install_hermes(settings: Settings, choice: MemoryChoice, *, may_ask: bool) -> None:
    """Install Hermes Agent, unless it is installed or another Python is configured."""
    from everthread.cli.commands.setup.hermes_env import SIZE_BYTES, VERSION, install, is_installed
    from everthread.config.provider_settings import HERMES

    if "python" in choice.settings[HERMES] or is_installed(settings.hermes_path):
        return
    if may_ask:
        click.echo(
            f"The plugins need hermes-agent {VERSION}: about {SIZE_BYTES // 1_000_000} MB in {settings.hermes_path}."
        )
        if not click.confirm("Install it there?", default=True):
            raise click.Abort
    click.echo(f"Installing hermes-agent {VERSION} into {settings.hermes_path} ...", err=True)
    with progress_bar("Installing", SIZE_BYTES) as advance:
        done = 0

        def show_progress(now: int, _: int) -> None:
            nonlocal done
            advance(max(now - done, 0))
            done = max(now, done)

        install(settings.hermes_path, show_progress)


def _updated_settings(settings: Settings, choice: MemoryChoice) -> Settings:
    from msgspec.structs import replace

    providers = {**settings.memory_providers, **choice.settings}
    memory = replace(settings.memory, providers=choice.providers)
    return replace(with_secrets(settings, choice.secrets), memory=memory, memory_providers=providers)


def _test(cli: CliContext, settings: Settings, names: Sequence[str]) -> dict[str, str]:
    """Test the providers and return their health. An error of one is raised."""
    health: dict[str, str] = {}
    for name in names:
        click.echo(f"Testing {name} ...", err=True)
        health[name] = cli.run(cli.unopened_runtime(settings).try_memory(name))
    return health


def _write(cli: CliContext, choice: MemoryChoice) -> None:
    values: dict[str, Any] = {"memory.providers": list(choice.providers)}
    for name, values_of in choice.settings.items():
        values |= {f"memory.{name}.{key}": value for key, value in values_of.items()}
    write_settings(cli.home_paths, values, choice.secrets)
