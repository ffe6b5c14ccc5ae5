"""`everthread setup memory`: choosing memory providers, what each has to be told, and a try of each."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.config.provider_settings import Field, Value
    from everthread.config.settings import Settings

_BUILTIN = "builtin"
_KEY_CHARS_MAX = 4096
_WHICH_PLUGIN = (
    "say which plugin of Hermes Agent's, such as hermes:holographic; `everthread memory bridge list` shows all"
)


@dataclass
class Answers:
    """What is to be written: settings by provider and key, and secrets by variable."""

    providers: tuple[str, ...]
    told: dict[str, dict[str, Value]] = field(default_factory=lambda: dict[str, dict[str, "Value"]]())
    secrets: dict[str, str] = field(default_factory=lambda: dict[str, str](), repr=False)


@click.command("memory")
@click.argument("names", metavar="[PROVIDER]...", nargs=-1)
@click.option("--set", "given", metavar="PROVIDER.KEY=VALUE", multiple=True, help="What a provider is told.")
@click.option("--offline", is_flag=True, help="Do not try the providers.")
@json_option
@home_option
@pass_invocation
def setup_memory(
    invocation: CliContext, names: tuple[str, ...], given: tuple[str, ...], offline: bool, as_json: bool
) -> None:
    """Choose where memories are kept and found, say what each PROVIDER needs, and try it.

    Those named here are used, all at once and in this order, and no others; `builtin` is this machine. A key is typed
    without being shown, and written into .env, which only you can read; the rest goes into config.toml. With names,
    nothing is asked: what is not given is as it was, or as it is usual.

    \b
    Examples:
      everthread setup memory
      everthread setup memory builtin hindsight --set hindsight.address=http://127.0.0.1:8888
      everthread setup memory builtin hermes:holographic
      everthread setup memory builtin --json
    """
    from everthread.config.provider_settings import HERMES, table_of

    if not names and (as_json or not sys.stdin.isatty()):
        raise click.UsageError("There is nobody to ask; name the providers to use, such as builtin")
    settings = invocation.settings
    unopened = invocation.unopened(settings)
    known = {_BUILTIN: "what was said, found on this machine; nothing has to be set up", **unopened.known_memories()}
    chosen = names or _ask_which(settings, known)
    _refuse_unknown(chosen, known)
    answers = Answers(tuple(dict.fromkeys(chosen)))
    others = [name for name in answers.providers if name != _BUILTIN]
    fields = {table_of(name): unopened.memory_fields(name) for name in others}
    for name, of_it in fields.items():
        answers.told[name] = dict(settings.memory_providers.get(name, {}))
        if not names:
            _ask(settings, name, of_it, answers)
    _take_given(given, fields, answers)
    if HERMES in fields and not offline:
        _make_hermes(settings, answers, may_ask=not names)
    health = {} if offline else _tried(invocation, _as_it_will_be(settings, answers), others)
    _write(invocation, answers)
    if as_json:
        show.print_json({"memory": list(answers.providers), "tried": not offline, "health": health})
        return
    for name, said in health.items():
        click.echo(f"{name}: {show.one_line(said)}")
    click.echo(f"Memories in use: {', '.join(answers.providers)}.")
    new = [name for name in others if name not in settings.memory.providers]
    for name in new:
        click.echo(f"To tell it what was said before: everthread memory copy --to {name}")


def _refuse_unknown(chosen: Sequence[str], known: Mapping[str, str]) -> None:
    from everthread.config.provider_settings import HERMES, check_provider_name, table_of
    from everthread.config.tables import suggest
    from everthread.domain.errors import BadInput

    for name in chosen:
        if name == HERMES:
            raise BadInput(_WHICH_PLUGIN)
        if table_of(name) == HERMES and (problem := check_provider_name(name)):
            raise BadInput(f"{name[:60]!r} {problem}")
        if table_of(name) not in known:
            raise BadInput(f"Unknown memory provider {name[:60]!r}. {suggest(name, list(known))}")


def _ask_which(settings: Settings, known: Mapping[str, str]) -> tuple[str, ...]:
    from everthread.config.provider_settings import HERMES, table_of

    names = list(known)
    for number, name in enumerate(names, start=1):
        mark = "*" if name in map(table_of, settings.memory.providers) else " "
        click.echo(f"{mark}{number:>2}  {name:<12}  {show.one_line(known[name])}")

    def meant(text: str) -> tuple[str, ...]:
        found: list[str] = []
        for word in text.replace(",", " ").split():
            if word.isdecimal() and 1 <= int(word) <= len(names):
                word = names[int(word) - 1]
            if word == HERMES:
                raise click.BadParameter(_WHICH_PLUGIN)
            if table_of(word) in names:
                found.append(word)
            else:
                raise click.BadParameter(f"{word[:60]!r} is none of them; give numbers or names, with spaces between")
        if not found:
            raise click.BadParameter("name at least one")
        return tuple(found)

    present = " ".join(name for name in settings.memory.providers if table_of(name) in known)
    return click.prompt("Memories to use, by number or name", default=present or _BUILTIN, value_proc=meant)


def _ask(settings: Settings, name: str, fields: Sequence[Field], answers: Answers) -> None:
    usual = {each.name: each.default for each in fields}
    for each in fields:
        if each.only_if is not None:
            other, wanted = each.only_if
            if answers.told[name].get(other, usual.get(other)) != wanted:
                continue
        if each.kind == "secret":
            _ask_secret(settings, name, each, answers)
            continue
        is_written = each.key in answers.told[name]
        present = answers.told[name].get(each.key, each.default)
        shown = "" if present is None else str(present).lower() if isinstance(present, bool) else str(present)
        value = click.prompt(
            f"{name}: {each.asks}",
            default=shown,
            show_default=bool(shown),
            value_proc=lambda text, of=each, there=is_written: _value_or_nothing(of, text, there),
        )
        # What stands in the file is written over, also with what is usual; nothing else of that is.
        if value is not None and (is_written or value != each.default):
            answers.told[name][each.key] = value


def _ask_secret(settings: Settings, name: str, each: Field, answers: Answers) -> None:
    variable = str(answers.told[name].get(each.key, each.default) or "")
    if not variable:
        variable = answers.told[name][each.key] = f"{name}_{each.name}".upper().replace("-", "_")
    there = settings.secret(variable) is not None
    keeps = "Enter keeps the present one" if there else "Enter if it needs none" if not each.required else ""

    def checked(text: str) -> str:
        key = text.strip()
        if not key and each.required and not there:
            raise click.BadParameter("it is empty")
        if len(key) > _KEY_CHARS_MAX or not key.isprintable() or " " in key:
            raise click.BadParameter("this can't be a key; paste it whole, and nothing else")
        return key

    question = f"{name}: {each.asks} ({variable}; what you type is not shown{', ' * bool(keeps)}{keeps})"
    default = None if each.required and not there else ""
    key = click.prompt(question, default=default, hide_input=True, show_default=False, value_proc=checked)
    if key:
        answers.secrets[variable] = key


def _value_or_nothing(each: Field, text: str, is_written: bool) -> Value | None:
    value = _value(each, text)
    if value is None and is_written:
        raise click.BadParameter("to have none, take it out with `everthread config edit`")
    return value


def _value(each: Field, text: str) -> Value | None:
    """What a text means for a field; None is nothing."""
    from everthread.config.provider_settings import check_field

    text = text.strip()
    if not text:
        if each.required:
            raise click.BadParameter("it is empty")
        return None
    try:
        match each.kind:
            case "whole":
                number: float = int(text)
            case "number":
                number = float(text)
            case "flag":
                if text.lower() not in ("true", "false", "yes", "no"):
                    raise click.BadParameter("give yes or no")
                return text.lower() in ("true", "yes")
            case _:
                if problem := check_field(each, text):
                    raise click.BadParameter(problem)
                return text
    except ValueError:
        raise click.BadParameter("give a number") from None
    if not each.low <= number <= each.high:
        raise click.BadParameter(f"give a number from {each.low:g} to {each.high:g}")
    return number


def _take_given(given: Sequence[str], fields: Mapping[str, Sequence[Field]], answers: Answers) -> None:
    from everthread.config.tables import suggest

    for text in given:
        place, equals, value = text.partition("=")
        name, _, key = place.partition(".")
        known = {each.key: each for each in fields.get(name, ())}
        if any(each.kind == "secret" and each.name == key for each in fields.get(name, ())):
            raise click.UsageError(
                f"--set {place}: a key is not for the command line; leave this out, and put the key into .env "
                f"(everthread setup memory, without names, asks for it)"
            )
        if not equals or key not in known:
            names = [f"{provider}.{each.key}" for provider, of_it in fields.items() for each in of_it]
            raise click.UsageError(f"--set: Unknown setting {show.shortened(place)!r}. {suggest(place, names)}")
        try:
            meant = _variable(value) if known[key].kind == "secret" else _value(known[key], value)
        except click.BadParameter as error:
            raise click.UsageError(f"--set {place}: {error.message}") from error
        if meant is not None:
            answers.told[name][key] = meant


def _variable(text: str) -> str:
    """The name of a variable. What is none may be the key itself: it is not repeated."""
    from everthread.config.checks import check_variable

    if problem := check_variable(text.strip()):
        raise click.BadParameter(f"{problem}; the key itself goes into .env")
    return text.strip()


def _make_hermes(settings: Settings, answers: Answers, *, may_ask: bool) -> None:
    """An environment with Hermes Agent, unless there is one, or another is named."""
    from everthread.cli.commands.setup.hermes_env import VERSION, WHOLE, is_made, make
    from everthread.cli.output import bar
    from everthread.config.provider_settings import HERMES

    if "python" in answers.told[HERMES] or is_made(settings.hermes_path):
        return
    if may_ask:
        click.echo(f"Its plugins need hermes-agent {VERSION}: about {WHOLE // 1_000_000} MB in {settings.hermes_path}.")
        if not click.confirm("Install it there?", default=True):
            raise click.Abort
    click.echo(f"Installing hermes-agent {VERSION} into {settings.hermes_path} ...", err=True)
    with bar("Installing", WHOLE) as advance:
        done = 0

        def show_progress(now: int, _: int) -> None:
            nonlocal done
            advance(max(now - done, 0))
            done = max(now, done)

        make(settings.hermes_path, show_progress)


def _as_it_will_be(settings: Settings, answers: Answers) -> Settings:
    from msgspec.structs import replace

    from everthread.config.settings import Variables

    variables = Variables({**settings.variables.environ, **answers.secrets}, settings.variables.file)
    told = {**settings.memory_providers, **answers.told}
    memory = replace(settings.memory, providers=answers.providers)
    return replace(settings, memory=memory, memory_providers=told, variables=variables)


def _tried(invocation: CliContext, settings: Settings, names: Sequence[str]) -> dict[str, str]:
    """What each says of itself. Raises what is wrong with one: nothing is written then."""
    health: dict[str, str] = {}
    for name in names:
        click.echo(f"Trying {name} ...", err=True)
        health[name] = invocation.run(invocation.unopened(settings).try_memory(name))
    return health


def _write(invocation: CliContext, answers: Answers) -> None:
    from everthread.config.edit import set_secret, set_values
    from everthread.config.settings import places

    where = places(invocation.home)
    values: dict[str, Any] = {"memory.providers": list(answers.providers)}
    for name, told in answers.told.items():
        values |= {f"memory.{name}.{key}": value for key, value in told.items()}
    set_values(where, values)
    for variable, secret in answers.secrets.items():
        set_secret(where, variable, secret)
