"""Asking the person at the terminal whether a tool may do what could do harm."""

from __future__ import annotations

import asyncio

from everthread.cli.view import ChatView
from everthread.domain.model import SessionRef, ToolCall
from everthread.domain.text_format import call_in_words

_ALLOW = "Allow this? [y/N]"
_YES = ("y", "yes")
_NO = ("n", "no", "")
_SHORT = 5
"""A word as short as this is meant as an answer; anything longer was typed ahead, and is the next message."""


class ApprovalPrompt:
    """One question at a time. Where nobody is there to answer, the answer is no."""

    def __init__(self, view: ChatView) -> None:
        self._view = view
        self._somebody_there = view.interactive
        self._question: asyncio.Future[bool] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def approve(self, call: ToolCall, ref: SessionRef) -> bool:
        wanted = call_in_words(call.name, call.arguments)
        if not self._somebody_there:
            self._view.show_notice(f"Not allowed, as there is nobody to ask: {wanted}")
            return False
        async with self._one_at_a_time:
            self._question = asyncio.get_running_loop().create_future()
            try:
                self._view.show_question(f"{wanted}\n{_ALLOW}")
                return await self._question
            finally:
                self._question = None

    def take(self, text: str) -> bool:
        """Whether what was typed answers a question; if so, it is answered. If not, the question stays open."""
        if self._question is None:
            return False
        reply = text.strip().lower()
        if len(reply) > _SHORT or len(reply.split()) > 1:
            return False
        if reply not in _YES and reply not in _NO:
            self._view.show_notice("Please answer y or n.")
        elif not self._question.done():
            self._question.set_result(reply in _YES)
        return True

    def remind(self) -> None:
        """Ask again, if a question is open."""
        if self._question is not None and not self._question.done():
            self._view.show_question(_ALLOW)

    def nobody_is_left(self) -> None:
        """What is asked from here on is denied."""
        self._somebody_there = False
        if self._question is not None and not self._question.done():
            self._question.set_result(False)
