"""Markdown as text with colours and weights. Only this module knows rich, which takes a while to import."""

from __future__ import annotations

import io
from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from everthread.cli.terminal.ink import Ink

WIDTH_MAX = 100
"""Lines longer than this are hard to read."""
_CODE_WIDTH_MAX = 200
_FENCES = ("```", "~~~")
_THEME = Theme(
    {
        "markdown.code": "cyan",
        "markdown.link": "underline",
        "markdown.link_url": "underline",
        "markdown.block_quote": "dim",
        "markdown.item.bullet": "cyan",
        "markdown.item.number": "cyan",
        "markdown.hr": "dim",
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold",
        "markdown.h5": "bold",
        "markdown.h6": "bold",
    }
)


class _PlainHeading(Heading):
    """At the left, as everything else in a conversation."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Code(CodeBlock):
    """Indented, with no background, so that it can be read and copied anywhere."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Syntax(
            str(self.text).rstrip(), self.lexer_name, theme=self.theme, word_wrap=True, background_color="default"
        )
        yield Padding(code, (0, 0, 0, 2))


class _Answer(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _PlainHeading,
        "fence": _Code,
        "code_block": _Code,
    }


class Drawing:
    """Draws for one terminal; its width is asked for each time, because it may change."""

    def __init__(self, ink: Ink) -> None:
        self._ink = ink
        self._console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system="standard" if ink.colour else None,
            no_color=not ink.colour,
            theme=_THEME,
            legacy_windows=False,
            highlight=False,
            emoji=False,
            markup=False,
        )

    def markdown(self, text: str, columns: int) -> str:
        """The text as lines, the last of them ended too."""
        theme = "ansi_dark" if self._ink.dark else "ansi_light"
        drawn = _Answer(text, code_theme=theme, hyperlinks=False)
        # Code is not read like prose: where there is room, its lines stay whole.
        return self._drawn(drawn, min(columns, _CODE_WIDTH_MAX if text.startswith(_FENCES) else WIDTH_MAX))

    def plain(self, text: str, columns: int) -> str:
        return self._drawn(Text(text), min(columns, _CODE_WIDTH_MAX))

    def _drawn(self, what: Markdown | Text, columns: int) -> str:
        # Set here: one that is only asked for is cut to what COLUMNS or the real terminal say.
        self._console.width = max(columns, 10)
        with self._console.capture() as captured:
            self._console.print(what)
        lines = captured.get().split("\n")
        return "\n".join(line.rstrip() for line in lines)
