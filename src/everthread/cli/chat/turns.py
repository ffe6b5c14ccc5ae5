"""Having the messages of this terminal answered, one after another, and stopping what is being answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from everthread.agent.events import Compressed, TurnBegan, TurnEnded, TurnEvent
from everthread.cli.chat.approvals import ApprovalPrompt
from everthread.cli.chat.other_clients import OtherClients
from everthread.cli.chat.session import answer_when_free
from everthread.cli.context import CliRuntime
from everthread.cli.view import ChatView
from everthread.domain.errors import EverthreadError
from everthread.domain.model import Message, Role, SessionKey, TurnStatus
from everthread.domain.text_format import excerpt

_UNDO = "your message is kept; /undo takes it back"


class Answering:
    """What happens to the next message of a key."""

    def __init__(
        self,
        runtime: CliRuntime,
        key: SessionKey,
        view: ChatView,
        approving: ApprovalPrompt,
        *,
        model: Callable[[], str],
        fail: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._key = key
        self._view = view
        self._approving = approving
        self._model = model
        self._fail = fail
        self._changed = changed
        self._running: set[str] = set()
        """The session in which a message is being answered."""
        self.stopping = False
        """The user wants what is being done to stop."""
        self.others = OtherClients(runtime.store, key)
        self.context: dict[str, int] = {}
        """How much of the model's window the last turn took, by its session."""
        self.queued: list[str] = []
        """Messages that were told to wait."""

    @property
    def running(self) -> bool:
        return bool(self._running)

    async def answer(self) -> bool:
        """Have the next message answered; false if none waits, or it can't be."""
        from everthread.agent.turn import TurnOptions

        self.stopping = False
        try:
            try:
                choices = self._runtime.choices(self._model())
            except EverthreadError as error:
                kept = await self._keep_unanswered()
                self._fail(f"{error} ({_UNDO})" if kept else str(error))
                return kept
            manner = TurnOptions(choices, self._hear, self._approving.approve)
            ended = await answer_when_free(
                self._runtime, self._key, manner, self._view.show_notice, lambda: self.stopping
            )
        except EverthreadError as error:
            self._fail(str(error))
            return False
        finally:
            self._running.clear()
        if ended is not None:
            self._conclude(ended)
        return ended is not None

    def stop(self) -> None:
        self.stopping = True
        for session_id in self._running:
            self._runtime.agent.stop(session_id)

    def _hear(self, event: TurnEvent) -> None:
        if isinstance(event, TurnBegan):
            self._running.add(event.ref.session_id)
            self._changed()
            if event.text in self.queued:
                self.queued.remove(event.text)
                self._view.show_notice(f"Answering {excerpt(event.text)}")
            if self.stopping:
                # It is told of before it can be stopped.
                asyncio.get_running_loop().call_soon(self.stop)
        elif isinstance(event, Compressed):
            self.context = {event.ref.session_id: event.tokens_after}
            self._changed()
        self._view.show_event(event)

    def _conclude(self, ended: TurnEnded) -> None:
        if ended.committed.status in (TurnStatus.LATE, TurnStatus.HIDDEN):
            # It belongs to where one was before.
            return
        self.context = {ended.committed.ref.session_id: ended.context_tokens}
        self.others.mine(ended.committed.ref.session_id, ended.committed.number)
        if not ended.problem:
            return
        if self.stopping:
            self._view.show_notice("Interrupted; what there is of the answer is kept. /undo takes it back.")
        elif ended.committed.status is TurnStatus.INTERRUPTED and ended.problem != "stopped":
            self._fail(f"{ended.problem} ({_UNDO})")
        elif ended.problem != "stopped":
            self._fail(ended.problem)

    async def _keep_unanswered(self) -> bool:
        """Put the next message into its session as it is: without a model there will be no answer."""
        ticket = await self._runtime.lifecycle.begin_turn(self._key)
        if ticket is not None:
            messages = [Message(Role.USER, text) for text in ticket.texts]
            await self._runtime.lifecycle.commit_turn(ticket, messages, None, interrupted=True)
        return ticket is not None
