"""Model output as Telegram's MarkdownV2. No I/O.

The text is parsed as CommonMark and rendered: every character that could be markup is escaped, and every style is
closed on the line where it was opened. So Telegram can parse the result of any text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec import Struct
from msgspec.structs import replace

CHARS_MAX = 4096
"""Limit of a message, counted by Telegram in UTF-16 units."""

_SPECIAL = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")
_IN_CODE = re.compile(r"([`\\])")
_IN_URL = re.compile(r"([)\\])")
_BACKSLASH = r"\\\1"
_ESCAPED = re.compile(r"\\(.)")
_PLAIN = re.compile(r"[^_*\[\]~`>#+\-=|&<\\!\n\t]*(?:\n[^_*\[\]~`>#+\-=|&<\\!\n\t\s0-9][^_*\[\]~`>#+\-=|&<\\!\n\t]*)*")
"""Matches texts without any Markdown, which need not be parsed."""
_NUMBERED = re.compile(r"\s{0,3}\d{1,9}[.)]\s")
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,32}")
_URL = re.compile(r"(https?|tg|mailto):\S+", re.IGNORECASE)
_STYLES = {"strong": "*", "em": "_", "s": "~"}
_ORDER = ("*", "_", "~")


def render(text: str) -> str | None:
    """Render a text as MarkdownV2; `None` if the result would be empty or too long."""
    if _PLAIN.fullmatch(text) and not _NUMBERED.match(text):
        output = escape(text)
    else:
        output = "".join(_blocks(_parser().parse(text), text.splitlines())).strip("\n")
    visible = visible_text(output)
    return output if visible.strip() and utf16_length(visible) <= CHARS_MAX else None


def escape(text: str) -> str:
    return _SPECIAL.sub(_BACKSLASH, text)


def utf16_length(text: str) -> int:
    """Return the length in UTF-16 units: characters outside the basic plane count twice."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def visible_text(output: str) -> str:
    """Return an upper bound of the text that is visible after rendering."""
    return _ESCAPED.sub(r"\1", output)


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


# Inline text ----------------------------------------------------------------------------------------------------------


class _StyledRun(Struct, frozen=True):
    """A piece of a line in one style."""

    text: str
    styles: frozenset[str] = frozenset()
    url: str = ""
    code: bool = False


def _runs(tokens: Iterable[Token], styles: frozenset[str] = frozenset()) -> list[_StyledRun]:
    runs: list[_StyledRun] = []
    open_styles = [*styles]
    url = ""
    for token in tokens:
        name = token.type.removesuffix("_open").removesuffix("_close")
        if name in _STYLES:
            (open_styles.append if token.nesting == 1 else open_styles.remove)(_STYLES[name])
        elif token.type == "link_open":
            url = _url(str(token.attrs.get("href", "")))
        elif token.type == "link_close":
            url = ""
        elif token.type == "image":
            source = str(token.attrs.get("src", ""))
            runs.append(_StyledRun(token.content or source, frozenset(open_styles), url or _url(source)))
        elif token.type in ("softbreak", "hardbreak"):
            runs.append(_StyledRun("\n"))
        elif token.content:
            runs.append(_StyledRun(token.content, frozenset(open_styles), url, token.type == "code_inline"))
    return runs


def _url(text: str) -> str:
    """Return a URL that Telegram accepts; otherwise empty."""
    return text if _URL.fullmatch(text) else ""


def _inline(runs: Iterable[_StyledRun]) -> str:
    """Render line by line: styles that are open at the end of a line are closed and reopened."""
    lines: list[list[_StyledRun]] = [[]]
    for run in runs:
        # Styles of white space are dropped.
        first, *more = [replace(run, text=part) if part.strip() else _StyledRun(part) for part in run.text.split("\n")]
        lines[-1].append(first)
        lines += [[part] for part in more]
    return "\n".join(_line([run for run in line if run.text]) for line in lines)


def _line(runs: Sequence[_StyledRun]) -> str:
    parts: list[str] = []
    before = _StyledRun("")
    for run in (*runs, _StyledRun("")):
        same_link = run.url == before.url and not (run.code or before.code)
        shared = _shared_marks(before, run) if same_link else 0
        parts += reversed(_marks(before)[shared:])
        if before.url and not same_link:
            parts += ["](", _IN_URL.sub(_BACKSLASH, before.url), ")"]
        if run.url and not same_link:
            parts.append("[")
        parts += _marks(run)[shared:]
        parts += ["`", _IN_CODE.sub(_BACKSLASH, run.text), "`"] if run.code else [escape(run.text)]
        before = run
    return "".join(parts)


def _marks(run: _StyledRun) -> list[str]:
    # MarkdownV2 has no styles in code.
    return [] if run.code else [mark for mark in _ORDER if mark in run.styles]


def _shared_marks(before: _StyledRun, run: _StyledRun) -> int:
    pairs = list(zip(_marks(before), _marks(run), strict=False))
    return next((number for number, (one, other) in enumerate(pairs) if one != other), len(pairs))


# Blocks ---------------------------------------------------------------------------------------------------------------


def _blocks(tokens: Sequence[Token], lines: Sequence[str], *, depth: int = 0, quoted: bool = False) -> list[str]:
    """Render blocks, and the line breaks between them."""
    blocks = [(span, output) for span in _spans(tokens) if (output := _block(span, lines, depth, quoted))]
    out = [output for _, output in blocks[:1]]
    for (before, _), (span, output) in pairwise(blocks):
        out += ["\n\n" if _has_blank_line(before[0], span[0], lines) else "\n", output]
    return out


def _spans(tokens: Sequence[Token]) -> list[Sequence[Token]]:
    """Split tokens into top-level blocks."""
    spans: list[Sequence[Token]] = []
    start = nesting = 0
    for number, token in enumerate(tokens):
        nesting += token.nesting
        if nesting == 0:
            spans.append(tokens[start : number + 1])
            start = number + 1
    return spans


def _has_blank_line(before: Token, token: Token, lines: Sequence[str]) -> bool:
    if "heading_open" in (before.type, token.type) or token.map is None:
        return True
    above = token.map[0] - 1
    return 0 <= above < len(lines) and not lines[above].strip("> \t")


def _block(span: Sequence[Token], lines: Sequence[str], depth: int, quoted: bool) -> str:
    token, inside = span[0], span[1:-1]
    match token.type:
        case "paragraph_open":
            return _inline(_runs(inside[0].children or ()))
        case "heading_open":
            return _inline(_runs(inside[0].children or (), frozenset("*")))
        case "fence" | "code_block":
            return _code(token.content, token.info, quoted)
        case "table_open":
            first, last = token.map or (0, 0)
            return _code("\n".join(line.strip() for line in lines[first:last]), "", quoted)
        case "bullet_list_open" | "ordered_list_open":
            return _list(inside, lines, depth, quoted)
        case "blockquote_open":
            return _quote(inside, lines, depth, quoted)
        case "hr":
            return "———"
        case _:
            return escape(token.content)


def _code(content: str, info: str, quoted: bool) -> str:
    content = content.rstrip("\n")
    if not content.strip():
        return ""
    if quoted:
        # MarkdownV2 has no code block in a quotation.
        return escape(content)
    language = _LANGUAGE.match(info.strip())
    return "".join(["```", language[0] if language else "", "\n", _IN_CODE.sub(_BACKSLASH, content), "```"])


def _list(tokens: Sequence[Token], lines: Sequence[str], depth: int, quoted: bool) -> str:
    items: list[str] = []
    for span in _spans(tokens):
        item = span[0]
        mark = escape(f"{item.info}{item.markup}") if item.info else "•"
        output = "".join(_blocks(span[1:-1], lines, depth=depth + 1, quoted=quoted))
        items.append(f"{'  ' * depth}{mark} {output.removeprefix('  ' * (depth + 1))}".rstrip())
    return "\n".join(items)


def _quote(tokens: Sequence[Token], lines: Sequence[str], depth: int, quoted: bool) -> str:
    output = "".join(_blocks(tokens, lines, depth=depth, quoted=True))
    if not output.strip():
        return ""
    # Quotations can't be nested, nor start within a line.
    mark: Callable[[str], str] = (lambda line: f"\\> {line}") if quoted or depth else (lambda line: f">{line}")
    return "\n".join(map(mark, output.split("\n")))
