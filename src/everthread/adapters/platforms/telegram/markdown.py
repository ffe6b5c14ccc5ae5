"""What a model writes, as Telegram's MarkdownV2. Pure.

The text is read by a parser of CommonMark, and written anew: every character that could be taken for markup is escaped,
every style is closed where it was opened, on the same line. So whatever the text is, the result can be parsed.
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
"""Of a message, as Telegram counts: in units of UTF-16."""

_SPECIAL = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")
_IN_CODE = re.compile(r"([`\\])")
_IN_ADDRESS = re.compile(r"([)\\])")
_BACKSLASH = r"\\\1"
_ESCAPED = re.compile(r"\\(.)")
_PLAIN = re.compile(r"[^_*\[\]~`>#+\-=|&<\\!\n\t]*(?:\n[^_*\[\]~`>#+\-=|&<\\!\n\t\s0-9][^_*\[\]~`>#+\-=|&<\\!\n\t]*)*")
"""Nothing in it that Markdown could make anything of, so that it need not be parsed."""
_NUMBERED = re.compile(r"\s{0,3}\d{1,9}[.)]\s")
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,32}")
_ADDRESS = re.compile(r"(https?|tg|mailto):\S+", re.IGNORECASE)
_STYLES = {"strong": "*", "em": "_", "s": "~"}
_ORDER = ("*", "_", "~")


def rendered(text: str) -> str | None:
    """The text in MarkdownV2; `None` if it is better sent as it is, because nothing would be left of it or too much."""
    if _PLAIN.fullmatch(text) and not _NUMBERED.match(text):
        made = escaped(text)
    else:
        made = "".join(_blocks(_parser().parse(text), text.splitlines())).strip("\n")
    shown = visible(made)
    return made if shown.strip() and units(shown) <= CHARS_MAX else None


def escaped(text: str) -> str:
    return _SPECIAL.sub(_BACKSLASH, text)


def units(text: str) -> int:
    """How long Telegram says that a text is: what lies outside the basic plane counts twice."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def visible(made: str) -> str:
    """About what is left of a rendered text on a screen; never less."""
    return _ESCAPED.sub(r"\1", made)


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


# --- Within a line ----------------------------------------------------------------------------------------------------


class _Run(Struct, frozen=True):
    """A piece of a line, all in one style."""

    text: str
    styles: frozenset[str] = frozenset()
    address: str = ""
    code: bool = False


def _runs(tokens: Iterable[Token], styles: frozenset[str] = frozenset()) -> list[_Run]:
    runs: list[_Run] = []
    open_styles = [*styles]
    address = ""
    for token in tokens:
        name = token.type.removesuffix("_open").removesuffix("_close")
        if name in _STYLES:
            (open_styles.append if token.nesting == 1 else open_styles.remove)(_STYLES[name])
        elif token.type == "link_open":
            address = _address(str(token.attrs.get("href", "")))
        elif token.type == "link_close":
            address = ""
        elif token.type == "image":
            source = str(token.attrs.get("src", ""))
            runs.append(_Run(token.content or source, frozenset(open_styles), address or _address(source)))
        elif token.type in ("softbreak", "hardbreak"):
            runs.append(_Run("\n"))
        elif token.content:
            runs.append(_Run(token.content, frozenset(open_styles), address, token.type == "code_inline"))
    return runs


def _address(text: str) -> str:
    """Where a link leads, if Telegram would follow it."""
    return text if _ADDRESS.fullmatch(text) else ""


def _inline(runs: Iterable[_Run]) -> str:
    """Line by line: what is open at the end of one is closed there, and opened again in the next."""
    lines: list[list[_Run]] = [[]]
    for run in runs:
        # Of a style that nothing is seen in, nothing is left.
        first, *more = [replace(run, text=part) if part.strip() else _Run(part) for part in run.text.split("\n")]
        lines[-1].append(first)
        lines += [[part] for part in more]
    return "\n".join(_line([run for run in line if run.text]) for line in lines)


def _line(runs: Sequence[_Run]) -> str:
    written: list[str] = []
    before = _Run("")
    for run in (*runs, _Run("")):
        same_link = run.address == before.address and not (run.code or before.code)
        kept = _common(before, run) if same_link else 0
        written += reversed(_marks(before)[kept:])
        if before.address and not same_link:
            written += ["](", _IN_ADDRESS.sub(_BACKSLASH, before.address), ")"]
        if run.address and not same_link:
            written.append("[")
        written += _marks(run)[kept:]
        written += ["`", _IN_CODE.sub(_BACKSLASH, run.text), "`"] if run.code else [escaped(run.text)]
        before = run
    return "".join(written)


def _marks(run: _Run) -> list[str]:
    # Code can't be in any style, nor a style in code.
    return [] if run.code else [mark for mark in _ORDER if mark in run.styles]


def _common(before: _Run, run: _Run) -> int:
    pairs = list(zip(_marks(before), _marks(run), strict=False))
    return next((number for number, (one, other) in enumerate(pairs) if one != other), len(pairs))


# --- Blocks -----------------------------------------------------------------------------------------------------------


def _blocks(tokens: Sequence[Token], lines: Sequence[str], *, depth: int = 0, quoted: bool = False) -> list[str]:
    """The blocks, and what stands between them."""
    whole = [(span, made) for span in _spans(tokens) if (made := _block(span, lines, depth, quoted))]
    out = [made for _, made in whole[:1]]
    for (before, _), (span, made) in pairwise(whole):
        out += ["\n\n" if _is_apart(before[0], span[0], lines) else "\n", made]
    return out


def _spans(tokens: Sequence[Token]) -> list[Sequence[Token]]:
    """Each block with all that is in it."""
    spans: list[Sequence[Token]] = []
    start = nesting = 0
    for number, token in enumerate(tokens):
        nesting += token.nesting
        if nesting == 0:
            spans.append(tokens[start : number + 1])
            start = number + 1
    return spans


def _is_apart(before: Token, token: Token, lines: Sequence[str]) -> bool:
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
            return escaped(token.content)


def _code(content: str, info: str, quoted: bool) -> str:
    content = content.rstrip("\n")
    if not content.strip():
        return ""
    if quoted:
        # There is no code block in a quotation.
        return escaped(content)
    language = _LANGUAGE.match(info.strip())
    return "".join(["```", language[0] if language else "", "\n", _IN_CODE.sub(_BACKSLASH, content), "```"])


def _list(tokens: Sequence[Token], lines: Sequence[str], depth: int, quoted: bool) -> str:
    items: list[str] = []
    for span in _spans(tokens):
        item = span[0]
        mark = escaped(f"{item.info}{item.markup}") if item.info else "•"
        made = "".join(_blocks(span[1:-1], lines, depth=depth + 1, quoted=quoted))
        items.append(f"{'  ' * depth}{mark} {made.removeprefix('  ' * (depth + 1))}".rstrip())
    return "\n".join(items)


def _quote(tokens: Sequence[Token], lines: Sequence[str], depth: int, quoted: bool) -> str:
    made = "".join(_blocks(tokens, lines, depth=depth, quoted=True))
    if not made.strip():
        return ""
    # A quotation can't be inside another, nor begin within a line.
    mark: Callable[[str], str] = (lambda line: f"\\> {line}") if quoted or depth else (lambda line: f">{line}")
    return "\n".join(map(mark, made.split("\n")))
