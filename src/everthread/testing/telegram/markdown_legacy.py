"""Parse the Bot API's legacy Markdown: no nesting, and no escapes within an entity."""

from __future__ import annotations

from everthread.testing.telegram.entities import CannotParse, TextBuilder, byte_offset, link_target
from everthread.testing.telegram.objects import MessageEntity

_KINDS = {"*": "bold", "_": "italic", "`": "code", "```": "pre", "[": "text_link"}


def parse(text: str) -> tuple[str, list[MessageEntity]]:
    """Parse the text. Raises `CannotParse`."""
    out, at = TextBuilder(), 0
    while at < len(text):
        char = text[at]
        if char == "\\" and text[at + 1 : at + 2] in ("_", "*", "`", "["):
            out.push(text[at + 1])
            at += 2
        elif char in "_*`[":
            at = _entity(text, at, out)
        else:
            out.push(char)
            at += 1
    return out.text, out.entities


def _entity(text: str, begin: int, out: TextBuilder) -> int:
    """Parse one entity. Return the index behind its closing mark."""
    mark = "```" if text.startswith("```", begin) else text[begin]
    end_mark = "]" if mark == "[" else mark
    inside = begin + len(mark)
    language = None
    if mark == "```":
        inside, language = _language(text, inside)
    end = text.find(end_mark, inside)
    if end < 0:
        raise CannotParse(f"Can't find end of the entity starting at byte offset {byte_offset(text, begin)}")
    offset = out.units
    out.push(text[inside:end])
    after = end + len(end_mark)
    if mark != "[":
        out.mark(_KINDS[mark], offset, language=language)
    elif text.startswith("(", after) and (closing := text.find(")", after)) > 0:
        if target := link_target(text[after + 1 : closing]):
            out.mark("text_link", offset, url=target)
        after = closing + 1
    return after


def _language(text: str, at: int) -> tuple[int, str | None]:
    end = at
    while end < len(text) and not text[end].isspace() and text[end] != "`":
        end += 1
    language = None
    if at < end < len(text) and text[end] != "`":
        language, at = text[at:end], end
    return (at + 1 if text.startswith("\n", at) else at), language
