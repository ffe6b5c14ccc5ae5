"""Choosing a model and a key: by answering questions, or by options. What is chosen is tried before it is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext

if TYPE_CHECKING:
    from everthread.config.settings import Provider, Settings

_KEY_CHARS_MAX = 4096
_OWN_MEMORY = "builtin"
_ANOTHER = "+"
"""No provider can be called so."""
_WORDS = {
    "anthropic": "Claude, by Anthropic",
    "openai": "OpenAI",
    "openrouter": "many models, by OpenRouter",
    "gemini": "Gemini, by Google",
    "ollama": "Ollama on this machine",
    "vllm": "vLLM on this machine",
    "llamacpp": "llama.cpp on this machine",
    "local": "SmolLM2, a very small model to try things out; needs no key",
    _ANOTHER: "another OpenAI-compatible endpoint",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was chosen. Empty is what is configured already."""

    model: str
    key_env: str = ""
    """The variable that has the key, if it is not the provider's usual one."""
    key: str = field(default="", repr=False)
    """A key that was typed; it goes into `.env`."""
    endpoint: Provider | None = None
    """A provider that is not configured yet, under the name that the model begins with."""


def given(invocation: CliContext, model: str, key_env: str) -> Wanted:
    """What the options say."""
    from everthread.config.settings import default_model
    from everthread.domain.errors import BadInput

    settings = invocation.settings
    chosen = model or default_model(settings)
    provider = _provider(settings, chosen)
    if key_env and not settings.secret(key_env):
        raise BadInput(f"{key_env[:100]} is not set; put it into the environment or into {settings.env_path}")
    if provider.api_key_env and not key_env and not settings.secret(provider.api_key_env):
        raise BadInput(f"{provider.api_key_env} is not set; set it, or name another variable with --key-env")
    return Wanted(chosen, key_env if key_env != provider.api_key_env else "")


def asked(invocation: CliContext, *, offline: bool) -> dict[str, Any]:
    """What somebody answers, asked again until it works or they are content with it."""
    from everthread.domain.errors import EverthreadError

    settings = invocation.settings
    click.echo(f"This sets up Everthread in {settings.home}. Ctrl-C leaves everything as it is.\n")
    while True:
        wanted = _questions(invocation.settings)
        _tell_of_memory(_memory(invocation))
        try:
            return carried_out(invocation, wanted, offline=offline)
        except EverthreadError as error:
            click.echo(show.one_line(f"That did not work: {error}"))
        if click.confirm("Change your answers?", default=True):
            continue
        if click.confirm("Keep them all the same?", default=False):
            return carried_out(invocation, wanted, offline=True)
        raise click.Abort


def carried_out(invocation: CliContext, wanted: Wanted, *, offline: bool) -> dict[str, Any]:
    """Try what is wanted, then write it. Raises what went wrong; nothing is written then."""
    from everthread.config.edit import set_secret, set_values
    from everthread.config.settings import places

    where = places(invocation.home)
    settings = _with(invocation, wanted)
    provider = _provider(settings, wanted.model)
    variable = wanted.key_env or provider.api_key_env
    if not offline:
        click.echo(f"Trying {wanted.model} ...", err=True)
        invocation.run(invocation.unopened(settings).reach(wanted.model))
    values: dict[str, Any] = {"model": wanted.model}
    name = json.dumps(wanted.model.partition("/")[0])
    if wanted.key_env:
        values[f"providers.{name}.api_key_env"] = wanted.key_env
    if wanted.endpoint is not None:
        values[f"providers.{name}.base_url"] = wanted.endpoint.base_url
        if wanted.endpoint.api_key_env:
            values[f"providers.{name}.api_key_env"] = wanted.endpoint.api_key_env
    set_values(where, values)
    if wanted.key:
        set_secret(where, variable, wanted.key)
    tried = "It was not tried." if offline else "It has answered."
    click.echo(f"{tried} The model is {wanted.model}, in {where.config}.", err=True)
    if wanted.key:
        click.echo(f"The key is in {where.env}, as {variable}; only you can read it.", err=True)
    return {
        "model": wanted.model,
        "config": str(where.config),
        "key_env": variable or None,
        "key_written": bool(wanted.key),
        "tried": not offline,
        **_memory(invocation),
    }


def _memory(invocation: CliContext) -> dict[str, Any]:
    """The memory providers that are used, and the plugins of installed packages."""
    from everthread.plugins import installed

    return {"memory": list(invocation.unopened(invocation.settings).provider_names), "plugins": list(installed())}


def _tell_of_memory(found: dict[str, Any]) -> None:
    """Those in use; others are asked for once the model has answered."""
    for name in found["memory"]:
        what = "kept and recalled on this machine; nothing has to be set up" if name == _OWN_MEMORY else "used as well"
        click.echo(f"Memory: {show.one_line(name)} ({what})")
    for name in found["plugins"]:
        click.echo(f"Plugin: {show.one_line(name)}")
    click.echo("The page `Write a memory provider` in the documentation says how to add one of your own.")


def _with(invocation: CliContext, wanted: Wanted) -> Settings:
    """The settings as they will be."""
    from msgspec import structs
    from msgspec.structs import replace

    from everthread.config import settings as config

    name = wanted.model.partition("/")[0]
    if wanted.endpoint is not None:
        settings = config.load(invocation.home)
        providers = {**settings.providers, name: wanted.endpoint}
        settings = replace(settings, model=wanted.model, providers=providers)
    else:
        settings = config.load(invocation.home, model=wanted.model)
    if wanted.key_env:
        provider = structs.replace(settings.providers[name], api_key_env=wanted.key_env)
        settings = replace(settings, providers={**settings.providers, name: provider})
    if wanted.key:
        variable = _provider(settings, wanted.model).api_key_env
        environ = {**settings.variables.environ, variable: wanted.key}
        settings = replace(settings, variables=config.Variables(environ, settings.variables.file))
    return settings


def _provider(settings: Settings, model: str) -> Provider:
    from everthread.config.parse import check_setting
    from everthread.domain.errors import BadInput

    if problem := check_setting("model", model, settings.providers):
        raise BadInput(f"{show.shortened(model)}: {problem}")
    return settings.providers[model.partition("/")[0]]


# --- Questions -------------------------------------------------------------------------------------------------------


def _questions(settings: Settings) -> Wanted:
    present_provider, _, present_model = settings.model.partition("/")
    name = _ask_provider(settings, present_provider)
    endpoint = None
    if name == _ANOTHER:
        name, endpoint = _ask_endpoint(settings)
    provider = endpoint or settings.providers[name]
    if name == "local":
        if not settings.local_model_path.is_dir():
            click.echo("It has to be fetched first: everthread setup local")
        return Wanted("local/smollm2")
    model = click.prompt(
        "Model, as the provider calls it", default=present_model if name == present_provider else None, type=str
    ).strip()
    key = ask_key(settings, provider.api_key_env) if provider.api_key_env else ""
    return Wanted(model if model.startswith(f"{name}/") else f"{name}/{model}", key=key, endpoint=endpoint)


def _ask_provider(settings: Settings, present: str) -> str:
    names = [*settings.providers, _ANOTHER]
    for number, name in enumerate(names, start=1):
        mark = "*" if name == present else " "
        click.echo(f"{mark}{number:>2}  {name:<12}  {_WORDS.get(name) or settings.providers[name].base_url}")

    def meant(text: str) -> str:
        if text in names:
            return text
        if text.isdecimal() and 1 <= int(text) <= len(names):
            return names[int(text) - 1]
        raise click.BadParameter(f"give a number from 1 to {len(names)}, or a name")

    return click.prompt("Provider, by its number or name", default=present or None, value_proc=meant)


def _ask_endpoint(settings: Settings) -> tuple[str, Provider]:
    """An endpoint of one's own: what to call it, where it is, and which variable has its key."""
    from everthread.config.checks import check_name, check_url, check_variable
    from everthread.config.settings import Provider

    def new_name(text: str) -> str:
        return "is taken; choose another" if text in settings.providers else check_name(text)

    name = click.prompt("What to call it", value_proc=_checked(new_name))
    base_url = click.prompt("Its address, such as https://models.example/v1", value_proc=_checked(check_url))
    variable = click.prompt(
        "The variable for its key (Enter if it needs none)",
        default="",
        show_default=False,
        value_proc=_checked(lambda text: text and check_variable(text)),
    )
    return name, Provider(base_url=base_url.rstrip("/"), api_key_env=variable)


def _checked(problem_of: Callable[[str], str]) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if problem := problem_of(text.strip()):
            raise click.BadParameter(problem)
        return text.strip()

    return checked


def ask_key(settings: Settings, variable: str, what: str = "Key") -> str:
    """A new key; empty to go on with the one that there is."""
    there = settings.secret(variable) is not None
    if os.path.lexists(settings.env_path) and settings.variables.environ.get(variable):
        click.echo(f"{variable} is set in the environment, which goes before {settings.env_path}.")

    def checked(text: str) -> str:
        key = text.strip()
        if not key and not there:
            raise click.BadParameter("it is empty")
        if len(key) > _KEY_CHARS_MAX or not key.isprintable() or " " in key:
            raise click.BadParameter("this can't be a key; paste it whole, and nothing else")
        return key

    keeps = ", Enter keeps the present one" if there else ""
    question = f"{what} ({variable}; what you type is not shown{keeps})"
    default = "" if there else None
    return click.prompt(question, default=default, hide_input=True, show_default=False, value_proc=checked)
