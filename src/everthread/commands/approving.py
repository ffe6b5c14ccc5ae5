"""`/approve` and `/deny`: answering whether a tool may do what could do harm."""

from __future__ import annotations

from everthread.commands.desk import Desk, Said, refused

_HERE = "Nothing is asked here. At a terminal a question is answered with y or n, where it is asked."


async def approve(desk: Desk, code: str) -> Said:
    return desk.decide(code, True) if desk.decide is not None else refused(_HERE)


async def deny(desk: Desk, code: str) -> Said:
    return desk.decide(code, False) if desk.decide is not None else refused(_HERE)
