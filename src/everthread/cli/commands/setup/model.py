"""Choose a model and its key, by questions or by options. The choice is tested before it is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.commands.setup.secrets import ask_secret, with_secrets, write_settings
from everthread.cli.context import CliContext
from everthread.domain.errors import BadInput, EverthreadError
from everthread.domain.text_format import one_line, shorten

if TYPE_CHECKING:
    from everthread.config.schema import ProviderSettings, Settings

_OWN_MEMORY = "builtin"
_ANOTHER = "+"
"""Not a valid provider name."""
_DESCRIPTIONS = {
    "anthropic": "Claude, by Anthropic",
    "openai": "OpenAI",
    "openrouter": "many models, by OpenRouter",
    "gemini": "Gemini, by Google",
    "ollama": "Ollama on this machine",
    "vllm": "vLLM on this machine",
    "llamacpp": "llama.cpp on this machine",
    "local": "SmolLM2, a very small model for a first try; needs no key",
    _ANOTHER: "another OpenAI-compatible endpoint",
}


@dataclass(frozen=True, slots=True)
class SetupChoice:
    """The chosen model. Empty fields keep the current settings."""

    model: str
    key_env: str = ""
    """Environment variable with the key, if it is not the default of the provider."""
    key: str = field(default="", repr=False)
    """A key entered by the user, for `.env`."""
    endpoint: ProviderSettings | None = None
    """A new provider, named by the first part of `model`."""


def choice_from_options(cli: CliContext, model: str, key_env: str) -> SetupChoice:
    """Return the choice made by options. Raises `BadInput` if a key is missing."""
    from everthread.config.settings import default_model

    settings = cli.settings
    chosen = model or default_model(settings)
    provider = _provider(settings, chosen)
    if key_env and not settings.secret(key_env):
        raise BadInput(f"{key_env[:100]} is not set; set it in the environment or in {settings.env_path}")
    if provider.api_key_env and not key_env and not settings.secret(provider.api_key_env):
        raise BadInput(f"{provider.api_key_env} is not set; set it, or choose another variable with --key-env")
    return SetupChoice(chosen, key_env if key_env != provider.api_key_env else "")


def ask(cli: CliContext, *, offline: bool) -> dict[str, Any]:
    """Ask for a model until it works or the user accepts it untested. Return the result as for `apply_choice`."""
    settings = cli.settings
    click.echo(f"Setting up Everthread in {settings.home}. Press Ctrl-C to quit without changes.\n")
    while True:
        choice = _ask_choice(cli.settings)
        _print_memory(_memory(cli))
        try:
            return apply_choice(cli, choice, offline=offline)
        except EverthreadError as error:
            click.echo(one_line(f"The test failed: {error}"))
        if click.confirm("Change your answers?", default=True):
            continue
        if click.confirm("Save them anyway?", default=False):
            return apply_choice(cli, choice, offline=True)
        raise click.Abort


def apply_choice(cli: CliContext, choice: SetupChoice, *, offline: bool) -> dict[str, Any]:
    """Test the choice, then write it; return the result for --json. If the test raises, nothing is written."""
    where = cli.home_paths
    settings = _updated_settings(cli, choice)
    provider = _provider(settings, choice.model)
    variable = choice.key_env or provider.api_key_env
    if not offline:
        click.echo(f"Testing {choice.model} ...", err=True)
        cli.run(cli.unopened_runtime(settings).reach(choice.model))
    values: dict[str, Any] = {"model": choice.model}
    name = json.dumps(choice.model.partition("/")[0])
    if choice.key_env:
        values[f"providers.{name}.api_key_env"] = choice.key_env
    if choice.endpoint is not None:
        values[f"providers.{name}.base_url"] = choice.endpoint.base_url
        if choice.endpoint.api_key_env:
            values[f"providers.{name}.api_key_env"] = choice.endpoint.api_key_env
    write_settings(where, values, {variable: choice.key} if choice.key else {})
    tested = "Not tested." if offline else "The model answered."
    click.echo(f"{tested} The model {choice.model} is set in {where.config}.", err=True)
    if choice.key:
        click.echo(f"The key is in {where.env} as {variable}, readable for your user only.", err=True)
    return {
        "model": choice.model,
        "config": str(where.config),
        "key_env": variable or None,
        "key_written": bool(choice.key),
        "tried": not offline,
        **_memory(cli),
    }


def _memory(cli: CliContext) -> dict[str, Any]:
    """Return the memory providers in use and the plugins of installed packages."""
    from everthread.plugins import find_installed

    plugins = [plugin.name for plugin, _ in find_installed()]
    return {"memory": list(cli.unopened_runtime(cli.settings).provider_names), "plugins": plugins}


def _print_memory(found: dict[str, Any]) -> None:
    for name in found["memory"]:
        what = "stored on this machine; needs no setup" if name == _OWN_MEMORY else "in use"
        click.echo(f"Memory: {one_line(name)} ({what})")
    for name in found["plugins"]:
        click.echo(f"Plugin: {one_line(name)}")
    click.echo("To add your own provider, see `Write a memory provider` in the documentation.")


def _updated_settings(cli: CliContext, choice: SetupChoice) -> Settings:
    """Return the settings with the choice applied."""
    from msgspec.structs import replace

    from everthread.config import settings as config

    name = choice.model.partition("/")[0]
    if choice.endpoint is not None:
        settings = config.load(cli.home)
        providers = {**settings.providers, name: choice.endpoint}
        settings = replace(settings, model=choice.model, providers=providers)
    else:
        settings = config.load(cli.home, model=choice.model)
    if choice.key_env:
        provider = replace(settings.providers[name], api_key_env=choice.key_env)
        settings = replace(settings, providers={**settings.providers, name: provider})
    if choice.key:
        variable = _provider(settings, choice.model).api_key_env
        settings = with_secrets(settings, {variable: choice.key})
    return settings


def _provider(settings: Settings, model: str) -> ProviderSettings:
    from everthread.config.parse import check_setting

    if problem := check_setting("model", model, settings.providers):
        raise BadInput(f"{shorten(model)}: {problem}")
    return settings.providers[model.partition("/")[0]]


# --- Questions -------------------------------------------------------------------------------------------------------


def _ask_choice(settings: Settings) -> SetupChoice:
    current_provider, _, current_model = settings.model.partition("/")
    name = _ask_provider(settings, current_provider)
    endpoint = None
    if name == _ANOTHER:
        name, endpoint = _ask_endpoint(settings)
    provider = endpoint or settings.providers[name]
    if name == "local":
        if not settings.local_model_path.is_dir():
            click.echo("Download it first: everthread setup local")
        return SetupChoice("local/smollm2")
    model = click.prompt(
        "Model (name used by the provider)", default=current_model if name == current_provider else None, type=str
    ).strip()
    key = ask_key(settings, provider.api_key_env) if provider.api_key_env else ""
    return SetupChoice(model if model.startswith(f"{name}/") else f"{name}/{model}", key=key, endpoint=endpoint)


def _ask_provider(settings: Settings, current: str) -> str:
    names = [*settings.providers, _ANOTHER]
    for number, name in enumerate(names, start=1):
        mark = "*" if name == current else " "
        click.echo(f"{mark}{number:>2}  {name:<12}  {_DESCRIPTIONS.get(name) or settings.providers[name].base_url}")

    def parse(text: str) -> str:
        if text in names:
            return text
        if text.isdecimal() and 1 <= int(text) <= len(names):
            return names[int(text) - 1]
        raise click.BadParameter(f"enter a number from 1 to {len(names)}, or a name")

    return click.prompt("Provider (number or name)", default=current or None, value_proc=parse)


def _ask_endpoint(settings: Settings) -> tuple[str, ProviderSettings]:
    """Ask for a custom endpoint: name, address and variable of its key."""
    from everthread.config.checks import check_name, check_url, check_variable
    from everthread.config.schema import ProviderSettings

    def new_name(text: str) -> str:
        return "is taken; choose another" if text in settings.providers else check_name(text)

    name = click.prompt("Name", value_proc=_parser_with(new_name))
    base_url = click.prompt("Address, such as https://models.example/v1", value_proc=_parser_with(check_url))
    variable = click.prompt(
        "Environment variable for its key (Enter if it needs none)",
        default="",
        show_default=False,
        value_proc=_parser_with(lambda text: text and check_variable(text)),
    )
    return name, ProviderSettings(base_url=base_url.rstrip("/"), api_key_env=variable)


def _parser_with(problem_of: Callable[[str], str]) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if problem := problem_of(text.strip()):
            raise click.BadParameter(problem)
        return text.strip()

    return checked


def ask_key(settings: Settings, variable: str, what: str = "Key") -> str:
    """Ask for a key; empty to keep the current one."""
    exists = settings.secret(variable) is not None
    if os.path.lexists(settings.env_path) and settings.variables.environ.get(variable):
        click.echo(f"{variable} is set in the environment, which takes precedence over {settings.env_path}.")
    return ask_secret(what, variable, exists=exists)
