"""The bottom of the terminal: the unfinished part of the answer, the input and the status line."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_completions, is_searching
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import DynamicKeyBindings, KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.layout import ConditionalContainer, HSplit, Layout, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.margins import ConditionalMargin, ScrollbarMargin
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar

from everthread.cli.picker import ClearOnResize, Picker
from everthread.cli.prompt_output import terminal_output
from everthread.cli.terminal.pastes import Pastes
from everthread.cli.terminal.resize import RewrappedRenderer
from everthread.cli.terminal.styles import TextStyle
from everthread.cli.view import ChatViewHost
from everthread.config.terminal import Display, ResizeBehavior

if TYPE_CHECKING:
    from collections.abc import Iterable

_INPUT_ROWS_MAX = 10
_MENU_ROWS_MAX = 8
_ALT_S = 0.2
_SEQUENCE_S = 0.05
_STYLE = Style.from_dict(
    {
        "prompt": "bold",
        "status": "noreverse dim",
        "completion-menu": "noinherit",
        "completion-menu.completion": "noinherit",
        "completion-menu.completion.current": "noinherit reverse",
        "completion-menu.meta.completion": "noinherit dim",
        "completion-menu.meta.completion.current": "noinherit reverse",
        "scrollbar.background": "noinherit",
        "scrollbar.button": "noinherit reverse",
    }
)


class InputArea:
    """The prompt_toolkit application. It runs as long as the chat."""

    def __init__(
        self,
        host: ChatViewHost,
        style: TextStyle,
        display: Display,
        *,
        status: Callable[[], str],
        submit: Callable[[str | None], None],
    ) -> None:
        """`submit` gets the entered text; `None` at the end of input."""
        self.prefix = "> "
        self._host = host
        self._status = status
        self._submit = submit
        self._pastes = Pastes()
        self.typed_ahead = False
        """True while input from before the start is read: the terminal has turned each Enter into a line feed."""
        self._insert_first = False
        """Insert the first completion as soon as there is one."""
        self._live: StyleAndTextTuples = []
        self._bound = self._keys()
        self._picker: Picker | None = None
        """The open menu, shown instead of everything else."""
        self.output = terminal_output(display.term, colour=style.colour)
        self.app: Application[None] = self._application(display.resized)

    def _application(self, resized: ResizeBehavior) -> Application[None]:
        search = SearchToolbar()
        self.buffer = Buffer(
            completer=_CommandCompleter(self._host),
            complete_while_typing=Condition(lambda: self.buffer.text.startswith("/")),
            history=_StoredHistory(self._host),
            on_completions_changed=self._candidates_changed,
            on_text_changed=self._text_changed,
        )
        text = Window(
            BufferControl(self.buffer, search_buffer_control=search.control, preview_search=True),
            get_line_prefix=self._line_prefix,
            height=Dimension(min=1, max=_INPUT_ROWS_MAX),
            dont_extend_height=True,
            wrap_lines=True,
        )
        live = Window(FormattedTextControl(lambda: self._live), dont_extend_height=True, wrap_lines=False)
        status = Window(FormattedTextControl(lambda: [("class:status", self._status())]), height=1)
        is_picking = Condition(lambda: self._picker is not None)
        chat = [
            ConditionalContainer(live, Condition(lambda: bool(self._live))),
            text,
            self._menu(),
            search,
            status,
        ]
        parts = [
            ConditionalContainer(Window(FormattedTextControl(self._picker_lines), dont_extend_height=True), is_picking),
            ConditionalContainer(HSplit(chat), ~is_picking),
        ]
        app: Application[None] = Application(
            layout=Layout(HSplit(parts), focused_element=text),
            key_bindings=DynamicKeyBindings(lambda: self._bound),
            style=_STYLE,
            include_default_pygments_style=False,
            erase_when_done=True,
            before_render=ClearOnResize(lambda: self._picker is not None),
            # Draw each key press immediately, even under load.
            max_render_postpone_time=None,
            output=self.output,
        )
        app.renderer = RewrappedRenderer(app.renderer.style, self.output, resized)
        # Esc directly followed by a key is Alt and that key; after a pause they are two keys.
        app.timeoutlen, app.ttimeoutlen = _ALT_S, _SEQUENCE_S
        return app

    def _menu(self) -> CompletionsMenu:
        """The completion menu, with a scroll bar only if it does not fit."""
        menu = CompletionsMenu(max_height=_MENU_ROWS_MAX)
        assert isinstance(menu.content, Window)
        buffer = self.buffer
        longer = Condition(
            lambda: buffer.complete_state is not None and len(buffer.complete_state.completions) > _MENU_ROWS_MAX
        )
        menu.content.right_margins = [ConditionalMargin(ScrollbarMargin(), longer)]
        return menu

    # --- Printing ----------------------------------------------------------------------------------------------------

    def print_above(self, text: str) -> None:
        """Print text permanently above the input area, and draw the input area again below it."""
        if not self.app.is_running:
            self.output.write_raw(text)
            self.output.flush()
            return
        # Synchronized output: terminals that support it show one frame, others ignore it.
        self.output.write_raw("\x1b[?2026h")
        self.app.renderer.erase()
        self.output.write_raw(text.replace("\n", "\r\n"))
        # Windows cache their content by render counter; a new number makes them draw again.
        self.app.render_counter += 1
        self.app.renderer.render(self.app, self.app.layout)
        self.output.write_raw("\x1b[?2026l")
        self.output.flush()

    def show_live(self, text: str) -> None:
        """Set the text above the input. It is parsed once here, because it is drawn with every key press."""
        self._live = _merge(to_formatted_text(ANSI(text))) if text else []

    def _line_prefix(self, line: int, wrapped: int) -> StyleAndTextTuples:
        first = line == 0 and wrapped == 0
        return [("class:prompt", self.prefix if first else " " * len(self.prefix))]

    # --- Picker ------------------------------------------------------------------------------------------------------

    async def pick(self, title: str, rows: Sequence[str]) -> int | None:
        """Let the user choose a row. Return its index; `None` if the user chose none."""
        chosen: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def take(index: int | None) -> None:
            if not chosen.done():
                chosen.set_result(index)

        self._picker = picker = Picker(title, rows, take)
        usual, self._bound = self._bound, picker.keys()
        self.app.invalidate()
        try:
            return await chosen
        finally:
            self._picker, self._bound = None, usual
            self.app.invalidate()

    def _picker_lines(self) -> StyleAndTextTuples:
        return self._picker.lines(self.output.get_size().rows) if self._picker is not None else []

    # --- Keys --------------------------------------------------------------------------------------------------------

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        typing = ~is_searching
        keys.add("enter", filter=typing)(self._enter)
        keys.add("escape", "enter", filter=typing)(_new_line)
        keys.add("c-j", filter=typing)(self._line_feed)
        keys.add("tab", filter=typing)(self._complete)
        keys.add("c-c")(self._interrupt)
        keys.add("c-d", filter=typing)(self._end)
        keys.add("c-z")(_suspend)
        keys.add("<bracketed-paste>")(self._paste)
        keys.add("escape", filter=has_completions, eager=True)(_close_menu)
        return keys

    def _enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        state = buffer.complete_state
        if state is not None and state.current_completion is not None:
            buffer.complete_state = None
            return
        if buffer.document.text_before_cursor.endswith("\\"):
            # A trailing backslash continues the line, as in a shell.
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
            return
        text = self._pastes.restore(buffer.text)
        if buffer.text.strip():
            buffer.append_to_history()
        buffer.reset()
        self._submit(text)

    def _line_feed(self, event: KeyPressEvent) -> None:
        if self.typed_ahead:
            self._enter(event)
        else:
            _new_line(event)

    def _complete(self, event: KeyPressEvent) -> None:
        if self.buffer.complete_state:
            self.buffer.complete_next()
        else:
            # Completions of the last input may still be loading.
            self._insert_first = True
            self.buffer.start_completion()

    def _text_changed(self, _: Buffer) -> None:
        self._insert_first = False

    def _candidates_changed(self, buffer: Buffer) -> None:
        if self._insert_first and buffer.complete_state:
            self._insert_first = False
            buffer.complete_next()

    def _interrupt(self, event: KeyPressEvent) -> None:
        if self.buffer.text:
            self.buffer.reset()
        else:
            self._host.interrupt()

    def _end(self, event: KeyPressEvent) -> None:
        if self.buffer.text:
            self.buffer.delete()
        else:
            self._submit(None)

    def _paste(self, event: KeyPressEvent) -> None:
        event.current_buffer.insert_text(self._pastes.shorten(event.data))


def _merge(pieces: StyleAndTextTuples) -> StyleAndTextTuples:
    """Merge neighbouring pieces of the same style. The ANSI parser returns one per character, and each costs time."""
    return [
        (style, "".join(piece[1] for piece in same))
        for style, same in itertools.groupby(pieces, lambda piece: piece[0])
    ]


class _CommandCompleter(Completer):
    def __init__(self, host: ChatViewHost) -> None:
        self._host = host

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        if "\n" in document.text or not document.text.startswith("/"):
            return
        for found in await self._host.candidates(document.text_before_cursor):
            yield Completion(found.text, start_position=-found.start, display_meta=found.note)


class _StoredHistory(InMemoryHistory):
    """Input history from the store. Keeps no second copy of it, so forgetting a session needs no extra step here."""

    def __init__(self, host: ChatViewHost) -> None:
        super().__init__()
        self._host = host

    async def load(self) -> AsyncGenerator[str, None]:
        for text in self.load_history_strings():
            yield text
        for text in await self._host.history():
            yield text


def _new_line(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")


def _suspend(event: KeyPressEvent) -> None:
    event.app.suspend_to_background()


def _close_menu(event: KeyPressEvent) -> None:
    event.current_buffer.complete_state = None
