"""`/model`: which model answers here."""

from __future__ import annotations

import difflib

from everthread.commands.desk import Desk, Offer, Said, refused
from everthread.commands.wording import shortened
from everthread.domain.errors import BadConfig

LISTED_MAX = 20
_NAME_CHARS_MAX = 200


async def model(desk: Desk, wanted: str) -> Said:
    if not wanted:
        return _shown(desk)
    if len(wanted) > _NAME_CHARS_MAX:
        return refused("That is too long for the name of a model; /model shows some.")
    name = _meant(desk, wanted)
    try:
        name = desk.choices(name)[0].name
    except BadConfig as error:
        return _not_there(desk, wanted, str(error))
    if name == _current(desk)[0]:
        return refused(f"{name} answers here already.")
    text = f'{name} answers from now on, in this window only. To keep it, write model = "{name}" into config.toml.'
    return Said(text, model=name)


def _shown(desk: Desk) -> Said:
    current, problem = _current(desk)
    lines = [f"{current} answers here." if current else f"No model answers here: {problem}"]
    others = [name for name in desk.known_models if name != current][:LISTED_MAX]
    lines += [f"  {shortened(name, _NAME_CHARS_MAX)}" for name in others]
    lines.append("/model PROVIDER/MODEL takes another for this conversation.")
    return Said("\n".join(lines), offers=tuple(Offer(name, f"/model {name}") for name in others))


def _current(desk: Desk) -> tuple[str, str]:
    """The model that answers here, or else why none does."""
    try:
        return desk.choices(desk.model)[0].name, ""
    except BadConfig as error:
        return "", str(error)


def _meant(desk: Desk, wanted: str) -> str:
    """The known model of that name in whatever case, or with its provider left out if only one has it."""
    folded = wanted.casefold()
    same = [name for name in desk.known_models if name.casefold() == folded]
    ending = [name for name in desk.known_models if name.casefold().endswith(f"/{folded}")]
    return same[0] if same else ending[0] if len(ending) == 1 else wanted


def _not_there(desk: Desk, wanted: str, why: str) -> Said:
    near = nearest_models(desk, wanted)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return Said(
        f"{why[:1].upper()}{why[1:]}.{hint}", ok=False, offers=tuple(Offer(name, f"/model {name}") for name in near)
    )


def nearest_models(desk: Desk, wanted: str) -> list[str]:
    short_of = {name: name.casefold().rpartition("/")[2] for name in desk.known_models}
    folded = wanted.casefold()
    whole = difflib.get_close_matches(folded, [name.casefold() for name in short_of], 3, 0.6)
    parts = difflib.get_close_matches(folded.rpartition("/")[2], list(short_of.values()), 3, 0.6)
    return [name for name, short in short_of.items() if name.casefold() in whole or short in parts][:3]
