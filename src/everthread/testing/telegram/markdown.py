"""Parse MarkdownV2 and legacy Markdown into text and entities.

MarkdownV2 is as strict as in the Bot API: reserved characters must be escaped. Legacy Markdown has no nesting, and no
escapes within an entity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from everthread.testing.telegram.entities import CannotParse, TextBuilder, byte_offset, link_target
from everthread.testing.telegram.objects import MessageEntity

_RESERVED = frozenset("_*[]()~`>#+-=|{}.!\n")
_LEGACY_KINDS = {"*": "bold", "_": "italic", "`": "code", "```": "pre", "[": "text_link"}
# Followed by whitespace: a word before a backtick is code.
_LANGUAGE = re.compile(r"[^\s`]+(?=\s)")
_CODES = ("code", "pre")
_QUOTES = ("blockquote", "expandable_blockquote")

_ENDS = {
    "bold": "*",
    "italic": "_",
    "underline": "__",
    "strikethrough": "~",
    "spoiler": "||",
    "code": "`",
    "pre": "```",
    "text_link": "]",
    "custom_emoji": "]",
}
_BEGINS = (  # longest first
    ("```", "pre"),
    ("__", "underline"),
    ("||", "spoiler"),
    ("![", "custom_emoji"),
    ("`", "code"),
    ("_", "italic"),
    ("*", "bold"),
    ("~", "strikethrough"),
    ("[", "text_link"),
)
_NAMES = {
    "text_link": "TextUrl",
    "custom_emoji": "CustomEmoji",
    "blockquote": "BlockQuote",
    "expandable_blockquote": "ExpandableBlockQuote",
}


def parse_v2(text: str) -> tuple[str, list[MessageEntity]]:
    """Parse the text. Raises `CannotParse`."""
    return _MarkdownV2(text).parsed()


@dataclass(slots=True)
class _Open:
    kind: str
    offset: int
    """Start in UTF-16 units of the result."""
    index: int
    """Start in the source text."""
    piece: int
    language: str | None = None

    @property
    def name(self) -> str:
        if self.kind == "pre" and self.language:
            return "PreCode"
        return _NAMES.get(self.kind) or self.kind.capitalize()


class _MarkdownV2:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._out = TextBuilder()
        self._open: list[_Open] = []
        self._is_line_start = True

    def parsed(self) -> tuple[str, list[MessageEntity]]:
        while self._at < len(self._text):
            self._step()
        if self._innermost in _QUOTES:
            self._close_quote()
        if self._open:
            raise self._unclosed()
        return self._out.text, self._out.entities

    @property
    def _innermost(self) -> str | None:
        return self._open[-1].kind if self._open else None

    def _step(self) -> None:
        text, at = self._text, self._at
        char, following = text[at], text[at + 1 : at + 2]
        if char == "\\" and following and ord(following) <= 126:
            self._at += 2
            self._push(following)
        elif char not in ("`" if self._innermost in _CODES else _RESERVED):
            self._at += 1
            self._push(char)
        elif char == "\n":
            self._end_line()
        elif self._is_end():
            self._close()
        elif char == ">":
            self._begin_quote()
        elif self._is_end_of_expandable():
            self._at += 2
            self._open[-1].kind = "expandable_blockquote"
        else:
            self._begin()

    def _push(self, char: str) -> None:
        # A carriage return only separates marks.
        if char != "\r":
            self._out.push(char)
            self._is_line_start = char == "\n"

    # --- Entities ----------------------------------------------------------------------------------------------------

    def _is_end(self) -> bool:
        kind = self._innermost
        if kind is None or kind not in _ENDS or not self._text.startswith(_ENDS[kind], self._at):
            return False
        # A double underscore never closes a single one.
        return not (kind == "italic" and self._text.startswith("__", self._at))

    def _begin(self) -> None:
        for mark, kind in _BEGINS:
            if self._text.startswith(mark, self._at):
                opened = _Open(kind, self._out.units, self._at, len(self._out.pieces))
                self._at += len(mark)
                if kind == "pre":
                    self._at, opened.language = _code_language(self._text, self._at)
                self._open.append(opened)
                return
        raise self._reserved()

    def _close(self) -> None:
        opened = self._open.pop()
        self._at += len(_ENDS[opened.kind])
        if opened.kind == "text_link":
            self._close_link(opened)
        elif opened.kind == "custom_emoji":
            self._close_emoji(opened)
        else:
            self._out.mark(opened.kind, opened.offset, language=opened.language)

    def _close_link(self, opened: _Open) -> None:
        if self._text.startswith("(", self._at):
            url = self._target("a URL")
        else:
            url = "".join(self._out.pieces[opened.piece :])
        if target := link_target(url):
            self._out.mark("text_link", opened.offset, url=target)

    def _close_emoji(self, opened: _Open) -> None:
        if not self._text.startswith("(", self._at):
            raise CannotParse("Custom emoji entity must contain a tg://emoji URL")
        url = self._target("a custom emoji URL")
        _, found, emoji = url.partition("tg://emoji?id=")
        if not found or not emoji.isdigit():
            raise CannotParse("Invalid custom emoji URL specified" if found else "Custom emoji URL must be tg://emoji")
        self._out.mark("custom_emoji", opened.offset, emoji=emoji)

    def _target(self, what: str) -> str:
        """Parse a link target in parentheses. Only the backslash is special."""
        begin = at = self._at + 1
        url: list[str] = []
        while at < len(self._text) and self._text[at] != ")":
            if self._text[at] == "\\" and at + 1 < len(self._text) and ord(self._text[at + 1]) <= 126:
                at += 1
            url.append(self._text[at])
            at += 1
        if at >= len(self._text):
            raise CannotParse(f"Can't find end of {what} at byte offset {byte_offset(self._text, begin)}")
        self._at = at + 1
        return "".join(url)

    # --- Quotes ------------------------------------------------------------------------------------------------------

    @property
    def _is_in_quote(self) -> bool:
        return any(opened.kind in _QUOTES for opened in self._open)

    def _begin_quote(self) -> None:
        """Open a quote at the start of a line. On its further lines, skip the mark."""
        if not self._is_line_start or (self._open and not self._is_in_quote):
            raise self._reserved()
        if not self._open:
            self._open.append(_Open("blockquote", self._out.units, self._at, len(self._out.pieces)))
        self._at += 1
        self._is_line_start = False

    def _end_line(self) -> None:
        """Consume a line break. The last line break of a quote is part of the quote."""
        self._at += 1
        self._push("\n")
        if self._is_in_quote and not self._text.startswith(">", self._at):
            if self._innermost not in _QUOTES:
                raise self._unclosed()
            self._close_quote()

    def _is_end_of_expandable(self) -> bool:
        if self._innermost != "blockquote" or not self._text.startswith("||", self._at):
            return False
        rest = self._text[self._at + 2 : self._at + 4]
        return not rest or (rest[0] == "\n" and rest[1:] != ">")

    def _close_quote(self) -> None:
        quote = self._open.pop()
        self._out.mark(quote.kind, quote.offset)

    # --- Errors ------------------------------------------------------------------------------------------------------

    def _reserved(self) -> CannotParse:
        char = self._text[self._at]
        return CannotParse(f"Character '{char}' is reserved and must be escaped with the preceding '\\'")

    def _unclosed(self) -> CannotParse:
        opened = self._open[-1]
        return CannotParse(
            f"Can't find end of {opened.name} entity at byte offset {byte_offset(self._text, opened.index)}"
        )


# Legacy Markdown -----------------------------------------------------------------------------------------------------


def parse_legacy(text: str) -> tuple[str, list[MessageEntity]]:
    """Parse the text. Raises `CannotParse`."""
    out, at = TextBuilder(), 0
    while at < len(text):
        char = text[at]
        if char == "\\" and text[at + 1 : at + 2] in ("_", "*", "`", "["):
            out.push(text[at + 1])
            at += 2
        elif char in "_*`[":
            at = _legacy_entity(text, at, out)
        else:
            out.push(char)
            at += 1
    return out.text, out.entities


def _legacy_entity(text: str, begin: int, out: TextBuilder) -> int:
    """Parse one entity. Return the index behind its closing mark."""
    mark = "```" if text.startswith("```", begin) else text[begin]
    end_mark = "]" if mark == "[" else mark
    inside = begin + len(mark)
    language = None
    if mark == "```":
        inside, language = _code_language(text, inside)
    end = text.find(end_mark, inside)
    if end < 0:
        raise CannotParse(f"Can't find end of the entity starting at byte offset {byte_offset(text, begin)}")
    offset = out.units
    out.push(text[inside:end])
    after = end + len(end_mark)
    if mark != "[":
        out.mark(_LEGACY_KINDS[mark], offset, language=language)
    elif text.startswith("(", after) and (closing := text.find(")", after)) > 0:
        if target := link_target(text[after + 1 : closing]):
            out.mark("text_link", offset, url=target)
        after = closing + 1
    return after


def _code_language(text: str, at: int) -> tuple[int, str | None]:
    """Parse the language behind three backticks, up to whitespace. A line break after it is part of the mark."""
    found = _LANGUAGE.match(text, at)
    if found is not None:
        at = found.end()
    line_break = "\r\n" if text.startswith("\r\n", at) else "\n" if text.startswith("\n", at) else ""
    return at + len(line_break), found and found[0]
