"""Text for the FTS5 message index: what goes in, and what a user's query becomes.

Contract with the index, which has the columns (text, scope) and the tokenizer TOKENIZER:

* text holds index_text(content), scope holds owner_token(owner). text comes first: FTS5 spends two more bytes on each
  posting of a later column, a quarter of the index.
* Every MATCH comes from match_all, which binds one owner: isolation happens inside FTS5.
* unicode61 splits words at spaces, so runs of scripts written without them (Chinese, Japanese, Thai, Lao, Khmer,
  Burmese; Korean, whose particles stick to words) are indexed as overlapping pairs of characters, then the last
  character alone. A part of a run is then a phrase of pairs, and a single character is a prefix of some token.

Changing index_text, owner_token or TOKENIZER requires a rebuild of the index.

How much a message has to do with a question, from where the question's words were found.

After BM25 for words that occur once: a word counts by its rarity, and a long message for less than a short one. What
else the turn says of the question counts half, so that turns which hold more of its words come first.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

from everthread.domain.search_terms import begins_with_run, normalised, runs_replaced, telling, terms

# Marks are part of a word: Indic and Thai vowels are marks, and would cut words into pieces.
TOKENIZER = "unicode61 remove_diacritics 2 categories 'L* N* M*'"


def index_text(text: str) -> str:
    """The text to store in the text column for a message's content. Accepts any str."""
    return text if text.isascii() else runs_replaced(_pairs, normalised(text))


@lru_cache(maxsize=256)
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
    phrases = [_phrase(term, prefix) for term, prefix in terms(query)]
    return match_all(phrases, owner) if phrases else None


def match_all(phrases: Sequence[str], owner: str) -> str:
    """The MATCH expression for the owner's messages that hold all of these phrases."""
    return f'scope : "{owner_token(owner)}" AND text : ({" AND ".join(phrases)})'


def question_phrases(question: str) -> list[str]:
    """What to look for, one by one, in messages that have to do with a question as people ask it."""
    return [_phrase(term, prefix) for term, prefix in telling(question)]


def _pairs(run: re.Match[str]) -> str:
    text = run[0]
    return f" {' '.join(map(str.__add__, text, text[1:]))} {text[-1]} "


def _phrase(term: str, prefix: bool) -> str:
    spread = runs_replaced(_pairs, term).rstrip()
    if begins_with_run(term[-1]):
        # The run may go on in the message, so its last character must not be asked for alone.
        prefix = not begins_with_run(term[-2:-1])
        spread = spread if prefix else spread[:-2]
    return f'"{spread}"*' if prefix else f'"{spread}"'


# The newest messages of a word that are looked at. A word that has as many is common, and weighs least.
WORD_HITS_MAX = 100

_OCTETS = 400.0
_K1 = 1.2
_B = 0.3


def shares(found: Sequence[Sequence[int]], messages_per_turn: int) -> list[tuple[float, int]]:
    """Of the question's weight, the share that each message has, best first and newest first among equals.

    `found` has the ids of the messages that hold each of the words.
    """
    weights = [1 + math.log(WORD_HITS_MAX / min(len(ids), WORD_HITS_MAX)) if ids else 0.0 for ids in found]
    total = sum(weights)
    by_message: defaultdict[int, float] = defaultdict(float)
    by_turn: defaultdict[int, float] = defaultdict(float)
    for ids, weight in zip(found, weights, strict=True):
        for message_id in ids:
            by_message[message_id] += weight
        for turn in {message_id // messages_per_turn for message_id in ids}:
            by_turn[turn] += weight
    return sorted(
        ((own + by_turn[message_id // messages_per_turn]) / (2 * total), message_id)
        for message_id, own in by_message.items()
    )[::-1]


def brevity(octets: int) -> float:
    """The part of its share that a message of this size keeps, at most one."""
    return (1 + _K1 * (1 - _B)) / (1 + _K1 * (1 - _B + _B * octets / _OCTETS))
