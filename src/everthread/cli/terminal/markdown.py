"""Render Markdown as styled lines. Only this module imports the parser, which is slow to import."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from everthread.cli.output import strip_control_chars
from everthread.cli.terminal.highlight import highlight
from everthread.cli.terminal.styles import TextStyle
from everthread.cli.terminal.tables import Cell, table_lines
from everthread.cli.terminal.text import Line, Span, format_line, wrap_spans

WIDTH_MAX = 100
"""Maximum width of prose; longer lines are hard to read."""
_CODE_WIDTH_MAX = 200
_WIDTH_MIN = 10
_FENCES = ("```", "~~~")
_TAB = 4
_NESTING_MAX = 100
_BOLD, _FAINT, _ITALIC, _UNDERLINE, _STRUCK = "1", "2", "3", "4", "9"
_INLINE_CODES = {"strong": _BOLD, "em": _ITALIC, "s": _STRUCK}


class MarkdownRenderer:
    """Renders for one terminal. Every call gets the width, because it may change."""

    def __init__(self, style: TextStyle) -> None:
        self._style = style
        # Show HTML tags and link reference definitions as text, so that the answer is complete. Only content nested
        # deeper than `_NESTING_MAX` is left out.
        options = {"html": False, "maxNesting": _NESTING_MAX}
        self._parser = MarkdownIt("commonmark", options).enable(["table", "strikethrough"]).disable("reference")

    def markdown(self, text: str, columns: int) -> str:
        """Render Markdown as lines, each with a line end."""
        # Code may be wider than prose, so that its lines stay whole.
        room = max(min(columns, _CODE_WIDTH_MAX if text.startswith(_FENCES) else WIDTH_MAX), _WIDTH_MIN)
        tree = SyntaxTreeNode(self._parser.parse(text.expandtabs(_TAB)))
        return self._format(self._blocks(tree.children, room))

    def plain(self, text: str, columns: int) -> str:
        room = max(min(columns, _CODE_WIDTH_MAX), _WIDTH_MIN)
        return self._format(wrap_spans([Span(text.expandtabs(_TAB))], room))

    def _format(self, lines: list[Line]) -> str:
        return "".join(format_line(line, colour=self._style.colour) + "\n" for line in lines)

    # --- Blocks ------------------------------------------------------------------------------------------------------

    def _blocks(self, nodes: Sequence[SyntaxTreeNode], columns: int, *, close: bool = False) -> list[Line]:
        """Render blocks one below the other, separated by an empty line unless `close`."""
        lines: list[Line] = []
        for node in nodes:
            rendered = self._block(node, columns)
            lines += [[], *rendered] if lines and not close else rendered
        return lines

    def _block(self, node: SyntaxTreeNode, columns: int) -> list[Line]:
        draw: dict[str, Callable[[SyntaxTreeNode, int], list[Line]]] = {
            "heading": self._heading,
            "bullet_list": self._list,
            "ordered_list": self._list,
            "blockquote": self._quote,
            "fence": self._code,
            "code_block": self._code,
            "table": self._table,
            "hr": self._rule,
        }
        return draw.get(node.type, self._paragraph)(node, columns)

    def _paragraph(self, node: SyntaxTreeNode, columns: int) -> list[Line]:
        return wrap_spans(self._inline(node), columns)

    def _heading(self, node: SyntaxTreeNode, columns: int) -> list[Line]:
        return wrap_spans(self._inline(node, (_BOLD, _UNDERLINE) if node.tag == "h1" else (_BOLD,)), columns)

    def _list(self, node: SyntaxTreeNode, columns: int) -> list[Line]:
        marks = _marks(node)
        indent = max(len(mark) for mark in marks)
        lines: list[Line] = []
        for mark, item in zip(marks, node.children, strict=True):
            close = sum(part.type == "paragraph" for part in item.children) <= 1
            rendered = self._blocks(item.children, max(columns - indent, _WIDTH_MIN), close=close) or [[]]
            first, *others = rendered
            lines.append([Span(mark.rjust(indent), (self._style.accent_code,)), *first])
            lines += [[Span(" " * indent), *line] for line in others]
        return lines

    def _quote(self, node: SyntaxTreeNode, columns: int) -> list[Line]:
        inside = self._blocks(node.children, max(columns - 2, _WIDTH_MIN))
        return [[Span("▌ ", (_FAINT,)), *(Span(span.text, (_FAINT, *span.codes)) for span in line)] for line in inside]

    def _code(self, node: SyntaxTreeNode, columns: int) -> list[Line]:
        """Render code indented and without a background, so that it can be copied."""
        language = (node.info.split() or [""])[0]
        spans = highlight(node.content.rstrip(), language, dark=self._style.dark)
        return [[Span("  "), *line] for line in wrap_spans(spans, max(columns - 2, _WIDTH_MIN))]

    def _table(self, node: SyntaxTreeNode, columns: int) -> list[Line]:
        rows = [row for part in node.children for row in part.children]
        return table_lines([[self._cell(cell) for cell in row.children] for row in rows], columns)

    def _rule(self, node: SyntaxTreeNode, columns: int) -> list[Line]:
        return [[Span("─" * columns, (_FAINT,))]]

    # --- Inline elements ---------------------------------------------------------------------------------------------

    def _cell(self, node: SyntaxTreeNode) -> Cell:
        codes = (_BOLD,) if node.type == "th" else ()
        return Cell(self._inline(node, codes), align_right="right" in str(node.attrs.get("style", "")))

    def _inline(self, node: SyntaxTreeNode, codes: tuple[str, ...] = ()) -> list[Span]:
        spans: list[Span] = []
        for part in node.children:
            match part.type:
                case "softbreak":
                    spans.append(Span(" ", codes))
                case "hardbreak":
                    spans.append(Span("\n", codes))
                case "code_inline":
                    spans.append(Span(part.content, (*codes, self._style.accent_code)))
                case "image":
                    spans += [Span(part.content, codes), *_address(str(part.attrs.get("src", "")), part.content, codes)]
                case "link":
                    inside = self._inline(part, (*codes, _UNDERLINE))
                    label = "".join(span.text for span in inside)
                    spans += [*inside, *_address(str(part.attrs.get("href", "")), label, codes)]
                case "inline" | "strong" | "em" | "s":
                    more = _INLINE_CODES.get(part.type)
                    spans += self._inline(part, (*codes, more) if more else codes)
                case _:
                    # Filter again: an entity such as `&#13;` is a control character now.
                    spans.append(Span(strip_control_chars(part.content).expandtabs(_TAB), codes))
        return spans


def _marks(node: SyntaxTreeNode) -> list[str]:
    if node.type == "bullet_list":
        return [" • "] * len(node.children)
    first = int(node.attrs.get("start", 1))
    return [f" {number} " for number in range(first, first + len(node.children))]


def _address(address: str, label: str, codes: tuple[str, ...]) -> list[Span]:
    """Return the address of a link, unless its text is the address."""
    if not address or label in (address, address.removeprefix("mailto:")):
        return []
    return [Span(" (", codes), Span(address, (*codes, _UNDERLINE)), Span(")", codes)]
