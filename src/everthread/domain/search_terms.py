"""Full-text search rules: the terms of a query, the keywords of a question, and the excerpt of a hit.

The index and the display of hits use the same rules, so that an excerpt shows the text that matched. All functions
accept any `str`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache

# Each word or pair costs about 0.1 ms of search, so these limits bound the cost of a query.
MAX_QUERY_CHARS = 400
MAX_QUERY_TERMS = 32
# A shorter prefix ("s*") would merge the postings of a large part of the vocabulary (30 to 140 ms for 100,000
# messages), so its star is ignored.
MIN_PREFIX_CHARS = 3
# Each keyword of a question is searched separately, for up to a millisecond.
MAX_KEYWORDS = 6
# A pair of characters is less specific than a word, and costs a quarter.
MAX_KEYWORD_PAIRS = 20
# A shorter stem would be a prefix of too many words.
MIN_STEM_CHARS = 4
# Hits are searched in this many characters of a text.
MAX_SEARCHED_CHARS = 50_000

_RUN = (
    "[\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u1049\u1050-\u109f\u1780-\u17d3"  # Thai-Burmese
    "\u1100-\u11ff\u3131-\u318e\ua960-\ua97f\uac00-\ud7ff"  # Korean
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Japanese kana
    "\u3005-\u3007\u3105-\u312f\u31a0-\u31bf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    "\U0001b000-\U0001b16f\U00020000-\U000323af]+"  # rare kana and Han
)
# Optional or invisible: accents left over by NFKC, Hebrew and Arabic vowel points, soft hyphens, zero-width
# characters, variation selectors. They would make equal words differ.
_IGNORED = (
    "[\u00ad\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670"
    "\u06d6-\u06ed\u200b-\u200f\u2060\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]+"
)
# A cheap test for text that needs more than NFKC, unlike accented Latin, typographic quotes and emoji. It covers _RUN,
# _IGNORED and lone surrogates.
_SPECIAL = (
    "[\u00ad\u0300-\u036f\u0591-\u1fff\u200b-\u200f\u2060\u3005-\ufaff\ufe00-\ufeff"
    "\U0001b000-\U0001b16f\U00020000-\U000e01ef]"
)
_TERM = re.compile(r'"(?P<quoted>[^"]*)"?(?P<star>\*?)|(?P<word>[^\s"]+)')
_LONG_ENOUGH = re.compile(rf"[^\W_]{{{MIN_PREFIX_CHARS}}}$")
# NUL would end the expression inside FTS5, in the middle of a string.
_QUOTES = str.maketrans("“”„«»\0", '""""" ')
_PLURAL = re.compile(r"[^\W\d_siu]s\Z")
_HIRAGANA = re.compile("[\u3041-\u309f]+")
# Stop words without accents, one list per language: a stop word of one language may be a keyword in another (hat, war,
# die). In other languages, stop words are recognized by their frequency, which takes some hundred messages.
_COMMON = tuple(
    frozenset(words.split())
    for words in """
    a about again all also am an and any anything are as at be been but by can could did do does doing done for from
    get got had has have he her hers him his how i if in into is it its just let me mine my no not now of on
    once or our ours please remember remind said say she should so some something still tell than that the their them
    then there these they thing things this those to told too us very was we were what when where which who whom whose
    why will with would yes you your yours

    aber alle als also am an auch auf aus bei bin bist bitte da das dass dein deine dem den denn der des die dir doch du
    ein eine einem einen einer er es euch fur hab habe haben hat hatte hier ich ihm ihn ihr ihre im in ist ja kann
    kannst kein keine man mein meine meinem meinen meiner mich mir mit nach nein nicht noch nun nur ob oder ohne schon
    sein seine sich sie sind so uber um und uns unser unsere unter vom von vor war waren warum was weil welche welcher
    welches wenn wer wie wieder wir wird wo zu zum zur

    ai ainsi as au aux avais avait avec avoir c ca ce ces cet cette comme comment d dans de des deja dit donc du elle en
    encore es est et etait etre eu fait ils j je l la le les leur lui m ma mais me meme mes moi mon n ne nos notre nous
    ou par pas plus pour pourquoi qu quand que quel quelle quelles quels qui quoi s sa sans ses si son sont sur t ta te
    tes toi ton tu un une va vos votre vous y

    al algo como con cual cuales cuando de del donde e el ella ellos en era eran es esa ese eso esta estaba estan este
    esto fue ha habia han hay he la las le les lo los mas me mi mis muy no nos nuestro o para pero por porque que quien
    se ser si sin sobre son soy su sus tambien te tengo tiene tu tus un una uno y ya yo

    ao aos com da das de dela dele do dos e ela ele em essa esse eu foi isso isto lhe mais mas meu meus minha minhas na
    nas nao nem no nos nossa nosso o os ou para pela pelo por qual quando que quem sao se sem ser seu seus sua suas
    tambem tem tenho um uma voce

    al alla anche c che chi ci come con cosa cui da dal dalla dei del della delle di dove e era erano gli ha hai hanno
    ho i il in io la le lei lo loro lui ma mi mia miei mie mio ne nel nella non nostro o per perche piu quale quali
    quando quanto quello questa questo se sei si sono su sua suo tu tua tuo un una uno

    aan als bij dan dat de die dit door een en er had heb hebben heeft het hij hoe hun ik in is je jij kan maar me met
    mij mijn naar niet nog of om onze ook op over te tot u uit van voor waar waarom was wat we welke wel wie wij zijn zo

    af at da de den der deres det dig din dit du eller en er et for fra har havde hun hvad hvem hvilken hvor hvordan
    hvorfor hvornar i ikke jeg kan med men mig min mit og om os pa sig som til var vi
    """.split("\n\n")
)


class _Folding(dict[int, str]):
    """Map a character to exactly one lower-case character without accent, so that offsets do not change."""

    def __missing__(self, code: int) -> str:
        base = [c for c in unicodedata.normalize("NFKD", chr(code)) if not unicodedata.combining(c)]
        folded = (base[0] if len(base) == 1 else chr(code)).lower()
        self[code] = folded if len(folded) == 1 else chr(code)
        return self[code]


_NO_WORD = re.compile(r"[\W_]+")
_SPACE = re.compile(r"\s")
_FOLDED = _Folding()


# Compiled on first use: these patterns take longer than all others of the program, and English text needs none.
@cache
def _runs() -> re.Pattern[str]:
    return re.compile(_RUN)


@cache
def _special() -> re.Pattern[str]:
    return re.compile(_SPECIAL)


@cache
def _ignored() -> re.Pattern[str]:
    return re.compile(_IGNORED)


def begins_with_run(text: str) -> bool:
    """Return True if the first character is of a script that is indexed by pairs of characters, such as Han or Thai."""
    return not text[:1].isascii() and _runs().match(text) is not None


def replace_runs(replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
    """Return the text with each run of such a script replaced."""
    return text if text.isascii() else _runs().sub(replacement, text)


def normalize(text: str) -> str:
    """Return the text in NFKC, without optional and invisible characters."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", text)
    if not _special().search(text):
        return text
    # A lone surrogate cannot be stored as UTF-8, so it becomes "?".
    return _ignored().sub("", text.encode("utf-8", "replace").decode())


def terms(query: str) -> list[tuple[str, bool]]:
    """Return each searchable term of the query without trailing punctuation, and True if it is a prefix."""
    found: dict[tuple[str, bool], None] = {}
    for match in _TERM.finditer(normalize(_cut(query)).translate(_QUOTES)):
        raw = match["quoted"] or match["word"] or ""
        kinds = "".join(unicodedata.category(char)[0] for char in raw)
        # FTS5 finds nothing for an AND with a term that has no token, so such terms are left out.
        if "L" in kinds or "N" in kinds:
            term = raw[: len(kinds.rstrip("CPSZ"))]
            prefix = bool(match["star"]) or raw.endswith("*")
            found[term, prefix and _LONG_ENOUGH.search(term) is not None] = None
    return list(found)[:MAX_QUERY_TERMS]


# Cached, because a recall needs the keywords twice: to search, and to cut the excerpts.
@lru_cache(maxsize=64)
def keywords(question: str) -> list[tuple[str, bool]]:
    """Return the keywords of a question, each with True if it also matches as a prefix.

    A question of stop words only has none. A run of a script without spaces is split into pairs of characters, as in
    the index. Of many words the longest are used, which are mostly the rarest.
    """
    words = _folded_words(normalize(_cut(question)).lower())
    spoken = frozenset(words.values())
    common = max(_COMMON, key=lambda language: len(language & spoken))
    chosen = [word for word, folded in words.items() if folded not in common and not _is_letter(word)]
    pairs: list[str] = []
    if not question.isascii():
        # A pair of hiragana is mostly grammar, unless the question has only hiragana.
        chosen = [word for word in chosen if not _HIRAGANA.fullmatch(word)] or chosen
        pairs = [word for word in chosen if begins_with_run(word)]
        chosen = [word for word in chosen if not begins_with_run(word)]
    longest = sorted(chosen, key=len, reverse=True)[:MAX_KEYWORDS]
    return list(dict.fromkeys(map(_with_endings, (*longest, *pairs[:MAX_KEYWORD_PAIRS]))))


def _folded_words(text: str) -> dict[str, str]:
    """Return each word or pair of the text with its form without accents."""
    if text.isascii():
        return {word: word for word in _NO_WORD.sub(" ", text).split()}
    text = replace_runs(r" \g<0> ", text)
    spaced = "".join(char if unicodedata.category(char)[0] in "LNM" else " " for char in text)
    return {word: word.translate(_FOLDED) for run in spaced.split() for word in _parts(run) if re.search(r"\w", word)}


def count_matches(text: str, sought: list[tuple[str, bool]]) -> int:
    """Return the number of terms that the text contains."""
    folded = _fold(_readable(text))
    return sum(_found_at(folded, term, prefix) is not None for term, prefix in sought)


def snippet(content: str, query: str, width: int = 160) -> str:
    """Return the `excerpt` around the terms of a query."""
    return excerpt(content, terms(query), width)


def excerpt(content: str, sought: list[tuple[str, bool]], width: int) -> str:
    """Return at most `width` characters of the content around the first hit of a term, on one line.

    An ellipsis marks each cut. Without a hit, the excerpt is the beginning of the content.
    """
    text = _readable(content)
    folded = _fold(text)
    found = [at for term, prefix in sought if (at := _found_at(folded, term, prefix)) is not None]
    start = 0
    if found:
        hit = min(found)
        # A third of the width precedes the hit, because the text after it is usually more informative.
        start = max(0, min(hit - width // 3, len(text) - width + 1))
        if start and (space := _SPACE.search(text, start, hit)):
            start = space.end()
    shown = ("…" if start else "") + " ".join(text[start : start + width].split())
    cut = len(content) > MAX_SEARCHED_CHARS or start + width < len(text) or len(shown) > width
    return shown[: width - 1].rstrip() + "…" if cut else shown


def _fold(text: str) -> str:
    return text.lower() if text.isascii() else text.translate(_FOLDED)


def _found_at(folded: str, term: str, prefix: bool) -> int | None:
    """Return the offset of the term's first hit in folded text."""
    word = _fold(term)
    if not (word.isascii() and word.isalnum()):
        hit = _pattern_of(term, prefix).search(folded)
        return hit.start() if hit else None
    # Most terms are plain words. A search by hand avoids compiling a pattern that is used only a dozen times.
    at = folded.find(word)
    while at >= 0:
        end = at + len(word)
        if not folded[at - 1 : at].isalnum() and (prefix or not folded[end : end + 1].isalnum()):
            return at
        at = folded.find(word, at + 1)
    return None


def _readable(content: str) -> str:
    text = content[:MAX_SEARCHED_CHARS]
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _cut(query: str) -> str:
    if len(query) <= MAX_QUERY_CHARS:
        return query
    # The last word may be cut in two, and would find nothing.
    return query[:MAX_QUERY_CHARS].rpartition(" ")[0] or query[:MAX_QUERY_CHARS]


def _parts(word: str) -> list[str]:
    return list(map(str.__add__, word, word[1:])) if begins_with_run(word) and len(word) > 1 else [word]


def _is_letter(word: str) -> bool:
    """Return True for a single letter, such as the "s" of "it's"."""
    return len(word) == 1 and not word.isdigit() and not begins_with_run(word)


def _with_endings(word: str) -> tuple[str, bool]:
    """Return the stem of a word, and True if it matches as a prefix, so that singular and plural find each other."""
    if not word.isalpha() or begins_with_run(word):
        return word, False
    stem = word[:-1] if len(word) > MIN_STEM_CHARS and _PLURAL.search(word) else word
    return stem, len(stem) >= MIN_STEM_CHARS


# Cached, because each message of a search needs the same patterns.
@lru_cache(maxsize=256)
def _pattern_of(term: str, prefix: bool) -> re.Pattern[str]:
    """Return the pattern of a term in folded text: its words, with any separators between them."""
    first, *others = re.findall(r"[^\W_]+", term.translate(_FOLDED)) or ["(?!)"]
    # The look-behind follows the first word, because a pattern that begins with a literal is faster.
    alone = "" if begins_with_run(term[0]) else rf"(?<![^\W_]{first})"
    after = "" if prefix or begins_with_run(term[-1]) else r"(?![^\W_])"
    return re.compile(r"[\W_]+".join((first + alone, *others)) + after)
