"""Choose one of several rows in the terminal: arrow keys move, typing filters, Enter chooses, Esc cancels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.text_format import one_line

if TYPE_CHECKING:
    from prompt_toolkit.application import Application
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.key_binding.key_processor import KeyPressEvent

FILTER_CHARS_MAX = 100
# Lines for the title, the filter and the key help.
_LINES_BESIDE = 3
_ESCAPE_S = 0.05
_PAGE = 10
_STEPS = {"up": -1, "down": 1, "pageup": -_PAGE, "pagedown": _PAGE, "home": -(2**31), "end": 2**31}
_KEYS = "up/down move, type to filter, Enter selects, Esc or q cancels"


class PickerState(Struct, frozen=True):
    """The filter text, the matching rows and the marked one."""

    rows: tuple[str, ...]
    typed: str = ""
    matching: tuple[int, ...] = ()
    at: int = 0

    @classmethod
    def of(cls, rows: Sequence[str]) -> PickerState:
        return cls(tuple(one_line(row) for row in rows), matching=tuple(range(len(rows))))

    @property
    def chosen(self) -> int | None:
        """The index of the marked row among all rows; `None` if no row matches."""
        return self.matching[self.at] if self.matching else None

    def moved(self, by: int) -> PickerState:
        return replace(self, at=max(0, min(self.at + by, len(self.matching) - 1)))

    def filtered(self, typed: str) -> PickerState:
        """Keep the rows that contain every word of the filter."""
        typed = typed[:FILTER_CHARS_MAX]
        words = typed.casefold().split()
        folded = [(index, row.casefold()) for index, row in enumerate(self.rows)]
        matching = tuple(index for index, row in folded if all(word in row for word in words))
        # Keep the marked row while it matches.
        at = matching.index(self.chosen) if self.chosen in matching else 0
        return replace(self, typed=typed, matching=matching, at=at)

    def window(self, height: int) -> range:
        """The positions to show in `height` lines, with the marked one near the middle."""
        start = max(0, min(self.at - height // 2, len(self.matching) - height))
        return range(start, min(start + height, len(self.matching)))


def is_interactive() -> bool:
    """Return true if stdin and stdout are terminals, so that a user can be asked."""
    streams = (sys.stdin, sys.stdout)
    return all(stream is not None and stream.isatty() for stream in streams)


async def pick(title: str, rows: Sequence[str]) -> int | None:
    """Let the user choose a row. Return its index; `None` if the user cancels or there are no rows.

    Runs inside an event loop. Needs a terminal: check `is_interactive` first.
    """
    if not rows:
        return None
    from prompt_toolkit.application import Application
    from prompt_toolkit.layout import Layout, Window
    from prompt_toolkit.layout.controls import FormattedTextControl

    from everthread.cli.prompt_output import terminal_output

    picker = Picker(title, rows, lambda chosen: app.exit(result=chosen))
    app: Application[int | None] = Application(
        layout=Layout(Window(FormattedTextControl(lambda: picker.lines(app.output.get_size().rows)))),
        key_bindings=picker.keys(),
        erase_when_done=True,
        before_render=ClearOnResize(),
        # Without a terminal, prompt_toolkit chooses its own output.
        output=terminal_output(None, colour=False) if is_interactive() else None,
    )
    # A pause after Esc distinguishes the key from the start of an escape sequence.
    app.ttimeoutlen = app.timeoutlen = _ESCAPE_S
    # Ctrl-C arrives as a key; keep the caller's SIGINT handler.
    return await app.run_async(handle_sigint=False)


class ClearOnResize:
    """Clear the screen after a resize: the terminal moves its lines, so the start of the list is unknown."""

    def __init__(self, is_active: Callable[[], bool] = lambda: True) -> None:
        self._is_active = is_active
        self._size: object = None

    def __call__(self, app: Application[Any]) -> None:
        size = app.output.get_size()
        if self._size not in (None, size) and self._is_active():
            app.renderer.clear()
        self._size = size


class Picker:
    """The lines and key bindings of a list. Calls `done` with the chosen index, or `None` on cancel."""

    def __init__(self, title: str, rows: Sequence[str], done: Callable[[int | None], None]) -> None:
        self._title = one_line(title)
        self._state = PickerState.of(rows)
        self._done = done

    def lines(self, rows: int) -> StyleAndTextTuples:
        now = self._state
        lines: StyleAndTextTuples = [
            ("bold", f"{self._title}\n"),
            ("", f"filter: {now.typed}"),
            ("reverse", " "),
            ("", "\n"),
        ]
        for position in now.window(max(rows - _LINES_BESIDE, 1)):
            marked = position == now.at
            row = now.rows[now.matching[position]]
            lines.append(("reverse", f"> {row}\n") if marked else ("", f"  {row}\n"))
        if not now.matching:
            lines.append(("", "  (no match)\n"))
        return [*lines, ("class:bottom-toolbar", f"{len(now.matching)} of {len(now.rows)}; {_KEYS}")]

    def keys(self) -> KeyBindings:
        """Return the key bindings. They take precedence over all others."""
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()

        def bind(handle: Callable[[KeyPressEvent], None], *names: str) -> None:
            for name in names:
                keys.add(name, eager=True)(handle)

        for name, by in _STEPS.items():
            bind(partial(self._move, by), name)
        bind(lambda _: self._done(None), "c-c", "c-d", "escape")
        bind(self._select, "enter")
        bind(lambda _: self._filter(self._state.typed[:-1]), "backspace")
        bind(lambda _: self._filter(""), "c-u")
        bind(self._type, "<any>", "<bracketed-paste>")
        return keys

    def _move(self, by: int, _: KeyPressEvent) -> None:
        self._state = self._state.moved(by)

    def _filter(self, typed: str) -> None:
        self._state = self._state.filtered(typed)

    def _select(self, _: KeyPressEvent) -> None:
        if self._state.chosen is not None:
            self._done(self._state.chosen)

    def _type(self, event: KeyPressEvent) -> None:
        if event.data == "q" and not self._state.typed:
            self._done(None)
        # Unbound keys arrive as escape sequences.
        elif not event.data.startswith("\x1b"):
            text = "".join(c if c.isprintable() else " " for c in event.data[:FILTER_CHARS_MAX])
            self._filter(self._state.typed + text)
