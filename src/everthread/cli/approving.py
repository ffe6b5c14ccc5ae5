"""Asking the person at the terminal whether a tool may do what could do harm."""

from __future__ import annotations

import asyncio

from everthread.cli.face import Face
from everthread.cli.hearing import call_in_words
from everthread.domain.model import SessionRef, ToolCall

_YES = ("y", "yes")
_NO = ("n", "no", "")


class Approving:
    """One question at a time. Where nobody is there to answer, the answer is no."""

    def __init__(self, face: Face) -> None:
        self._face = face
        self._somebody_there = face.interactive
        self._question: asyncio.Future[bool] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def approve(self, call: ToolCall, ref: SessionRef) -> bool:
        wanted = call_in_words(call.name, call.arguments)
        if not self._somebody_there:
            self._face.notice(f"Not allowed, as there is nobody to ask: {wanted}")
            return False
        async with self._one_at_a_time:
            self._question = asyncio.get_running_loop().create_future()
            try:
                self._face.ask(f"{wanted}\nAllow this? [y/N]")
                return await self._question
            finally:
                self._question = None

    def take(self, text: str) -> bool:
        """Whether what was typed answers a question; if so, it is answered."""
        if self._question is None:
            return False
        reply = text.strip().lower()
        if reply not in _YES and reply not in _NO:
            self._face.ask("Please answer y or n. Allow this? [y/N]")
        elif not self._question.done():
            self._question.set_result(reply in _YES)
        return True

    def nobody_is_left(self) -> None:
        """What is asked from here on is denied."""
        self._somebody_there = False
        if self._question is not None and not self._question.done():
            self._question.set_result(False)
