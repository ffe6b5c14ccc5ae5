"""Ask the user at the terminal to approve a dangerous tool call."""

from __future__ import annotations

import asyncio

from everthread.agent.events import ApprovalRequest
from everthread.cli.view import ChatView
from everthread.domain.errors import NobodyToAsk
from everthread.domain.model import SessionRef

_ALLOW = "Allow this? [y/N]"
_YES = ("y", "yes")
_NO = ("n", "no", "")
_REPLY_CHARS_MAX = 5
"""Longest input, in characters, that counts as an answer. Longer input is the next message, typed ahead."""


class ApprovalPrompt:
    """Ask one question at a time. Deny every call if no user is present."""

    def __init__(self, view: ChatView) -> None:
        self._view = view
        self._is_open = view.interactive
        self._question: asyncio.Future[bool] | None = None
        self._lock = asyncio.Lock()

    async def approve(self, request: ApprovalRequest, ref: SessionRef) -> bool:
        if request.refusal:
            self._view.show_notice(request.refusal)
            return False
        description = request.description
        if not self._is_open:
            self._view.show_notice(f"Denied, because no user can approve it: {description}")
            raise NobodyToAsk
        async with self._lock:
            self._question = asyncio.get_running_loop().create_future()
            try:
                self._view.show_question(f"{description}\n{_ALLOW}")
                return await self._question
            finally:
                self._question = None

    def answer(self, text: str) -> bool:
        """Answer the open question with typed text. Return false if the text is no answer; the question stays open."""
        if self._question is None:
            return False
        reply = text.strip().lower()
        if len(reply) > _REPLY_CHARS_MAX or len(reply.split()) > 1:
            return False
        if reply not in _YES and reply not in _NO:
            self._view.show_notice("Please answer y or n.")
        elif not self._question.done():
            self._question.set_result(reply in _YES)
        return True

    def remind(self) -> None:
        """Repeat the open question, if there is one."""
        if self._question is not None and not self._question.done():
            self._view.show_question(_ALLOW)

    def close(self) -> None:
        """Deny the open question and all later ones."""
        self._is_open = False
        if self._question is not None and not self._question.done():
            self._question.set_result(False)
