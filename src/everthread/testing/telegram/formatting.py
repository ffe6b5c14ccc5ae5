"""Convert the text of a call into the shown text and its entities."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from everthread.testing.telegram import html_markup, markdown
from everthread.testing.telegram.entities import CannotParse, utf16_len
from everthread.testing.telegram.errors import bad_request
from everthread.testing.telegram.objects import MessageEntity

Formatted = tuple[str, tuple[MessageEntity, ...]]

_PARSERS: Mapping[str, Callable[[str], tuple[str, list[MessageEntity]]]] = {
    "markdownv2": markdown.parse_v2,
    "html": html_markup.parse,
    "markdown": markdown.parse_legacy,
}
_SPLIT_BY_CODE = ("bold", "italic", "underline", "strikethrough", "spoiler")

# Telegram detects these entities in any text.
_FOUND = (
    ("bot_command", re.compile(r"(?<![\w/@])/[A-Za-z0-9_]{1,64}(?:@[A-Za-z0-9_]{3,32})?(?![\w/])")),
    ("email", re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")),
    ("url", re.compile(r"(?<![\w@.])(?:https?://\S+\.\S+|(?:[a-z0-9-]+\.)+(?:com|org|net|io|dev)(?:/\S*)?)\b/?", re.I)),
    ("mention", re.compile(r"(?<![\w@/])@[A-Za-z]\w{3,31}\b")),
    ("hashtag", re.compile(r"(?<![\w#])#\w*[^\W\d]\w*")),
)


def format_text(text: str, parse_mode: str | None = None, entities: Sequence[MessageEntity] = ()) -> Formatted:
    """Parse the markup and strip surrounding whitespace. Raises a refusal if the markup is invalid."""
    given = list(entities)
    if parse_mode:
        parse = _PARSERS.get(parse_mode.lower())
        if parse is None:
            raise bad_request("unsupported parse_mode")
        try:
            text, given = parse(text)
        except CannotParse as error:
            raise bad_request(f"can't parse entities: {error}") from error
    elif not given:
        text = text.replace("\r", "")
    text, given = _trimmed(text, given)
    return text, _in_order(_around_code([*given, *_found(text, given)]))


def utf16_slice(text: str, offset: int, length: int) -> str:
    return text.encode("utf-16-le")[offset * 2 : (offset + length) * 2].decode("utf-16-le", "replace")


def _trimmed(text: str, entities: Sequence[MessageEntity]) -> tuple[str, list[MessageEntity]]:
    gone = len(text) - len(text.lstrip())
    text = text.strip()
    length = utf16_len(text)
    kept: list[MessageEntity] = []
    for entity in entities:
        begin, end = max(0, entity.offset - gone), min(length, entity.end - gone)
        if begin < end:
            kept.append(replace(entity, offset=begin, length=end - begin))
    return text, kept


def _around_code(entities: Sequence[MessageEntity]) -> list[MessageEntity]:
    """Split formatting around code, since code cannot be nested in other formatting."""
    codes = [one for one in entities if one.type in ("code", "pre")]
    result: list[MessageEntity] = []
    for entity in entities:
        pieces = [entity]
        for code in codes if entity.type in _SPLIT_BY_CODE else ():
            pieces = [rest for piece in pieces for rest in _without(piece, code)]
        result += pieces
    return result


def _without(entity: MessageEntity, code: MessageEntity) -> list[MessageEntity]:
    if code.end <= entity.offset or entity.end <= code.offset:
        return [entity]
    spans = ((entity.offset, code.offset), (code.end, entity.end))
    return [replace(entity, offset=begin, length=end - begin) for begin, end in spans if begin < end]


def _found(text: str, given: Sequence[MessageEntity]) -> list[MessageEntity]:
    taken = [one for one in given if one.type in ("code", "pre", "text_link", "text_mention")]
    result: list[MessageEntity] = []
    for kind, pattern in _FOUND:
        for match in pattern.finditer(text):
            entity = MessageEntity(kind, utf16_len(text[: match.start()]), utf16_len(match[0]))
            if not any(other.offset < entity.end and entity.offset < other.end for other in [*taken, *result]):
                result.append(entity)
    return result


def _in_order(entities: Sequence[MessageEntity]) -> tuple[MessageEntity, ...]:
    return tuple(sorted(entities, key=lambda one: (one.offset, -one.length)))
