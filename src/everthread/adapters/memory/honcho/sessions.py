"""Where our sessions and notes live in Honcho, and how they leave.

A deleted session's name can't be used again, and deleting takes a while during which whatever is written there is lost.
So a session that comes back gets the name of the next round, and who deletes waits until it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from everthread.adapters.memory.common.http import NotThere, Sleep
from everthread.adapters.memory.common.locks import Alone
from everthread.adapters.memory.honcho.client import Api, Home, Said, Saying
from everthread.adapters.memory.honcho.codec import (
    again,
    in_round,
    missing,
    note_name,
    opened_with,
    peers_of,
    person,
    repeated,
    session_name,
    undone,
)
from everthread.domain.errors import Unavailable
from everthread.domain.model import SessionRef

KNOWN_MAX = 1024
"""Sessions whose homes are remembered, so that not every entry has to ask for them."""
ROUNDS_MAX = 1000
GONE_S_MAX = 20.0
_LOOK_S = 0.1


class Homes:
    def __init__(self, provider: str, api: Api, sleep: Sleep) -> None:
        self._provider = provider
        self._api = api
        self._sleep = sleep
        # Only a hint: who is mistaken finds nobody there, and looks further.
        self._known: dict[str, Home] = {}
        self._alone = Alone()

    def alone(self, session_id: str) -> AbstractAsyncContextManager[object]:
        """Nobody else writes to that session meanwhile."""
        return self._alone.at(session_id)

    async def of_session(self, ref: SessionRef, parent_id: str = "") -> Home:
        return await self._living(session_name(ref.session_id), ref, parent=parent_id)

    async def of_note(self, ref: SessionRef, note_id: str) -> Home:
        return await self._living(note_name(ref.session_id, note_id), ref, note=note_id)

    async def append(self, ref: SessionRef, sayings: Sequence[Saying]) -> None:
        """Say what was not said there yet: appending is not idempotent, so it is looked at first."""
        if not sayings:
            return
        home, there = await self._looked(ref, seq=sayings[0].metadata["seq"])
        if lacking := missing(sayings, there):
            await self._api.append(home.id, lacking)

    async def undo(self, ref: SessionRef, turns: Sequence[int]) -> None:
        """Single messages can't be deleted: they are marked, and not recalled any more."""
        for turn in turns:
            _, there = await self._looked(ref, turn=turn)
            for message in there:
                await self._api.describe_message(message, undone(message))

    async def close(self, ref: SessionRef, through_seq: int, lacking: Sequence[int]) -> None:
        """Write down how far the session is complete; a later close takes the place of an earlier one.

        A request that was given up may have been carried out long after it was looked for: what is there twice is
        marked.
        """
        home, there = await self._looked(ref)
        for message in repeated(there):
            await self._api.describe_message(message, undone(message))
        closed = {"closed_through": through_seq, "missing": list(lacking)}
        await self._describe(session_name(ref.session_id), home, {**home.metadata, **closed})

    async def take_back_note(self, owner: str, note_id: str, but: str = "") -> None:
        """Delete what was concluded from a note, in whichever session it was written, except in that home."""
        for home in await self._api.sessions(owner=owner, note=note_id):
            if home.id != but:
                await self.empty(home)

    async def empty(self, home: Home, but: Sequence[str] = ()) -> None:
        """Delete the conclusions there, except those of these words."""
        for conclusion in await self._api.conclusions(session_id=home.id):
            if conclusion.content not in but:
                await self._delete_conclusion(conclusion.id)

    async def forget_session(self, session_id: str) -> None:
        async with self.alone(session_id):
            await self._delete(session=session_id)

    async def forget_person(self, owner: str) -> None:
        await self._delete(owner=owner)
        # What was concluded from several sessions is in none.
        for conclusion in await self._api.conclusions(observed_id=person(owner)):
            await self._delete_conclusion(conclusion.id)
        with suppress(NotThere):
            await self._api.clear_card(person(owner))

    async def forget_fact(self, owner: str, fact: str, note_id: str) -> None:
        """Single messages can't be deleted: a session that has the fact is said again without it, then deleted."""
        if note_id:
            await self.take_back_note(owner, note_id)
        if not fact:
            return
        for home in await self._api.sessions(owner=owner):
            session_id = str(home.metadata.get("session", ""))
            if "note" not in home.metadata:
                async with self.alone(session_id):
                    await self._say_again(home, session_id, owner, fact)
        for conclusion in await self._api.conclusions(observed_id=person(owner)):
            if fact in conclusion.content:
                await self._delete_conclusion(conclusion.id)

    async def _say_again(self, home: Home, session_id: str, owner: str, fact: str) -> None:
        try:
            messages = await self._api.messages(home.id)
        except NotThere:
            return
        if not any(fact in message.content for message in messages):
            return
        name = session_name(session_id)
        after = 1 + next((round for round in range(ROUNDS_MAX) if in_round(name, round) == home.id), 0)
        new = await self._first_living(name, owner, after)
        await self._api.describe_session(new.id, home.metadata)
        there = await self._api.messages(new.id)
        if lacking := missing([again(message, fact) for message in messages], there):
            await self._api.append(new.id, lacking)
        await self._gone([home])

    async def _looked(self, ref: SessionRef, **metadata: int) -> tuple[Home, list[Said]]:
        """A session's home, and the messages of this entry or turn that are there."""
        home = await self.of_session(ref)
        try:
            return home, await self._api.messages(home.id, **metadata)
        except NotThere:
            # It was deleted by somebody since.
            self._known.pop(session_name(ref.session_id), None)
            home = await self.of_session(ref)
            return home, await self._api.messages(home.id, **metadata)

    async def _living(self, name: str, ref: SessionRef, **more: str) -> Home:
        """The session of that name that was not deleted, made if there is none, and described."""
        if name not in self._known:
            while len(self._known) >= KNOWN_MAX:
                self._known.pop(next(iter(self._known)))
            self._known[name] = await self._first_living(name, ref.owner, 0)
        home = self._known[name]
        metadata = opened_with(home, ref, **more)
        return home if metadata is None else await self._describe(name, home, metadata)

    async def _describe(self, name: str, home: Home, metadata: dict[str, Any]) -> Home:
        await self._api.describe_session(home.id, metadata)
        described = Home(home.id, metadata)
        self._known[name] = described
        return described

    async def _first_living(self, name: str, owner: str, round: int) -> Home:
        while round < ROUNDS_MAX:
            try:
                return await self._api.get_or_create_session(in_round(name, round), peers_of(owner))
            except NotThere:
                round += 1
        raise Unavailable(self._provider, f"a session was deleted {ROUNDS_MAX} times")

    async def _delete(self, **metadata: str) -> None:
        await self._gone(await self._api.sessions(**metadata))

    async def _gone(self, homes: Sequence[Home]) -> None:
        """Delete them and wait until they are: until then, what is written there would be lost."""
        waited_s = 0.0
        gone = {home.id for home in homes}
        self._known = {name: home for name, home in self._known.items() if home.id not in gone}
        for home in homes:
            while await self._is_still_there(home):
                if waited_s >= GONE_S_MAX:
                    raise Unavailable(
                        self._provider, f"a deletion is not done after {GONE_S_MAX:g} s", retry_after_s=30
                    )
                await self._sleep(_LOOK_S)
                waited_s += _LOOK_S

    async def _is_still_there(self, home: Home) -> bool:
        """Asking for its deletion tells."""
        try:
            await self._api.delete_session(home.id)
        except NotThere:
            return False
        return True

    async def _delete_conclusion(self, id: str) -> None:
        with suppress(NotThere):
            await self._api.delete_conclusion(id)
