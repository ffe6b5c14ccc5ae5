"""`/model`: which model answers here."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.commands.context import CommandContext, CommandResult, Offer, refused
from everthread.domain.errors import BadConfig
from everthread.domain.text_format import shortened

LISTED_MAX = 20
_NAME_CHARS_MAX = 200
_NEAR_MAX = 3
_LIKENESS = 0.6


async def model(desk: CommandContext, wanted: str) -> CommandResult:
    if not wanted:
        return _shown(desk)
    if len(wanted) > _NAME_CHARS_MAX or not wanted.isprintable():
        return refused("That is no name of a model; /model shows some.")
    name = _meant(desk, wanted)
    try:
        name = desk.choices(name)[0].name
    except BadConfig as error:
        return _not_there(desk, wanted, str(error))
    if name == _current(desk)[0]:
        return refused(f"{name} answers here already.")
    text = f'{name} answers from now on, in this window only. To keep it, write model = "{name}" into config.toml.'
    if desk.known_models and name not in desk.known_models and (near := _nearest(desk, wanted)):
        # Whether it is there is known only when it is asked.
        text += f" It is not one of those known here; did you mean {' or '.join(near)}?"
    return CommandResult(text, model=name)


def _shown(desk: CommandContext) -> CommandResult:
    current, problem = _current(desk)
    lines = [f"{current} answers here." if current else f"No model answers here: {problem}"]
    others = [name for name in desk.known_models if name != current][:LISTED_MAX]
    lines += [f"  {shortened(name, _NAME_CHARS_MAX)}" for name in others]
    lines.append("/model PROVIDER/MODEL takes another for this conversation.")
    return CommandResult("\n".join(lines), offers=_offers(others))


def _current(desk: CommandContext) -> tuple[str, str]:
    """The model that answers here, or else why none does."""
    try:
        return desk.choices(desk.model)[0].name, ""
    except BadConfig as error:
        return "", str(error)


def _meant(desk: CommandContext, wanted: str) -> str:
    """The known model of that name in whatever case, or with its provider left out if only one has it."""
    folded = wanted.casefold()
    same = [name for name in desk.known_models if name.casefold() == folded]
    ending = [name for name in desk.known_models if name.casefold().endswith(f"/{folded}")]
    return same[0] if same else ending[0] if len(ending) == 1 else wanted


def _not_there(desk: CommandContext, wanted: str, why: str) -> CommandResult:
    near = _nearest(desk, wanted)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return CommandResult(f"{why[:1].upper()}{why[1:]}.{hint}", ok=False, offers=_offers(near))


def _nearest(desk: CommandContext, wanted: str) -> list[str]:
    """The known models with names most like it, with their providers or without; the most alike first."""
    import difflib  # noqa: PLC0415 - only for a name that is not there

    folded = wanted.casefold()

    def likeness(name: str) -> float:
        pairs = ((folded, name), (folded.rpartition("/")[2], name.rpartition("/")[2]))
        return max(difflib.SequenceMatcher(None, one, other).ratio() for one, other in pairs)

    alike = sorted(((likeness(name.casefold()), name) for name in desk.known_models), key=lambda one: -one[0])
    return [name for ratio, name in alike if ratio >= _LIKENESS][:_NEAR_MAX]


def _offers(names: Sequence[str]) -> tuple[Offer, ...]:
    return tuple(Offer(name, f"/model {name}") for name in names)
