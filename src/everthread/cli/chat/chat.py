"""The interactive chat of `everthread`: read messages and commands, answer them in order, end on signals."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from signal import SIGHUP, SIGINT, SIGTERM
from typing import TYPE_CHECKING

from everthread.agent.events import Reviewed, TurnEnded
from everthread.cli.chat.approvals import ApprovalPrompt
from everthread.cli.chat.greeting import show_farewell, show_welcome
from everthread.cli.chat.input_history import read_history
from everthread.cli.chat.recovery import Recovery
from everthread.cli.chat.session import ChatOptions, enter_session, prepare_runtime, question_of
from everthread.cli.chat.slash_commands import SlashCommands
from everthread.cli.chat.status import watch_status
from everthread.cli.chat.turns import ChatTurns
from everthread.cli.context import CliRuntime
from everthread.cli.exit_codes import INTERRUPTED, REFUSED
from everthread.cli.signals import handle_signals
from everthread.cli.stdin import INVALID_UTF8, InputText
from everthread.cli.view import ChatView
from everthread.config.terminal import detect_display
from everthread.domain.errors import EverthreadError
from everthread.domain.model import Inbound, SessionKey
from everthread.domain.text_format import quote_start
from everthread.gc_tuning import freeze

if TYPE_CHECKING:
    from everthread.commands.completion import Candidate
    from everthread.commands.registry import ParsedCommand

LEAVE_S_MAX = 5.0
TWICE_S = 1.0
_POLL_S = 0.01


async def chat(runtime: CliRuntime, options: ChatOptions, *, interactive: bool) -> int:
    """Chat until the user leaves; return the exit code."""
    session = Chat(runtime, options, await enter_session(runtime, options), interactive=interactive)
    try:
        return await session.run()
    finally:
        await runtime.stop(close_memory=not session.cut_off)


class Chat:
    """The chat of one process. Messages are answered in order; commands that skip the queue run immediately."""

    def __init__(self, runtime: CliRuntime, options: ChatOptions, key: SessionKey, *, interactive: bool) -> None:
        self._runtime = runtime
        self._verbose = options.verbose
        self._key = key
        self._owner = runtime.settings.owner
        self._view = view = self._choose_view(interactive=interactive)
        self._jobs: asyncio.Queue[ParsedCommand | None] = asyncio.Queue()
        """Queued commands; `None` stands for the next message in the inbox."""
        self._busy = False
        self._ready = asyncio.Event()
        """The runtime is loaded."""
        self._leaving = asyncio.Event()
        self._changed = asyncio.Event()
        """The status line is out of date."""
        self._commands = SlashCommands(runtime, key, view, options.model, fail=self._fail)
        self._recovery = Recovery(runtime, key, self._commands.choices, self._show_recovered, self._recovery_failed)
        self._approvals = ApprovalPrompt(view)
        self._turns = ChatTurns(runtime, key, view, self._approvals, self._commands, self._changed.set)
        self.cut_off = False
        """The process must end during a turn; the next process finishes it."""
        self._code = 0
        self._is_hint_shown = False
        self._stopped_at = 0.0

    def _choose_view(self, *, interactive: bool) -> ChatView:
        """Return the full terminal view, or the plain one for pipes and dumb terminals."""
        terminal = detect_display(self._runtime.settings.terminal.background)
        if interactive and terminal.term != "dumb":
            from everthread.cli.terminal.view import TerminalView

            return TerminalView(self, terminal, verbose=self._verbose)
        from everthread.cli.chat.plain_view import PlainView

        return PlainView(interactive=interactive, verbose=self._verbose)

    async def run(self) -> int:
        # The exit code of a process that a signal ends is 128 plus the number of the signal.
        ends = {number: partial(self._terminate, 128 + number) for number in (SIGTERM, SIGHUP)}
        with handle_signals(ends):
            try:
                # Open the view first, so that the user can type while the runtime loads.
                with handle_signals({SIGINT: self.interrupt}):
                    async with self._view.open():
                        await self._run_chat()
            finally:
                await show_farewell(self._runtime, self._view, self._key, cut_off=self.cut_off)
        return self._code

    async def _run_chat(self) -> None:
        if await self._prepare():
            if self._view.interactive:
                await show_welcome(self._runtime, self._view, self._commands)
            self._view.show_prompt()
            await self._run_tasks()

    async def _prepare(self) -> bool:
        """Load the runtime; return false if the user leaves meanwhile."""
        preparing = asyncio.ensure_future(prepare_runtime(self._runtime, self._view.show_notice))
        leaving = asyncio.ensure_future(self._leaving.wait())
        try:
            await asyncio.wait({preparing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not preparing.done():
                return False
            for problem in preparing.result():
                self._view.show_error(problem)
        finally:
            preparing.cancel()
            leaving.cancel()
        self._ready.set()
        return True

    async def _run_tasks(self) -> None:
        work = [self._work(), self._read()]
        if self._view.interactive:
            freeze()
            work.append(self._recovery.run())
            self._runtime.agent.start_reviews(self._show_review)
        if self._view.rich:
            work.append(watch_status(self._runtime, self._key, self._view, self._turns, self._changed))
        try:
            async with asyncio.TaskGroup() as tasks:
                started = [tasks.create_task(each) for each in work]
                await self._leaving.wait()
                await self._finish()
                for task in started:
                    task.cancel()
        except ExceptionGroup as several:
            raise several.exceptions[0] from several

    # --- Read messages and commands ----------------------------------------------------------------------------------

    async def _read(self) -> None:
        while not self._leaving.is_set() and (typed := await self._view.read_message()) is not None:
            self._is_hint_shown = False
            await self._accept(typed)
            self._approvals.remind()
            if not self._view.interactive:
                # A script's messages are answered in order: none interrupts the one before it.
                await self._jobs.join()
            if self._view.closed:
                self._leave(REFUSED)
            self._prompt_if_idle()
        self._approvals.close()
        if self._busy and not self._leaving.is_set():
            self._view.show_notice("Finishing the current answer. Ctrl-C leaves now.")
        await self._jobs.join()
        self._leave()

    async def _accept(self, typed: InputText) -> None:
        from everthread.commands.registry import ParsedCommand, UnknownCommand, parse

        text = typed.text
        found = parse(text)
        if found is None and self._approvals.answer(text):
            return
        if not text.strip():
            return
        if typed.spoiled:
            self._view.show_notice(INVALID_UTF8)
        match found:
            case UnknownCommand():
                self._fail(found.answer)
            case ParsedCommand() if found.command.skips_queue:
                await self._run_command(found)
            case ParsedCommand():
                self._queue(found, text)
            case None:
                try:
                    await self._runtime.lifecycle.accept(Inbound(self._key, self._owner, text))
                except EverthreadError as error:
                    self._fail(str(error))
                else:
                    self._queue(None, text)

    def _queue(self, job: ParsedCommand | None, text: str) -> None:
        if self._busy:
            self._view.show_notice(f"Queued: {quote_start(text)}")
            self._turns.queued += [text] if job is None else []
        self._jobs.put_nowait(job)
        self._changed.set()

    # --- Answer messages and run commands ----------------------------------------------------------------------------

    async def _work(self) -> None:
        while not self._leaving.is_set():
            job = await self._jobs.get()
            self._busy = True
            try:
                if job is not None:
                    await self._run_command(job)
                else:
                    # A message whose turn failed to begin still waits, and comes before the next one.
                    while await self._turns.answer() and self._jobs.empty() and not self._leaving.is_set():
                        pass
            finally:
                self._busy = False
                self._jobs.task_done()
                self._changed.set()
            self._prompt_if_idle()

    async def _run_command(self, parsed: ParsedCommand) -> None:
        result = await self._commands.run(parsed)
        if result is None:
            return
        if result.quits:
            self._leave()
        if result.wakes_worker:
            self._turns.queued += [parsed.argument] if self._busy and parsed.argument else []
            self._jobs.put_nowait(None)
        self._changed.set()

    def _prompt_if_idle(self) -> None:
        if not self._busy and self._jobs.empty() and not self._leaving.is_set():
            self._view.show_prompt()

    def _fail(self, text: str) -> None:
        self._view.show_error(text)
        if not self._view.interactive:
            self._code = REFUSED

    # --- Called by the view (`ChatViewHost`) -------------------------------------------------------------------------

    def interrupt(self) -> None:
        interactive = self._view.interactive
        twice = self._turns.stopping or self._runtime.clock.now() - self._stopped_at < TWICE_S
        if not interactive or (self._busy and twice):
            self._leave(0 if interactive else INTERRUPTED)
        elif self._busy:
            self._stopped_at = self._runtime.clock.now()
            self._turns.stop()
        elif self._is_hint_shown:
            self._leave()
        else:
            self._is_hint_shown = True
            self._view.show_notice("Press Ctrl-C again, or Ctrl-D, to leave. /help lists the commands.")

    async def candidates(self, text: str) -> Sequence[Candidate]:
        from everthread.commands.completion import candidates

        await self._ready.wait()
        return await candidates(self._commands.context(), text)

    async def history(self) -> Sequence[str]:
        return await read_history(self._runtime.store, self._owner)

    # --- Background work ---------------------------------------------------------------------------------------------

    async def _show_recovered(self, ended: TurnEnded) -> None:
        """Show an answer that an earlier process began and this one finished."""
        session_id = ended.committed.ref.session_id
        self._turns.others.mark_own(session_id, ended.committed.number)
        question = await question_of(self._runtime, ended)
        current = await self._runtime.lifecycle.current(self._key)
        if current is not None and current.session_id == session_id:
            self._view.show_notice(f"Finished an interrupted answer: {question}")
            self._view.show_answer(ended.text or ended.problem)
            self._view.show_prompt()
        else:
            self._view.show_notice(f"Finished an interrupted answer: {question}. To see it: /resume {session_id}")

    def _recovery_failed(self, problem: str) -> None:
        if self._verbose:
            self._view.show_notice(problem)

    def _show_review(self, event: Reviewed) -> None:
        """Show the result of a review. A process may review sessions of other owners, who are not here to see it."""
        if event.ref.owner == self._owner and not self._leaving.is_set():
            self._view.show_event(event)
            self._prompt_if_idle()

    # --- Leave -------------------------------------------------------------------------------------------------------

    def _terminate(self, code: int) -> None:
        """End on a signal. The user did not ask to stop the answer, so the next process finishes it."""
        self.cut_off = self._busy or not self._jobs.empty() or self._recovery.busy
        self._leave(code)

    def _leave(self, code: int = 0) -> None:
        self._code = code or self._code
        self._leaving.set()

    async def _finish(self) -> None:
        """Stop running turns and wait until they are stored. A cut-off turn is released when its task is cancelled."""
        if self.cut_off:
            return
        self._turns.stop()
        self._recovery.stop()
        deadline = self._runtime.clock.now() + LEAVE_S_MAX
        while (self._busy or self._recovery.busy) and self._runtime.clock.now() < deadline:
            await self._runtime.clock.sleep(_POLL_S)
