"""`/model`: show or change the model of this key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from everthread.commands.context import CommandContext, CommandResult, MenuItem, fail, sentence
from everthread.domain.errors import BadConfig
from everthread.domain.rights import Rights
from everthread.domain.text_format import shorten

LISTED_MAX = 20
_NAME_CHARS_MAX = 200
_NEAR_MAX = 3
_SIMILARITY_MIN = 0.6


class KnownModels(Protocol):
    def known_models(self) -> tuple[str, ...]: ...


async def model(context: CommandContext, wanted: str) -> CommandResult:
    rights = await context.rights()
    known = granted_models(context.runtime, rights)
    current, problem = _current(context, rights)
    if not wanted:
        return _list(known, current, problem)
    if len(wanted) > _NAME_CHARS_MAX or not wanted.isprintable():
        return fail("Invalid model name. /model lists some.")
    name = _resolve(known, wanted)
    if not rights.may_use_model(name) and name != _configured(context):
        # The same answer whether the model exists or not.
        return fail(f"The model {shorten(name, _NAME_CHARS_MAX)} is not granted here. /model lists those that are.")
    try:
        name = context.runtime.choices(name)[0].name
    except BadConfig as error:
        return _unknown(known, wanted, error)
    if name == current:
        return fail(f"{name} is already the model here.")
    text = f'The model is now {name}, in this window only. To keep it, set model = "{name}" in config.toml.'
    if known and name not in known and (near := _nearest(known, wanted)):
        # The provider reports an unknown model only when it is called.
        text += f" It is not in the list of known models. Did you mean {' or '.join(near)}?"
    return CommandResult(text, model=name)


def granted_models(settings: KnownModels, rights: Rights) -> tuple[str, ...]:
    """Return the models to choose from: those of the settings, as far as the rights grant them."""
    if rights.is_owner:
        return settings.known_models()
    return tuple(sorted(name for name in rights.models if rights.may_use_model(name)))


def _list(known: Sequence[str], current: str, problem: str) -> CommandResult:
    lines = [f"The model is {current}." if current else f"There is no model: {problem}"]
    others = [name for name in known if name != current][:LISTED_MAX]
    lines += [f"  {shorten(name, _NAME_CHARS_MAX)}" for name in others]
    lines.append("Change it with /model PROVIDER/MODEL.")
    return CommandResult("\n".join(lines), menu=_menu(others))


def _current(context: CommandContext, rights: Rights) -> tuple[str, str]:
    """The current model, or an empty name and the reason why there is none."""
    try:
        return context.runtime.choices(rights.granted_model(context.model))[0].name, ""
    except BadConfig as error:
        return "", str(error)


def _configured(context: CommandContext) -> str:
    """The name of the model that everybody may use; empty if there is none."""
    try:
        return context.runtime.choices()[0].name
    except BadConfig:
        return ""


def _resolve(known: Sequence[str], wanted: str) -> str:
    """The known model of that name, in any case; without its provider if that is unambiguous."""
    folded = wanted.casefold()
    same = [name for name in known if name.casefold() == folded]
    ending = [name for name in known if name.casefold().endswith(f"/{folded}")]
    return same[0] if same else ending[0] if len(ending) == 1 else wanted


def _unknown(known: Sequence[str], wanted: str, error: BadConfig) -> CommandResult:
    near = _nearest(known, wanted)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return CommandResult(f"{sentence(error)}.{hint}", ok=False, menu=_menu(near))


def _nearest(known: Sequence[str], wanted: str) -> list[str]:
    """Known models with similar names, with or without provider, most similar first."""
    import difflib  # noqa: PLC0415 - only for an unknown name

    folded = wanted.casefold()

    def similarity(name: str) -> float:
        pairs = ((folded, name), (folded.rpartition("/")[2], name.rpartition("/")[2]))
        return max(difflib.SequenceMatcher(None, one, other).ratio() for one, other in pairs)

    similar = sorted(((similarity(name.casefold()), name) for name in known), key=lambda one: -one[0])
    return [name for ratio, name in similar if ratio >= _SIMILARITY_MIN][:_NEAR_MAX]


def _menu(names: Sequence[str]) -> tuple[MenuItem, ...]:
    return tuple(MenuItem(name, f"/model {name}") for name in names)
