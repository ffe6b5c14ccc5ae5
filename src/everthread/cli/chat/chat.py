"""The interactive chat of `everthread`: read messages, run commands, answer. The view displays it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from everthread.agent.events import Reviewed, TurnEnded
from everthread.cli.chat.approvals import ApprovalPrompt
from everthread.cli.chat.recovery import Recovery
from everthread.cli.chat.session import ChatOptions, enter_session, leave_session, prepare_runtime, question_of
from everthread.cli.chat.status import read_history, read_status
from everthread.cli.chat.turns import ChatTurns
from everthread.cli.context import CliRuntime
from everthread.cli.exit_codes import INTERRUPTED, REFUSED
from everthread.cli.files import new_file
from everthread.cli.stdin import INVALID_UTF8, InputText
from everthread.cli.view import ChatView
from everthread.config.schema import Background
from everthread.config.terminal import display
from everthread.domain.errors import EverthreadError
from everthread.domain.model import Inbound, SessionKey
from everthread.domain.text_format import counted, excerpt
from everthread.gc_tuning import settle_at_once

if TYPE_CHECKING:
    from everthread.commands.completion import Candidate
    from everthread.commands.registry import CommandContext, CommandResult, Document, MenuItem, ParsedCommand

LEAVE_S_MAX = 5.0
TWICE_S = 1.0
STATUS_S = 3.0
_LOOK_S = 0.01


async def chat(runtime: CliRuntime, wish: ChatOptions, *, interactive: bool) -> int:
    """Chat until the user leaves. Return the exit code."""
    view = view_for(wish, runtime.settings.terminal.background, interactive=interactive)
    talk = Chat(runtime, wish, await enter_session(runtime, wish), view)
    try:
        return await talk.run()
    finally:
        await runtime.stop(close_memory=not talk.cut_off)


def view_for(wish: ChatOptions, background: Background, *, interactive: bool) -> ChatView:
    shown_on = display(background)
    if interactive and shown_on.term != "dumb":
        from everthread.cli.terminal.view import TerminalView

        return TerminalView(shown_on, verbose=wish.verbose)
    from everthread.cli.chat.plain_view import PlainView

    return PlainView(interactive=interactive, verbose=wish.verbose)


class Chat:
    """The chat of one process. Messages are answered in order; commands that skip the queue run immediately."""

    def __init__(self, runtime: CliRuntime, wish: ChatOptions, key: SessionKey, view: ChatView) -> None:
        self._runtime = runtime
        self._wish = wish
        self._model = wish.model
        self._key = key
        self._owner = runtime.settings.owner
        self._view = view
        self._jobs: asyncio.Queue[ParsedCommand | None] = asyncio.Queue()
        """Queued work: a command, or `None` for the next message in the inbox."""
        self._busy = False
        self._recovery = Recovery(
            runtime, key, lambda: runtime.choices(self._model), self._finished, self._not_finished
        )
        self._ready = asyncio.Event()
        """Set once answers and commands can run."""
        self._left = asyncio.Event()
        self._look = asyncio.Event()
        self._approving = ApprovalPrompt(view)
        self._answering = ChatTurns(
            runtime,
            key,
            view,
            self._approving,
            model=lambda: self._model,
            fail=self._fail,
            changed=self._look.set,
        )
        self.cut_off = False
        """True if the process ends during a turn. The next process recovers the turn."""
        self._code = 0
        self._hinted = False
        self._stopped_at = 0.0

    async def run(self) -> int:
        with self._signals():
            try:
                # Open the view first: the user can type during start-up, and the input is read afterwards.
                async with self._view.open(self):
                    if await self._get_ready():
                        if self._view.interactive:
                            await self._welcome()
                        self._view.show_prompt()
                        await self._talk()
            finally:
                await self._goodbye()
        return self._code

    async def _get_ready(self) -> bool:
        """Load everything a turn needs. Return false if the user left during the wait."""
        getting = asyncio.ensure_future(prepare_runtime(self._runtime, self._view.show_notice))
        leaving = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({getting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                return False
            for problem in getting.result():
                self._view.show_error(problem)
        finally:
            getting.cancel()
            leaving.cancel()
        self._ready.set()
        return True

    async def _talk(self) -> None:
        work = [self._work(), self._read()]
        if self._view.interactive:
            settle_at_once()
            work.append(self._recovery.run())
            self._runtime.agent.attend_to_reviews(self._reviewed)
        work += [self._watch()] if self._view.rich else []
        try:
            async with asyncio.TaskGroup() as tasks:
                going = [tasks.create_task(each) for each in work]
                await self._left.wait()
                await self._wind_up()
                for task in going:
                    task.cancel()
        except ExceptionGroup as several:
            raise several.exceptions[0] from several

    # --- Reading -----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while not self._left.is_set() and (typed := await self._view.read_message()) is not None:
            self._hinted = False
            await self._take(typed)
            self._approving.remind()
            if not self._view.interactive:
                # Keep a script's order: its next line must not interrupt the previous one.
                await self._jobs.join()
            if self._view.closed:
                self._leave(REFUSED)
            if not self._busy and self._jobs.empty() and not self._left.is_set():
                self._view.show_prompt()
        self._approving.nobody_is_left()
        if self._busy and not self._left.is_set():
            self._view.show_notice("Finishing what was asked; Ctrl-C leaves at once.")
        await self._jobs.join()
        self._leave()

    async def _take(self, typed: InputText) -> None:
        from everthread.commands.registry import ParsedCommand, UnknownCommand, parse

        text = typed.text
        found = parse(text)
        if found is None and self._approving.take(text):
            return
        if not text.strip():
            return
        if typed.spoiled:
            self._view.show_notice(INVALID_UTF8)
        match found:
            case UnknownCommand():
                self._fail(found.answer)
            case ParsedCommand() if found.command.skips_queue:
                await self._carry_out(found)
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
            self._view.show_notice(f"Queued: {excerpt(text)}")
            self._answering.queued += [text] if job is None else []
        self._jobs.put_nowait(job)
        self._look.set()

    # --- Commands ----------------------------------------------------------------------------------------------------

    async def _carry_out(self, order: ParsedCommand) -> None:
        from everthread.commands.registry import run_command

        said = await run_command(self._command_context(), order)
        if said.menu and self._view.rich:
            if not said.ok:
                self._fail(said.text)
            offer = await self._chosen(order, said.menu)
            if offer is None:
                return
            said = await run_command(self._command_context(), offer)
        if said.wakes_worker and self._busy and order.argument:
            self._answering.queued.append(order.argument)
        self._tell(said)
        self._look.set()

    async def _chosen(self, order: ParsedCommand, offers: Sequence[MenuItem]) -> ParsedCommand | None:
        from everthread.commands.registry import ParsedCommand, parse

        index = await self._view.pick(
            f"/{order.command.name} {order.argument}".rstrip(), [offer.label for offer in offers]
        )
        chosen = parse(offers[index].command) if index is not None else None
        assert chosen is None or isinstance(chosen, ParsedCommand)
        return chosen

    def _tell(self, said: CommandResult) -> None:
        if said.quits:
            self._leave()
        elif said.ok:
            self._view.show_text(said.text)
        else:
            self._fail(said.text)
        if said.model is not None:
            self._model = said.model
        if said.document is not None:
            self._write(said.document)
        if said.recap is not None:
            self._view.show_recap(said.recap)
        if said.wakes_worker:
            self._jobs.put_nowait(None)

    def _write(self, document: Document) -> None:
        """Write a document to the user's file system. Never overwrite a file."""
        try:
            with new_file(document.name) as file:
                file.write(document.text.encode())
        except EverthreadError as error:
            self._fail(str(error))
        else:
            self._view.show_text(f"Written to {document.name}")

    def _fail(self, text: str) -> None:
        self._view.show_error(text)
        if not self._view.interactive:
            self._code = REFUSED

    def _command_context(self) -> CommandContext:
        from everthread.commands.registry import CommandContext
        from everthread.gateway.access import Access

        runtime, settings = self._runtime, self._runtime.settings
        reaches = Access(runtime.store, settings.gateway, settings.platforms, settings.owner).reaches
        return CommandContext.build(runtime, self._key, self._owner, reaches, model=self._model)

    # --- Callbacks of the view ---------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        interactive = self._view.interactive
        twice = self._answering.stopping or self._runtime.clock.now() - self._stopped_at < TWICE_S
        if not interactive or (self._busy and twice):
            self._leave(0 if interactive else INTERRUPTED)
        elif self._busy:
            self._stopped_at = self._runtime.clock.now()
            self._answering.stop()
        elif self._hinted:
            self._leave()
        else:
            self._hinted = True
            self._view.show_notice("Ctrl-C again, or Ctrl-D, leaves; /help lists the commands.")

    async def candidates(self, text: str) -> Sequence[Candidate]:
        from everthread.commands.completion import candidates

        await self._ready.wait()
        return await candidates(self._command_context(), text)

    async def history(self) -> Sequence[str]:
        return await read_history(self._runtime.store, self._owner)

    # --- Answering ---------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while not self._left.is_set():
            job = await self._jobs.get()
            self._busy = True
            try:
                if job is not None:
                    await self._carry_out(job)
                else:
                    # A message whose turn could not begin stays in the inbox and comes before the next one.
                    while await self._answering.answer() and self._jobs.empty() and not self._left.is_set():
                        pass
            finally:
                self._busy = False
                self._jobs.task_done()
                self._look.set()
            if self._jobs.empty() and not self._left.is_set():
                self._view.show_prompt()

    # --- Recovery ----------------------------------------------------------------------------------------------------

    async def _finished(self, ended: TurnEnded) -> None:
        session_id = ended.committed.ref.session_id
        self._answering.others.mine(session_id, ended.committed.number)
        asked = await question_of(self._runtime, ended)
        here = await self._runtime.lifecycle.current(self._key)
        if here is not None and here.session_id == session_id:
            self._view.show_notice(f"Finished an answer that was cut off: {asked}")
            self._view.show_answer(ended.text or ended.problem)
            self._view.show_prompt()
        else:
            self._view.show_notice(f"Finished an answer that was cut off: {asked} - /resume {session_id} to see it")

    def _not_finished(self, why: str) -> None:
        if self._wish.verbose:
            self._view.show_notice(why)

    def _reviewed(self, event: Reviewed) -> None:
        """Show a finished review of this owner. A process may also run reviews of other owners."""
        if event.ref.owner == self._owner and not self._left.is_set():
            self._view.show_event(event)
            if not self._busy:
                self._view.show_prompt()

    # --- Start and exit ----------------------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._be_ended, 128 + number)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _be_ended(self, code: int) -> None:
        """Handle SIGTERM and SIGHUP. They are no request to stop the answer, so it can be recovered."""
        self.cut_off = self._busy or not self._jobs.empty() or self._recovery.busy
        self._leave(code)

    def _leave(self, code: int = 0) -> None:
        self._code = code or self._code
        self._left.set()

    async def _wind_up(self) -> None:
        """Stop running work and wait up to `LEAVE_S_MAX` until it is stored. Cancelling releases a cut-off turn."""
        if self.cut_off:
            return
        self._answering.stop()
        self._recovery.stop()
        deadline = self._runtime.clock.now() + LEAVE_S_MAX
        while (self._busy or self._recovery.busy) and self._runtime.clock.now() < deadline:
            await self._runtime.clock.sleep(_LOOK_S)

    async def _watch(self) -> None:
        """Refresh the status line after each change here, and every `STATUS_S` seconds."""
        while True:
            self._look.clear()
            status = await read_status(self._runtime, self._key, self._model, self._answering.context)
            self._view.show_status(status)
            if not self._answering.running:
                await self._show_others()
            try:
                async with asyncio.timeout(STATUS_S):
                    await self._look.wait()
            except TimeoutError:
                # No local change; other clients may have added turns.
                pass

    async def _show_others(self) -> None:
        news = await self._answering.others.news()
        if news.earlier:
            session_id = news.turns[-1].session_id if news.turns else ""
            self._view.show_notice(
                f"Said elsewhere before what follows: {counted(news.earlier, 'more turn')}; "
                f"`everthread sessions show {session_id}` has them all."
            )
        for turn in news.turns:
            self._view.show_notice(f"Said elsewhere in this conversation: {excerpt(turn.user_text)}")
            self._view.show_answer(turn.assistant_text)

    async def _welcome(self) -> None:
        """Show the model, the session and its recap."""
        from everthread.commands.context import session_label
        from everthread.commands.sessions import recap_current

        small = False
        try:
            choice = self._runtime.choices(self._model)[0]
            model, small = choice.name, choice.traits.small
        except EverthreadError as error:
            self._view.show_error(str(error))
            model = "no model yet"

        last = await recap_current(self._command_context())
        where = f"resumed {session_label(last.title, last.session_id)}" if last else "a new session"
        self._view.show_notice(f"Everthread with {model}: {where}.\n/help lists the commands, Ctrl-D leaves.")
        if last is not None and last.last_turns:
            self._view.show_recap(last)
        if small:
            self._view.show_notice(
                "This is a small model for trying things out; it is often wrong. Set `model` for another."
            )

    async def _goodbye(self) -> None:
        if self.cut_off:
            self._view.show_notice("Cut off; `everthread -c` goes on with it.")
            return
        aside = await leave_session(self._runtime, self._key)
        if aside:
            from everthread.commands.context import list_messages

            self._view.show_notice(f"Set aside without an answer: {list_messages(aside)}")
        here = await self._runtime.lifecycle.current(self._key)
        if here is not None and self._view.interactive:
            self._view.show_notice(f"everthread -r {here.session_id} goes on from here.")
