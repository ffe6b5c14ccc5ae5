"""Parse the Bot API's HTML into text and entities. It has few tags, four named entities and no nesting rules."""

from __future__ import annotations

import re
from dataclasses import dataclass

from everthread.testing.telegram.entities import CannotParse, TextBuilder, byte_offset, link_target
from everthread.testing.telegram.objects import MessageEntity

_KINDS = {
    "b": "bold",
    "strong": "bold",
    "i": "italic",
    "em": "italic",
    "u": "underline",
    "ins": "underline",
    "s": "strikethrough",
    "strike": "strikethrough",
    "del": "strikethrough",
    "tg-spoiler": "spoiler",
    "span": "spoiler",
    "code": "code",
    "pre": "pre",
    "a": "text_link",
    "blockquote": "blockquote",
    "tg-emoji": "custom_emoji",
}
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"'}
_CHARACTER = re.compile(r"&(?:#x([0-9a-fA-F]+)|#([0-9]+)|(lt|gt|amp|quot));?")
_TAG = re.compile(r"[^\s>]*")
_END_TAG = re.compile(r"([^\s>]*)\s*")
_ATTRIBUTE_NAME = re.compile(r"[^\s=>]*")
_NAME_TOKEN = re.compile(r"[A-Za-z0-9.\-]*")


def parse(text: str) -> tuple[str, list[MessageEntity]]:
    """Parse the text. Raises `CannotParse`."""
    return _Html(text).parsed()


@dataclass(slots=True)
class _Open:
    tag: str
    argument: str
    offset: int
    index: int


class _Html:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at: int = 0
        self._out = TextBuilder()
        self._open: list[_Open] = []

    def parsed(self) -> tuple[str, list[MessageEntity]]:
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "&":
                self._out.push(self._character())
            elif char != "<":
                self._out.push(char)
                self._at += 1
            elif self._text.startswith("/", self._at + 1):
                self._end_tag()
            else:
                self._start_tag()
        if self._open:
            raise CannotParse(f'Can\'t find end tag corresponding to start tag "{self._open[-1].tag}"')
        return self._out.text, self._out.entities

    def _character(self) -> str:
        """Decode a character reference. An invalid one is a literal ampersand."""
        match = _CHARACTER.match(self._text, self._at)
        if match is not None:
            code = int(match[1], 16) if match[1] else int(match[2] or 0)
            char = _NAMED[match[3]] if match[3] else chr(code) if 0 < code < 0x10FFFF else ""
            if char:
                self._at = match.end()
                return char
        self._at += 1
        return "&"

    def _start_tag(self) -> None:
        begin = self._at
        match = self._take(_TAG, begin + 1)
        where = f"at byte offset {byte_offset(self._text, begin)}"
        if self._is_over:
            raise CannotParse(f"Unclosed start tag {where}")
        tag = match[0].lower()
        if tag not in _KINDS:
            raise CannotParse(f'Unsupported start tag "{tag}" {where}')
        argument = self._attributes(tag, where)
        if tag == "span" and argument != "tg-spoiler":
            raise CannotParse(f'Tag "span" must have class "tg-spoiler" {where}')
        self._open.append(_Open(tag, argument, self._out.units, begin))

    def _attributes(self, tag: str, where: str) -> str:
        """Skip to the end of the tag. Return the value of its one significant attribute."""
        argument = ""
        while True:
            self._skip_spaces()
            if self._is_over:
                raise CannotParse(f"Unclosed start tag {where}")
            if self._text[self._at] == ">":
                self._at += 1
                return argument
            name, value = self._attribute(tag, where)
            argument = _argument(tag, name, value) or argument

    def _attribute(self, tag: str, where: str) -> tuple[str, str]:
        match = self._take(_ATTRIBUTE_NAME, self._at)
        if not match[0]:
            raise CannotParse(f'Empty attribute name in the tag "{tag}" {where}')
        self._skip_spaces()
        if not self._text.startswith("=", self._at):
            return match[0].lower(), ""
        self._at += 1
        self._skip_spaces()
        if self._is_over:
            raise CannotParse(f"Unclosed start tag {where}")
        quote = self._text[self._at]
        return match[0].lower(), self._quoted(quote, where) if quote in "'\"" else self._name_token()

    def _quoted(self, quote: str, where: str) -> str:
        self._at += 1
        value: list[str] = []
        while not self._is_over and self._text[self._at] != quote:
            if self._text[self._at] == "&":
                value.append(self._character())
            else:
                value.append(self._text[self._at])
                self._at += 1
        if self._is_over:
            raise CannotParse(f"Unclosed start tag {where}")
        self._at += 1
        return "".join(value)

    def _name_token(self) -> str:
        begin = self._at
        match = self._take(_NAME_TOKEN, begin)
        if not self._is_over and not self._text[self._at].isspace() and self._text[self._at] != ">":
            raise CannotParse(f"Unexpected end of name token at byte offset {byte_offset(self._text, begin)}")
        return match[0].lower()

    def _end_tag(self) -> None:
        begin = self._at
        where = f"at byte offset {byte_offset(self._text, begin)}"
        if not self._open:
            raise CannotParse(f"Unexpected end tag {where}")
        match = self._take(_END_TAG, begin + 2)
        if not self._text.startswith(">", self._at):
            raise CannotParse(f"Unclosed end tag {where}")
        self._at += 1
        opened, found = self._open.pop(), match[1].lower()
        if found and found != opened.tag:
            raise CannotParse(f'Unmatched end tag {where}, expected "</{opened.tag}>", found "</{found}>"')
        self._mark(opened)

    def _mark(self, opened: _Open) -> None:
        kind, argument = _KINDS[opened.tag], opened.argument
        if opened.tag == "a":
            url = argument or self._units_from(opened.offset)
            if target := link_target(url):
                self._out.mark("text_link", opened.offset, url=target)
        elif opened.tag == "tg-emoji":
            self._out.mark(kind, opened.offset, emoji=argument)
        elif opened.tag == "blockquote":
            self._out.mark("expandable_blockquote" if argument else kind, opened.offset)
        elif opened.tag == "code" and argument and self._open and self._open[-1].tag == "pre":
            self._open[-1].argument = argument
        elif opened.tag == "pre":
            self._mark_pre(opened)
        else:
            self._out.mark(kind, opened.offset)

    def _mark_pre(self, opened: _Open) -> None:
        # `code` that fills a `pre` block is merged with it.
        inner = self._out.entities
        while inner and inner[-1].type == "code" and inner[-1].offset >= opened.offset:
            inner.pop()
        self._out.mark("pre", opened.offset, language=opened.argument or None)

    def _units_from(self, offset: int) -> str:
        encoded = self._out.text.encode("utf-16-le", "surrogatepass")
        return encoded[offset * 2 :].decode("utf-16-le", "surrogatepass")

    @property
    def _is_over(self) -> bool:
        return self._at >= len(self._text)

    def _take(self, pattern: re.Pattern[str], at: int) -> re.Match[str]:
        """Match a pattern that also matches nothing, and continue behind it."""
        match = pattern.match(self._text, at)
        assert match is not None
        self._at = match.end()
        return match

    def _skip_spaces(self) -> None:
        while not self._is_over and self._text[self._at].isspace():
            self._at += 1


def _argument(tag: str, name: str, value: str) -> str:
    match tag, name:
        case ("a", "href") | ("tg-emoji", "emoji-id") | ("span", "class"):
            return value
        case ("code", "class") if value.startswith("language-"):
            return value.removeprefix("language-")
        case ("blockquote", "expandable"):
            return name
        case _:
            return ""
