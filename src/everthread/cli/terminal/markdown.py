"""Render Markdown as styled lines. Only this module imports the parser, which is slow to import."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from everthread.cli.output import strip_control_chars
from everthread.cli.terminal.highlight import highlighted
from everthread.cli.terminal.styles import TextStyle
from everthread.cli.terminal.tables import Cell, table_lines
from everthread.cli.terminal.text import Line, Span, wrapped_spans, written

WIDTH_MAX = 100
"""Maximum width of prose; longer lines are hard to read."""
_CODE_WIDTH_MAX = 200
_WIDTH_MIN = 10
_FENCES = ("```", "~~~")
_TAB = 4
_NESTING_MAX = 100
_BOLD, _FAINT, _ITALIC, _UNDERLINE, _STRUCK = "1", "2", "3", "4", "9"
_INLINE_LOOKS = {"strong": _BOLD, "em": _ITALIC, "s": _STRUCK}


class MarkdownRenderer:
    """Renders for one terminal. Every call gets the width, because it may change."""

    def __init__(self, ink: TextStyle) -> None:
        self._ink = ink
        # Show HTML tags and link reference definitions as text, so that the answer is complete. Only content nested
        # deeper than `_NESTING_MAX` is left out.
        options = {"html": False, "maxNesting": _NESTING_MAX}
        self._parser = MarkdownIt("commonmark", options).enable(["table", "strikethrough"]).disable("reference")

    def markdown(self, text: str, columns: int) -> str:
        """Render Markdown as lines, each with a line end."""
        # Code may be wider than prose, so that its lines stay whole.
        room = max(min(columns, _CODE_WIDTH_MAX if text.startswith(_FENCES) else WIDTH_MAX), _WIDTH_MIN)
        tree = SyntaxTreeNode(self._parser.parse(text.expandtabs(_TAB)))
        return self._written(self._blocks(tree.children, room))

    def plain(self, text: str, columns: int) -> str:
        room = max(min(columns, _CODE_WIDTH_MAX), _WIDTH_MIN)
        return self._written(wrapped_spans([Span(text.expandtabs(_TAB))], room))

    def _written(self, lines: list[Line]) -> str:
        return "".join(written(line, colour=self._ink.colour) + "\n" for line in lines)

    # --- Blocks ------------------------------------------------------------------------------------------------------

    def _blocks(self, nodes: Sequence[SyntaxTreeNode], columns: int, *, close: bool = False) -> list[Line]:
        """Render blocks one below the other, separated by an empty line unless `close`."""
        lines: list[Line] = []
        for node in nodes:
            drawn = self._block(node, columns)
            lines += [[], *drawn] if lines and not close else drawn
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
        return wrapped_spans(self._inline(node), columns)

    def _heading(self, node: SyntaxTreeNode, columns: int) -> list[Line]:
        return wrapped_spans(self._inline(node, (_BOLD, _UNDERLINE) if node.tag == "h1" else (_BOLD,)), columns)

    def _list(self, node: SyntaxTreeNode, columns: int) -> list[Line]:
        marks = _marks(node)
        indent = max(len(mark) for mark in marks)
        lines: list[Line] = []
        for mark, item in zip(marks, node.children, strict=True):
            close = sum(part.type == "paragraph" for part in item.children) <= 1
            drawn = self._blocks(item.children, max(columns - indent, _WIDTH_MIN), close=close) or [[]]
            first, *others = drawn
            lines.append([Span(mark.rjust(indent), (self._ink.accent_code,)), *first])
            lines += [[Span(" " * indent), *line] for line in others]
        return lines

    def _quote(self, node: SyntaxTreeNode, columns: int) -> list[Line]:
        inside = self._blocks(node.children, max(columns - 2, _WIDTH_MIN))
        return [[Span("▌ ", (_FAINT,)), *(Span(span.text, (_FAINT, *span.looks)) for span in line)] for line in inside]

    def _code(self, node: SyntaxTreeNode, columns: int) -> list[Line]:
        """Render code indented and without a background, so that it can be copied."""
        language = (node.info.split() or [""])[0]
        spans = highlighted(node.content.rstrip(), language, dark=self._ink.dark)
        return [[Span("  "), *line] for line in wrapped_spans(spans, max(columns - 2, _WIDTH_MIN))]

    def _table(self, node: SyntaxTreeNode, columns: int) -> list[Line]:
        rows = [row for part in node.children for row in part.children]
        return table_lines([[self._cell(cell) for cell in row.children] for row in rows], columns)

    def _rule(self, node: SyntaxTreeNode, columns: int) -> list[Line]:
        return [[Span("─" * columns, (_FAINT,))]]

    # --- Inline elements ---------------------------------------------------------------------------------------------

    def _cell(self, node: SyntaxTreeNode) -> Cell:
        looks = (_BOLD,) if node.type == "th" else ()
        return Cell(self._inline(node, looks), to_the_right="right" in str(node.attrs.get("style", "")))

    def _inline(self, node: SyntaxTreeNode, looks: tuple[str, ...] = ()) -> list[Span]:
        spans: list[Span] = []
        for part in node.children:
            match part.type:
                case "softbreak":
                    spans.append(Span(" ", looks))
                case "hardbreak":
                    spans.append(Span("\n", looks))
                case "code_inline":
                    spans.append(Span(part.content, (*looks, self._ink.accent_code)))
                case "image":
                    spans += [Span(part.content, looks), *_address(str(part.attrs.get("src", "")), part.content, looks)]
                case "link":
                    inside = self._inline(part, (*looks, _UNDERLINE))
                    said = "".join(span.text for span in inside)
                    spans += [*inside, *_address(str(part.attrs.get("href", "")), said, looks)]
                case "inline" | "strong" | "em" | "s":
                    more = _INLINE_LOOKS.get(part.type)
                    spans += self._inline(part, (*looks, more) if more else looks)
                case _:
                    # Filter again: an entity such as `&#13;` is a control character now.
                    spans.append(Span(strip_control_chars(part.content).expandtabs(_TAB), looks))
        return spans


def _marks(node: SyntaxTreeNode) -> list[str]:
    if node.type == "bullet_list":
        return [" • "] * len(node.children)
    first = int(node.attrs.get("start", 1))
    return [f" {number} " for number in range(first, first + len(node.children))]


def _address(address: str, said: str, looks: tuple[str, ...]) -> list[Span]:
    """Return the address of a link, unless its text is the address."""
    if not address or said in (address, address.removeprefix("mailto:")):
        return []
    return [Span(" (", looks), Span(address, (*looks, _UNDERLINE)), Span(")", looks)]
