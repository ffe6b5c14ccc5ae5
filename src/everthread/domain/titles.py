"""Session titles: what a title may be, and how the titles of a lineage are numbered (`name`, `name #2`, `name #3`)."""

import re
import unicodedata
from collections.abc import Collection
from itertools import count

from everthread.domain.errors import BadTitle

TITLE_CHARS_MAX = 100
# No title is looked at beyond this: looking takes time, and a message may be megabytes long.
_INPUT_CHARS_MAX = 10_000

# Bounds the suffix, so that a title always keeps room for its base.
_NUMBER_MAX = 999_999_999
_NUMBERED = re.compile(r"(?P<base>.*\S) #(?P<number>[1-9][0-9]{0,8})", re.DOTALL)

_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs"})
# Unicode's Default_Ignorable_Code_Point outside those categories: fillers that count as letters, variation selectors,
# and code points reserved for more of the same. A title made of them looks empty, or like another title.
_INVISIBLE = (
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
_BRAILLE_BLANK = "\u2800"  # a symbol to Unicode, a space to the eye


def clean(text: str) -> str:
    """The title a person meant: NFC, single spaces, nothing invisible.

    Raises BadTitle if nothing is left, or more than TITLE_CHARS_MAX characters. `clean` of a clean title is itself.
    """
    if len(text) > _INPUT_CHARS_MAX:
        raise BadTitle(f"The title has {len(text)} characters: shorten it to at most {TITLE_CHARS_MAX}.")
    # Compiled when the first title is looked at: it takes as long as importing a module, and many starts name nothing.
    visible = "".join(c for c in re.sub(_INVISIBLE, "", text.replace(_BRAILLE_BLANK, " ")) if _is_shown(c))
    # Composed last: what was taken out may have kept a letter from its accent.
    title = unicodedata.normalize("NFC", " ".join(visible.split()))
    if not title:
        raise BadTitle("The title is empty: give it at least one visible character.")
    if len(title) > TITLE_CHARS_MAX:
        raise BadTitle(
            f"The title has {len(title)} characters: shorten it by {len(title) - TITLE_CHARS_MAX}, "
            f"to at most {TITLE_CHARS_MAX}."
        )
    return title


def fold(title: str) -> str:
    """What two titles have in common when they count as the same one: NFKC, casefolded."""
    # Normalised on both sides, because case folding can undo the normal form.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", title).casefold())


def split(title: str) -> tuple[str, int]:
    """The base and number of a title: "name #2" is ("name", 2), "name" is ("name", 1).

    Only what `numbered` writes counts as a number: "name #1", "name #02" and "#2" are bases.
    """
    match = _NUMBERED.fullmatch(title)
    if match is None or match["number"] == "1":
        return title, 1
    return match["base"], int(match["number"])


def numbered(base: str, number: int) -> str:
    """The title of that number: `base` itself for 1, else `base #number`.

    The base is cut, never the number, to keep within TITLE_CHARS_MAX. For a number from 2 up, `split` gives back the
    number and the base as it was cut.
    """
    if not 1 <= number <= _NUMBER_MAX:
        raise ValueError(f"a title's number is from 1 to {_NUMBER_MAX}, not {number}")
    suffix = "" if number == 1 else f" #{number}"
    return base[: TITLE_CHARS_MAX - len(suffix)].rstrip() + suffix


def next_title(title: str, taken: Collection[str]) -> str:
    """The title that follows `title`: its base, numbered above `title` and above every taken title of that base.

    The result is never the same, in the sense of `fold`, as `title` or a taken one. Should the largest number be in
    use, the lowest free one is given instead.
    """
    base, number = split(title)
    used = {fold(other) for other in taken}
    highest = max([number, *(_number_under(base, other) for other in used)])
    if highest < _NUMBER_MAX:
        return numbered(base, highest + 1)
    used.add(fold(title))
    return next(free for free in (numbered(base, n) for n in count(2)) if fold(free) not in used)


def _number_under(base: str, folded: str) -> int:
    """The number of a folded title if it is one of this base, else 1."""
    _, number = split(folded)
    # Compared as `numbered` would write it, because a long base is cut differently at each length of number.
    return number if number > 1 and fold(numbered(base, number)) == folded else 1


def _is_shown(character: str) -> bool:
    """Whether a character has a look of its own, or is white space to be collapsed."""
    return character.isspace() or unicodedata.category(character) not in _INVISIBLE_CATEGORIES
