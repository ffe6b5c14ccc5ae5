"""Text for the FTS5 message index: what goes in, what a user's query becomes, what a hit shows.

Contract with the index, which has the columns (text, scope) and the tokenizer TOKENIZER:

* text holds index_text(content), scope holds owner_token(owner). text comes first: FTS5 spends two more bytes on each
  posting of a later column, a quarter of the index.
* Every MATCH comes from match_query, which binds one owner: isolation happens inside FTS5.
* unicode61 splits words at spaces, so runs of scripts written without them (Chinese, Japanese, Thai, Lao, Khmer,
  Burmese; Korean, whose particles stick to words) are indexed as overlapping pairs of characters, then the last
  character alone. A part of a run is then a phrase of pairs, and a single character is a prefix of some token.

Changing index_text, owner_token or TOKENIZER requires a rebuild of the index.
"""

import hashlib
import re
import unicodedata

# Marks are part of a word: Indic and Thai vowels are marks, and would cut words into pieces.
TOKENIZER = "unicode61 remove_diacritics 2 categories 'L* N* M*'"

# Each word or pair costs about 0.1 ms of search, so this bounds what one query can cost.
MAX_QUERY_CHARS = 400
MAX_QUERY_TERMS = 32
# A shorter prefix ("s*") would merge the postings of a large part of the vocabulary (30 to 140 ms for 100,000
# messages), so its star is ignored.
MIN_PREFIX_CHARS = 3

_RUN = re.compile(
    "[\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u1049\u1050-\u109f\u1780-\u17d3"  # Thai-Burmese
    "\u1100-\u11ff\u3131-\u318e\ua960-\ua97f\uac00-\ud7ff"  # Korean
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Japanese kana
    "\u3005-\u3007\u3105-\u312f\u31a0-\u31bf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    "\U0001b000-\U0001b16f\U00020000-\U000323af]+"  # rare kana and Han
)
# Optional or invisible: accents left over by NFKC, Hebrew and Arabic vowel points, soft hyphens, zero-width
# characters, variation selectors. Left in, they would make equal words differ.
_IGNORED = re.compile(
    "[\u00ad\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670"
    "\u06d6-\u06ed\u200b-\u200f\u2060\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]+"
)
# One cheap look that tells accented Latin, typographic quotes and emoji from text that needs more; it covers _RUN,
# _IGNORED and the lone surrogates.
_SPECIAL = re.compile(
    "[\u00ad\u0300-\u036f\u0591-\u1fff\u200b-\u200f\u2060\u3005-\ufaff\ufe00-\ufeff"
    "\U0001b000-\U0001b16f\U00020000-\U000e01ef]"
)
_TERM = re.compile(r'"(?P<quoted>[^"]*)"?(?P<star>\*?)|(?P<word>[^\s"]+)')
_LONG_ENOUGH = re.compile(rf"[^\W_]{{{MIN_PREFIX_CHARS}}}$")
# NUL would end the expression inside FTS5, in the middle of a string.
_QUOTES = str.maketrans("“”„«»\0", '""""" ')


class _Folding(dict[int, str]):
    """Maps a character to one lower-case character without accent, so that offsets stay true."""

    def __missing__(self, code: int) -> str:
        base = [c for c in unicodedata.normalize("NFKD", chr(code)) if not unicodedata.combining(c)]
        folded = (base[0] if len(base) == 1 else chr(code)).lower()
        self[code] = folded if len(folded) == 1 else chr(code)
        return self[code]


_FOLDED = _Folding()


def index_text(text: str) -> str:
    """The text to store in the text column for a message's content. Accepts any str."""
    return text if text.isascii() else _RUN.sub(_pairs, _normalised(text))


def owner_token(owner: str) -> str:
    """The one token that stands for an owner, whatever characters the owner's name has."""
    # 128 bits: two owners must never share a token, even when one may choose its name.
    return "o" + hashlib.blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def match_query(query: str, owner: str) -> str | None:
    """The FTS5 MATCH expression that finds the owner's messages holding all terms of the query.

    Words are ANDed, "quoted text" is a phrase, a trailing * asks for a prefix. Everything else is
    plain text: the result is valid whatever the query. None when it has nothing to search for.
    Only the first MAX_QUERY_CHARS characters and MAX_QUERY_TERMS different terms count.
    """
    phrases = [_phrase(term, prefix) for term, prefix in _terms(query)]
    if not phrases:
        return None
    return f'scope : "{owner_token(owner)}" AND text : ({" AND ".join(phrases)})'


def snippet(content: str, query: str, width: int = 160) -> str:
    """At most width characters of the content around the first hit of any term of the query, on one
    line, with an ellipsis where text was cut; the content's beginning when no hit is seen."""
    text = content if content.isascii() else unicodedata.normalize("NFC", content)
    patterns = [_seen_as(term, prefix) for term, prefix in _terms(query)]
    hit = re.search("|".join(patterns), text.translate(_FOLDED)) if patterns else None
    # A third of the room goes before the hit: what follows usually says more.
    start = max(0, min(hit.start() - width // 3, len(text) - width + 1)) if hit else 0
    if start and hit and (space := re.compile(r"\s").search(text, start, hit.start())):
        start = space.end()
    shown = ("…" if start else "") + " ".join(text[start : start + width].split())
    cut = start + width < len(text) or len(shown) > width
    return shown[: width - 1].rstrip() + "…" if cut else shown


def _pairs(run: re.Match[str]) -> str:
    text = run[0]
    return f" {' '.join(map(str.__add__, text, text[1:]))} {text[-1]} "


def _normalised(text: str) -> str:
    text = unicodedata.normalize("NFKC", text)
    if not _SPECIAL.search(text):
        return text
    # A lone surrogate cannot be stored as UTF-8, so it becomes "?".
    return _IGNORED.sub("", text.encode("utf-8", "replace").decode())


def _terms(query: str) -> list[tuple[str, bool]]:
    """Each searchable term of the query, cut after its last word, and whether it is a prefix."""
    if len(query) > MAX_QUERY_CHARS:  # A word cut in two would find nothing: it is left out whole.
        query = query[:MAX_QUERY_CHARS].rpartition(" ")[0] or query[:MAX_QUERY_CHARS]
    found: dict[tuple[str, bool], None] = {}
    for match in _TERM.finditer(_normalised(query).translate(_QUOTES)):
        raw = match["quoted"] or match["word"] or ""
        kinds = "".join(unicodedata.category(char)[0] for char in raw)
        # FTS5 finds nothing for an AND with a term that has no token, so such terms are left out.
        if "L" in kinds or "N" in kinds:
            term = raw[: len(kinds.rstrip("CPSZ"))]
            prefix = bool(match["star"]) or raw.endswith("*")
            found[term, prefix and _LONG_ENOUGH.search(term) is not None] = None
    return list(found)[:MAX_QUERY_TERMS]


def _phrase(term: str, prefix: bool) -> str:
    spread = _RUN.sub(_pairs, term).rstrip()
    if _RUN.match(term[-1]):
        # The run may go on in the message, so its last character must not be asked for alone.
        prefix = not _RUN.match(term[-2:-1])
        spread = spread if prefix else spread[:-2]
    return f'"{spread}"*' if prefix else f'"{spread}"'


def _seen_as(term: str, prefix: bool) -> str:
    """The pattern that finds the term in folded text: its words, whatever is between them."""
    words = re.findall(r"[^\W_]+", term.translate(_FOLDED))
    before = "" if _RUN.match(term[0]) else r"(?<![^\W_])"
    after = "" if prefix or _RUN.match(term[-1]) else r"(?![^\W_])"
    return before + r"[\W_]+".join(words) + after
