"""Choose one of several rows in the terminal: arrow keys move, typing filters, Enter chooses, Esc cancels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.text_format import one_line

if TYPE_CHECKING:
    from prompt_toolkit.application import Application
    from prompt_toolkit.filters import FilterOrBool
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.key_binding.key_processor import KeyPressEvent
    from prompt_toolkit.output import Output

FILTER_CHARS_MAX = 100
# Lines for the title, the filter and the key help.
_LINES_BESIDE = 3
_ESCAPE_S = 0.05
_SEEN_BELOW_S = 0.6
_PAGE = 10
_STEPS = {"up": -1, "down": 1, "pageup": -_PAGE, "pagedown": _PAGE, "home": -(2**31), "end": 2**31}
_KEYS = "up/down move, type to narrow, Enter takes, Esc or q leaves"


class PickerState(Struct, frozen=True):
    """The filter text, the matching rows and the marked one."""

    rows: tuple[str, ...]
    typed: str = ""
    fitting: tuple[int, ...] = ()
    at: int = 0

    @classmethod
    def among(cls, rows: Sequence[str]) -> PickerState:
        return cls(tuple(one_line(row) for row in rows), fitting=tuple(range(len(rows))))

    @property
    def chosen(self) -> int | None:
        """The index of the marked row among all rows; `None` if no row matches."""
        return self.fitting[self.at] if self.fitting else None

    def moved(self, by: int) -> PickerState:
        return replace(self, at=max(0, min(self.at + by, len(self.fitting) - 1)))

    def narrowed(self, typed: str) -> PickerState:
        """Keep the rows that contain every word of the filter."""
        typed = typed[:FILTER_CHARS_MAX]
        words = typed.casefold().split()
        folded = [(index, row.casefold()) for index, row in enumerate(self.rows)]
        fitting = tuple(index for index, row in folded if all(word in row for word in words))
        # Keep the marked row while it matches.
        at = fitting.index(self.chosen) if self.chosen in fitting else 0
        return replace(self, typed=typed, fitting=fitting, at=at)

    def window(self, height: int) -> range:
        """The positions to show in `height` lines, with the marked one near the middle."""
        start = max(0, min(self.at - height // 2, len(self.fitting) - height))
        return range(start, min(start + height, len(self.fitting)))


def is_interactive() -> bool:
    """Return true if stdin and stdout are terminals, so that a user can be asked."""
    streams = (sys.stdin, sys.stdout)
    return all(stream is not None and stream.isatty() for stream in streams)


def _terminal() -> Output | None:
    """Return the terminal as output. `None`, without a terminal, selects prompt_toolkit's default output."""
    if not is_interactive():
        return None
    from everthread.cli.prompt_output import terminal_output

    return terminal_output(None, colour=False)


async def pick(title: str, rows: Sequence[str]) -> int | None:
    """Let the user choose a row. Return its index; `None` if the user cancels or there are no rows.

    Runs inside an event loop. Needs a terminal: check `is_interactive` first.
    """
    if not rows:
        return None
    from prompt_toolkit.application import Application
    from prompt_toolkit.layout import Layout, Window
    from prompt_toolkit.layout.controls import FormattedTextControl

    picker = Picker(title, rows, lambda chosen: app.exit(result=chosen))
    app: Application[int | None] = Application(
        layout=Layout(Window(FormattedTextControl(lambda: picker.lines(app.output.get_size().rows)))),
        key_bindings=picker.keys(),
        erase_when_done=True,
        before_render=ClearOnResize(),
        output=_terminal(),
    )
    # A pause after Esc distinguishes the key from the start of an escape sequence.
    app.ttimeoutlen = app.timeoutlen = _ESCAPE_S
    # Ctrl-C arrives as a key; keep the caller's SIGINT handler.
    return await app.run_async(handle_sigint=False)


class ClearOnResize:
    """Clear the screen after a resize: the terminal moves its lines, so the start of the list is unknown."""

    def __init__(self, wanted: Callable[[], bool] = lambda: True) -> None:
        self._wanted = wanted
        self._size: object = None

    def __call__(self, app: Application[Any]) -> None:
        size = app.output.get_size()
        if self._size not in (None, size) and self._wanted():
            app.renderer.clear()
        self._size = size


class Picker:
    """The lines and key bindings of a list. Calls `done` with the chosen index, or `None` on cancel."""

    def __init__(self, title: str, rows: Sequence[str], done: Callable[[int | None], None]) -> None:
        self._title = one_line(title)
        self._choosing = PickerState.among(rows)
        self._done = done

    def lines(self, rows: int) -> StyleAndTextTuples:
        now = self._choosing
        lines: StyleAndTextTuples = [
            ("bold", f"{self._title}\n"),
            ("", f"narrow: {now.typed}"),
            ("reverse", " "),
            ("", "\n"),
        ]
        for place in now.window(max(rows - _LINES_BESIDE, 1)):
            marked = place == now.at
            lines.append(("reverse" if marked else "", f"{'>' if marked else ' '} {now.rows[now.fitting[place]]}\n"))
        if not now.fitting:
            lines.append(("", "  (nothing fits)\n"))
        return [*lines, ("class:bottom-toolbar", f"{len(now.fitting)} of {len(now.rows)}; {_KEYS}")]

    def keys(self, wanted: FilterOrBool = True) -> KeyBindings:
        """Return the key bindings. They take precedence over all others while `wanted` is true."""
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()
        for key, by in _STEPS.items():
            keys.add(key, filter=wanted, eager=True)(self._step(by))
        for key in ("c-c", "c-d", "escape"):
            keys.add(key, filter=wanted, eager=True)(self._leave)
        keys.add("enter", filter=wanted, eager=True)(self._take)
        keys.add("backspace", filter=wanted, eager=True)(self._take_back)
        keys.add("c-u", filter=wanted, eager=True)(self._clear)
        for key in ("<any>", "<bracketed-paste>"):
            keys.add(key, filter=wanted, eager=True)(self._type)
        return keys

    def _step(self, by: int) -> Callable[[KeyPressEvent], None]:
        def step(_: KeyPressEvent) -> None:
            self._choosing = self._choosing.moved(by)

        return step

    def _take_back(self, _: KeyPressEvent) -> None:
        self._narrow(self._choosing.typed[:-1])

    def _clear(self, _: KeyPressEvent) -> None:
        self._narrow("")

    def _narrow(self, typed: str) -> None:
        self._choosing = self._choosing.narrowed(typed)

    def _take(self, _: KeyPressEvent) -> None:
        if self._choosing.chosen is not None:
            self._done(self._choosing.chosen)

    def _leave(self, _: KeyPressEvent) -> None:
        self._done(None)

    def _type(self, event: KeyPressEvent) -> None:
        if event.data == "q" and not self._choosing.typed:
            self._leave(event)
        # Unbound keys arrive as escape sequences.
        elif not event.data.startswith("\x1b"):
            text = "".join(c if c.isprintable() else " " for c in event.data[:FILTER_CHARS_MAX])
            self._narrow(self._choosing.typed + text)
