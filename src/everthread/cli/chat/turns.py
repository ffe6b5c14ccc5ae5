"""Answer the messages of this terminal one after another, and stop the running answer."""

from __future__ import annotations

from collections.abc import Callable

from everthread.agent.events import Compressed, TurnBegan, TurnEnded, TurnEvent
from everthread.agent.inbox_worker import InboxWorker
from everthread.cli.chat.approvals import ApprovalPrompt
from everthread.cli.chat.other_clients import OtherClients
from everthread.cli.chat.session import TurnStopper, answer_when_free
from everthread.cli.chat.slash_commands import SlashCommands
from everthread.cli.context import CliRuntime
from everthread.cli.view import ChatView
from everthread.domain.errors import EverthreadError
from everthread.domain.model import SessionKey, TurnStatus
from everthread.domain.text_format import quote_start

_UNDO = "your message is kept; /undo removes it"


class ChatTurns:
    """Runs the turns of one key and reports them to the view."""

    def __init__(
        self,
        runtime: CliRuntime,
        key: SessionKey,
        view: ChatView,
        approvals: ApprovalPrompt,
        commands: SlashCommands,
        changed: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._key = key
        self._view = view
        self._approvals = approvals
        self._commands = commands
        self._changed = changed
        self._stopper = TurnStopper(runtime)
        self.stop = self._stopper.stop
        self.others = OtherClients(runtime.store, key)
        self.context: dict[str, int] = {}
        """Tokens of the model's context window that the last turn used, by session."""
        self.queued: list[str] = []
        """Messages that were announced as queued."""

    @property
    def model(self) -> str:
        return self._commands.model

    @property
    def running(self) -> bool:
        return self._stopper.running

    @property
    def stopping(self) -> bool:
        """The user has asked to stop the running answer."""
        return self._stopper.requested

    async def answer(self) -> bool:
        """Answer the next message; return false if none waits or it cannot be answered."""
        from everthread.agent.turn_options import TurnOptions

        async with self._commands.crossing:
            # A command that stopped the last turn shows its result first.
            self._stopper.begin()
        try:
            try:
                choices = self._commands.choices()
            except EverthreadError as error:
                inbox = InboxWorker(self._runtime.store, self._runtime.lifecycle, self._runtime.clock)
                kept = await inbox.keep_unanswered(self._key) is not None
                self._commands.fail(f"{error} ({_UNDO})" if kept else str(error))
                return kept
            options = TurnOptions(choices, self._handle, self._approvals.approve)
            ended = await answer_when_free(
                self._runtime, self._key, options, self._view.show_notice, lambda: self.stopping
            )
        except EverthreadError as error:
            self._commands.fail(str(error))
            return False
        finally:
            self._stopper.end()
        if ended is not None:
            self._show_end(ended)
        return ended is not None

    def _handle(self, event: TurnEvent) -> None:
        self._stopper.handle(event)
        if isinstance(event, TurnBegan):
            self._changed()
            if event.text in self.queued:
                self.queued.remove(event.text)
                self._view.show_notice(f"Answering {quote_start(event.text)}")
        elif isinstance(event, Compressed):
            self.context = {event.ref.session_id: event.tokens_after}
            self._changed()
        self._view.show_event(event)

    def _show_end(self, ended: TurnEnded) -> None:
        if ended.committed.status in (TurnStatus.LATE, TurnStatus.HIDDEN):
            # The user has left the session that this turn belongs to.
            return
        self.context = {ended.committed.ref.session_id: ended.context_tokens}
        self.others.mark_own(ended.committed.ref.session_id, ended.committed.number)
        if not ended.problem:
            return
        if self.stopping:
            self._view.show_notice("Interrupted. The partial answer is kept; /undo removes it.")
        elif ended.committed.status is TurnStatus.INTERRUPTED and ended.problem != "stopped":
            self._commands.fail(f"{ended.problem} ({_UNDO})")
        elif ended.problem != "stopped":
            self._commands.fail(ended.problem)
