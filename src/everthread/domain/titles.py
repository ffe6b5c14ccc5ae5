"""Session titles: validation, comparison, and the numbering within a lineage (`name`, `name #2`, `name #3`)."""

import re
import unicodedata
from collections.abc import Collection
from itertools import count

from everthread.domain.errors import BadTitle

TITLE_CHARS_MAX = 100
# Longer input is rejected without cleaning it, because a message may have megabytes.
_INPUT_CHARS_MAX = 10_000

# Bounds the suffix, so that a title always has characters left for its base.
_NUMBER_MAX = 999_999_999
_NUMBERED = re.compile(r"(?P<base>.*\S) #(?P<number>[1-9][0-9]{0,8})", re.DOTALL)

_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs"})
# Unicode's Default_Ignorable_Code_Point outside those categories: fillers that count as letters, variation selectors,
# and code points reserved for such characters. A title made of them looks empty, or like another title.
_INVISIBLE = (
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
_BRAILLE_BLANK = "\u2800"  # a symbol in Unicode, but looks like a space


def clean(text: str) -> str:
    """Normalize a title: NFC, single spaces, no invisible characters. Cleaning a clean title does not change it.

    Raises `BadTitle` if no character is left, or more than `TITLE_CHARS_MAX`.
    """
    if len(text) > _INPUT_CHARS_MAX:
        raise BadTitle(f"The title has {len(text)} characters: shorten it to at most {TITLE_CHARS_MAX}.")
    # Compiled on first use: compiling takes as long as importing a module, and many commands clean no title.
    visible = "".join(c for c in re.sub(_INVISIBLE, "", text.replace(_BRAILLE_BLANK, " ")) if _is_shown(c))
    # Composed last: a removed character may have separated a letter from its accent.
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
    """Return the comparison key of a title: NFKC, casefolded. Titles with equal keys count as the same."""
    # Normalized before and after, because case folding can undo the normal form.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", title).casefold())


def split(title: str) -> tuple[str, int]:
    """Return the base and the number of a title: ("name", 2) for "name #2", ("name", 1) for "name".

    Only a suffix as `numbered` writes it counts: "name #1", "name #02" and "#2" are bases.
    """
    match = _NUMBERED.fullmatch(title)
    if match is None or match["number"] == "1":
        return title, 1
    return match["base"], int(match["number"])


def numbered(base: str, number: int) -> str:
    """Return the title with that number: `base` for 1, else `base #number`.

    The base is cut, never the number, to fit `TITLE_CHARS_MAX`. For numbers from 2, `split` returns the number and the
    cut base.
    """
    if not 1 <= number <= _NUMBER_MAX:
        raise ValueError(f"a title's number is from 1 to {_NUMBER_MAX}, not {number}")
    suffix = "" if number == 1 else f" #{number}"
    return base[: TITLE_CHARS_MAX - len(suffix)].rstrip() + suffix


def next_title(title: str, taken: Collection[str]) -> str:
    """Return the title that follows `title`: its base, with a number above those of `title` and of the taken titles.

    The result never equals `title` or a taken title under `fold`. If the largest number is in use, the lowest free
    number is used instead.
    """
    base, number = split(title)
    used = {fold(other) for other in taken}
    highest = max([number, *(_number_under(base, other) for other in used)])
    if highest < _NUMBER_MAX:
        return numbered(base, highest + 1)
    used.add(fold(title))
    return next(free for free in (numbered(base, n) for n in count(2)) if fold(free) not in used)


def _number_under(base: str, folded: str) -> int:
    """Return the number of a folded title if it has this base, else 1."""
    _, number = split(folded)
    # Compared as `numbered` would write it, because the cut of a long base depends on the length of the number.
    return number if number > 1 and fold(numbered(base, number)) == folded else 1


def _is_shown(character: str) -> bool:
    """Return True if a character is visible, or is white space to collapse."""
    return character.isspace() or unicodedata.category(character) not in _INVISIBLE_CATEGORIES
