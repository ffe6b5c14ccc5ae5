"""One session with a provider, entry by entry, without the journal."""

from __future__ import annotations

from typing import Any

from everthread.domain.events import Delivery, ForgetScope, View
from everthread.domain.model import ChatType, Message, Role, SessionKey, SessionRef, Turn, TurnStatus
from everthread.ports.memory import MemoryProvider

AT = 86_400.0


class ProviderSession:
    def __init__(self, provider: MemoryProvider, session_id: str, owner: str = "ann") -> None:
        self.provider = provider
        self.ref = SessionRef(session_id, 0, SessionKey("main", "cli", ChatType.DM, "1"), 1, owner)
        self.seq = 0
        self.turns: dict[int, tuple[int, Turn]] = {}

    async def say(self, text: str, answer: str = "I see.") -> int:
        """Deliver a turn. Return its number."""
        number, said = len(self.turns) + 1, (Message(Role.USER, text), Message(Role.ASSISTANT, answer))
        session = self.ref.session_id
        turn = Turn(session, number, f"{session}-{number}", TurnStatus.DONE, AT, said)
        self.turns[number] = (self._next().seq, turn)
        await self.again(number)
        return number

    async def again(self, number: int, *, attempt: int = 1, replay: int = 0) -> None:
        seq, turn = self.turns[number]
        await _awaited(
            self.provider.sync_turn(
                turn.user_text,
                turn.assistant_text,
                ref=self.ref,
                delivery=self._delivery(seq, attempt, replay),
                turn=number,
                at=turn.at,
            )
        )

    async def open(self, parent: str = "") -> None:
        delivery, session = self._next(), self.ref.session_id
        await _awaited(
            self.provider.on_session_switch(session, parent_session_id=parent, ref=self.ref, delivery=delivery)
        )

    async def undo(self, *numbers: int) -> None:
        delivery = self._next()
        await _awaited(
            self.provider.on_session_switch(
                self.ref.session_id, rewound=True, turns=numbers, ref=self.ref, delivery=delivery
            )
        )

    async def close(self, *, hidden: tuple[int, ...] = (), missing: tuple[int, ...] = ()) -> None:
        through, delivery = self.seq, self._next()
        shown = tuple(turn for number, (_, turn) in self.turns.items() if number not in hidden)
        messages = [message for turn in shown for message in turn.messages]
        await _awaited(
            self.provider.on_session_end(
                messages,
                ref=self.ref,
                delivery=delivery,
                through_seq=through,
                missing=missing,
                view=View(None, shown),
            )
        )

    async def hand_over(self, task: str, result: str) -> None:
        await _awaited(self.provider.on_delegation(task, result, ref=self.ref, delivery=self._next()))

    async def note(self, content: str, version: int, action: str = "replace", note_id: str = "n1") -> None:
        about = {"note_id": note_id, "version": version, "turn_id": None, "at": AT}
        await _awaited(
            self.provider.on_memory_write(action, "user", content, about, ref=self.ref, delivery=self._next())
        )

    async def forget(self, scope: ForgetScope, text: str = "", note_id: str = "") -> None:
        await _awaited(self.provider.forget(scope, ref=self.ref, delivery=self._next(), text=text, note_id=note_id))

    async def recall(self, query: str, limit: int = 10) -> list[tuple[str, str, int | None]]:
        found: Any = self.provider.prefetch(query, ref=self.ref, limit=limit)
        return [(item.text, item.session_id, item.turn) for item in await found]

    def _next(self) -> Delivery:
        self.seq += 1
        return self._delivery(self.seq)

    def _delivery(self, seq: int, attempt: int = 1, replay: int = 0) -> Delivery:
        return Delivery(f"{self.ref.session_id}:{seq}:{self.provider.name}:{replay}", seq, attempt, replay)


async def _awaited(returned: Any) -> None:
    if returned is not None:
        await returned
