"""Forget a fact in a home that uses every feature, and search every byte of its files.

Tests `store/text_registry.py`, `store/erasure.py` and `lifecycle/home_files.py` together: a history plants the fact in
every column and file that the registry declares, so an entry that is missing or wrong leaves words behind.
"""

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.runtime import AsyncDiary

from everthread.agent.skills.format import SkillText
from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import Settings
from everthread.domain.boundary import Branch, Compress, New, Resume, Rewind
from everthread.domain.errors import Outdated
from everthread.domain.media import Media, safe_file_name
from everthread.domain.model import (
    Inbound,
    Message,
    NoteAction,
    NoteTarget,
    NoteVersion,
    Reply,
    ReplyState,
    Role,
    SessionKey,
    SessionRef,
    Thought,
    ToolCall,
)
from everthread.domain.pairing import PairedAccount
from everthread.domain.schedule import Occurrence
from everthread.lifecycle import ForgetFact, ForgetOwner, NoteChange, TurnClaim
from everthread.lifecycle.home_files import HomeFiles, entry_for
from everthread.lifecycle.schedules import NewSchedule, ScheduleService
from everthread.log_file import log_to_file
from everthread.store.compression_pauses import CompressionPause
from everthread.store.cursors import Redelivery
from everthread.store.error_details import ErrorDetail
from everthread.store.failed_updates import FailedUpdate
from everthread.store.incidents import Incident
from everthread.store.sql import to_json
from everthread.store.text_registry import TABLES, FileMethod, Indexed
from everthread.store.tool_pins import ToolPin

WORD = "zanzibarquux"
FACTS = (f"{WORD} opens it", f'the "{WORD}" key', f"{WORD} \\ 日本", f"first\n{WORD} line", f"Straße {WORD}")
KEY = SessionKey.parse("agent:main:cli:dm:1")
CHAT = SessionKey.parse("agent:main:telegram:dm:42")
RUNNING = SessionKey.parse("agent:main:telegram:dm:7")
LATE = ("the reply", "the draft", "the tool")


class UsedHome:
    """A runtime, and one method for each feature that stores the fact."""

    def __init__(self, runtime: Runtime, fact: str, dice: random.Random) -> None:
        self.runtime, self.fact, self.dice = runtime, fact, dice
        self.home, self.owner = runtime.settings.home, runtime.settings.owner
        self.lifecycle, self.store = runtime.lifecycle, runtime.store
        self.note: NoteVersion | None = None
        self.claim: TurnClaim | None = None

    def text(self) -> str:
        around = ("well: {}", "{}", "{} and {}", "so {}, I think")
        return self.dice.choice(around).replace("{}", self.fact)

    async def ref(self, key: SessionKey = KEY) -> SessionRef:
        here = await self.lifecycle.current(key)
        if here is None:
            await self.turn(key)
            here = await self.lifecycle.current(key)
        assert here is not None
        return here

    async def begin(self, key: SessionKey) -> TurnClaim:
        await self.lifecycle.accept(Inbound(key, self.owner, self.text()))
        claim = await self.lifecycle.begin_turn(key)
        assert claim is not None
        return claim

    async def turn(self, key: SessionKey = KEY) -> None:
        claim = await self.begin(key)
        arguments = to_json({"about": self.fact})
        await self.lifecycle.start_tool(claim, "c1", "look", arguments)
        await self.lifecycle.finish_tool(claim, "c1", self.text())
        messages = [
            Message(Role.USER, self.text()),
            Message(Role.ASSISTANT, "", (ToolCall("c1", "look", arguments),), reasoning=self.text()),
            Message(Role.TOOL, self.text(), tool_call_id="c1", name="look"),
            Message(Role.ASSISTANT, self.text()),
        ]
        await self.lifecycle.commit_turn(claim, messages, self.text())

    async def running_turn(self) -> None:
        self.claim = claim = await self.begin(RUNNING)
        steered, _ = await self.lifecycle.accept(Inbound(RUNNING, self.owner, self.text()))
        await self.lifecycle.steer(claim, steered.id)
        thought = Thought(self.text(), "m")
        await self.lifecycle.start_tool(claim, "c1", "look", to_json({"about": self.fact}), thought)
        await self.lifecycle.start_tool(claim, "c2", "look", to_json([self.text()]))
        await self.lifecycle.finish_tool(claim, "c2", self.text())
        await self.lifecycle.draft_reply(claim, self.text())

    async def branch(self) -> None:
        ref = await self.ref()
        await self.lifecycle.put_prefix(ref, f"rules; {self.text()}".encode(), await self.forget_count())
        await self.lifecycle.cross(KEY, Branch(), owner=self.owner)
        await self.turn()
        await self.lifecycle.cross(KEY, Resume(ref.session_id), owner=self.owner)

    async def compression(self) -> None:
        ref = await self.ref(CHAT)
        await self.turn(CHAT)
        await self.lifecycle.cross(CHAT, Compress(ref.session_id, ref.generation, self.text(), 1), owner=self.owner)

    async def rewind(self) -> None:
        await self.ref()
        await self.turn()
        await self.lifecycle.cross(KEY, Rewind(1), owner=self.owner)

    async def title(self) -> None:
        await self.lifecycle.rename((await self.ref()).session_id, f"about {self.fact}", owner=self.owner)

    async def prefix(self) -> None:
        content = to_json({"prompt": self.text()}).encode()
        await self.lifecycle.put_prefix(await self.ref(), content, await self.forget_count())

    async def delegation(self) -> None:
        await self.lifecycle.record_delegation(await self.ref(), self.text(), self.text(), "child")

    async def notes(self) -> None:
        if self.note is None:
            self.note = await self.write_note(NoteChange(NoteAction.ADD, NoteTarget.MEMORY, self.fact))
        other = await self.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, f"also: {self.fact}"))
        await self.write_note(NoteChange(NoteAction.REPLACE, NoteTarget.USER, "nothing", other.note_id))
        await self.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, f"remember that {self.fact}"))
        await self.runtime.sync_notes(self.owner)

    async def write_note(self, change: NoteChange) -> NoteVersion:
        return await self.lifecycle.write_note(change, owner=self.owner)

    async def skills(self) -> None:
        for body in (self.text(), f"again {self.text()}"):
            skill = SkillText("open-it", f"opens {self.fact}", body)
            await asyncio.to_thread(self.runtime.skills.write, skill)

    async def schedule(self) -> None:
        service = ScheduleService(self.store, self.runtime.clock, self.runtime.new_id)
        for prompt in (self.fact, self.text()):
            schedule = await service.add(NewSchedule(self.owner, "every 1h", "UTC", prompt))
        problem = Occurrence(schedule.id, 1.0, self.owner, problem=self.text())
        await self.store.write(lambda uow: uow.schedules.add_occurrence(problem))

    async def inbox(self) -> None:
        await self.lifecycle.accept(Inbound(KEY, self.owner, self.text()))

    async def failed_update(self) -> None:
        content = to_json({"text": self.text(), "reply_to": {"text": self.text()}})
        update = FailedUpdate("telegram", "bot", "", "42", self.owner, content, "KeyError", 1, 1.0, 2.0)
        await self.store.write(lambda uow: uow.failed_updates.add(update))

    async def tool_pin(self) -> None:
        pin = ToolPin("files", "read", "identity", "digest", to_json({"description": self.text()}), 1.0)
        await self.store.write(lambda uow: uow.tool_pins.put(pin))

    async def attachments(self) -> None:
        for number, name in enumerate(("plain.txt", f"{self.fact if self.fact.isascii() else 0}.txt")):
            path = f"telegram/1-{number}-{safe_file_name(name)}"
            _write(self.home / "media" / path, "nothing" if number else self.fact)
            media = Media("file", self.fact if number else "", path=path)
            inbound = Inbound(CHAT, self.owner, f"see {path}", update_id=str(number), media=(media,))
            await self.lifecycle.accept(inbound)

    async def outbox(self) -> None:
        ref = await self.ref()
        reply = Reply("order-1", KEY, ref.session_id, self.owner, self.text(), ReplyState.READY, 1.0, file=self.fact)

        def put(uow):  # type: ignore[no-untyped-def]
            if uow.outbox.reply("order-1") is None:
                uow.outbox.put_reply(reply)
                uow.outbox.attach("order-1", self.owner, self.fact, f"\x00{self.fact}".encode())
                uow.outbox.attach("order-2", self.owner, self.fact, b"\xff")

        await self.store.write(put)

    async def errors(self) -> None:
        """Plant the fact in every error message."""
        session_id, text = (await self.ref()).session_id, self.text()
        await self.runtime.drain()

        def put(uow):  # type: ignore[no-untyped-def]
            for session in (session_id, None):
                uow.incidents.add(Incident(1.0, "review", session, text))
                uow.error_details.add(ErrorDetail(1.0, "ref", "everthread.agent", text, session))
            uow.compression_pauses.put(CompressionPause(session_id, "m", 1, 2.0, text))
            for provider in uow.cursors.providers():
                uow.cursors.save_provider(replace(provider, last_error=text))
                cursor = uow.cursors.get(provider.name, session_id)
                assert cursor is not None
                uow.cursors.save(replace(cursor, error=text))
                uow.cursors.add_redelivery(Redelivery(provider.name, session_id, 1, 7, text))

        await self.store.write(put)

    async def access(self) -> None:
        guest = PairedAccount("telegram", "42", self.owner, self.fact, 1.0)
        await self.store.write(lambda uow: uow.access.add_guest(guest))

    async def logs(self) -> None:
        logging.getLogger("everthread.agent").warning("could not do: %s", self.text())
        _write(self.home / "logs" / "everthread.log.1", self.text())
        _write(self.home / "logs" / "gateway.out", self.text())

    async def current_notes(self) -> list[str]:
        return await self.store.read(
            lambda uow: sorted(n.content for target in NoteTarget for n in uow.notes.current(self.owner, target))
        )

    async def forget_count(self) -> int:
        return await self.store.read(lambda uow: uow.erasure.forget_count(self.owner))

    @property
    def features(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            *(self.turn, self.branch, self.compression, self.rewind, self.title, self.prefix, self.delegation),
            *(self.notes, self.skills, self.schedule, self.inbox, self.attachments, self.outbox, self.errors),
            *(self.access, self.logs, self.failed_update, self.tool_pin),
        ]

    async def forget(self) -> None:
        assert self.note is not None
        await self.lifecycle.forget(ForgetFact(self.note.note_id), owner=self.owner)

    async def end_running_turn(self) -> None:
        """Let the turn that was running write what it has learned before."""
        assert self.claim is not None
        await self.lifecycle.start_tool(self.claim, "c3", "look", to_json({"about": self.fact}), Thought(self.text()))
        await self.lifecycle.finish_tool(self.claim, "c1", self.text())
        await self.lifecycle.draft_reply(self.claim, self.text())
        await self.lifecycle.record_delegation(self.claim.ref, self.text(), self.text(), "late")
        change = NoteChange(NoteAction.ADD, NoteTarget.USER, self.text(), turn_id=self.claim.turn_id)
        with pytest.raises(Outdated):
            await self.lifecycle.write_note(change, owner=self.owner)
        call = ToolCall("c1", "look", to_json({"about": self.fact}))
        messages = [
            Message(Role.USER, self.text()),
            Message(Role.ASSISTANT, self.text(), (call,), reasoning=self.text()),
        ]
        committed = await self.lifecycle.commit_turn(self.claim, messages, f"answer: {self.fact}")
        assert committed.reply is not None
        assert committed.reply.text == "answer: [forgotten]", "the message is still answered"

    def undeclared(self) -> list[str]:
        present = [path.relative_to(self.home).as_posix() for path in self.home.rglob("*") if path.is_file()]
        return [path for path in present if entry_for(path) is None]

    def find(self) -> list[str]:
        """Return the files that contain the word, in their bytes or their names."""
        files = [path for path in sorted(self.home.rglob("*")) if path.is_file()]
        wanted = WORD.encode()
        return [str(path) for path in files if wanted in path.read_bytes() or wanted in os.fsencode(path.name)]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _runtime(home: Path, *, told: bool) -> Runtime:
    return Runtime(Settings(home), providers=[AsyncDiary()] if told else [])


async def test_a_fact_planted_everywhere_is_found_by_the_registry_and_gone_after_forgetting(tmp_path: Path) -> None:
    log = log_to_file(Settings(tmp_path))
    assert log is not None
    async with _runtime(tmp_path, told=True) as runtime:
        await runtime.start()
        used = UsedHome(runtime, FACTS[0], random.Random(1))
        for feature in used.features:
            await feature()
        # Expiring a key's session would drop what runs in it, so the running turn comes last.
        await used.running_turn()
        planted = await used.store.read(lambda uow: uow.erasure.scrubber.find(used.fact, used.owner))
        declared = {
            f"{t.name}.{c}" for t in TABLES for c, method in t.erased.items() if not isinstance(method, Indexed)
        }
        # A digest does not contain the words, but reveals them to whoever guesses.
        assert declared - set(planted) == {"projections.digest"}, "plant the fact in the new column too"
        files = HomeFiles(tmp_path, used.owner).find(used.fact)
        methods = {entry.method for path in files if (entry := entry_for(path)) is not None}
        assert methods >= {FileMethod.BY_TABLES, FileMethod.REPLACE, FileMethod.REMOVE_LINES, FileMethod.DISCARD}
        assert used.undeclared() == [], "declare the file in the text registry"
        await used.forget()
        assert await used.store.read(lambda uow: uow.erasure.scrubber.find(used.fact, used.owner)) == ()
        await used.end_running_turn()
        await runtime.sync_notes(used.owner)
        assert await used.current_notes() == ["nothing", "remember that [forgotten]"]
        assert await runtime.drain()
    log.leave()
    assert used.find() == []


@pytest.mark.parametrize("seed", range(5))
async def test_no_byte_of_a_forgotten_fact_is_left_after_a_random_history(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    async with _runtime(tmp_path, told=False) as runtime:
        used = UsedHome(runtime, FACTS[seed % len(FACTS)], dice)
        history = [*used.features, *dice.choices(used.features, k=8), used.notes]
        dice.shuffle(history)
        straddles = dice.random() < 0.5
        for feature in history:
            await feature()
        if straddles:
            await used.running_turn()
        assert used.find() != []
        await used.forget()
        # No process was restarted, and nothing was closed.
        assert used.find() == [], f"seed {seed}"
        if straddles:
            await used.end_running_turn()
            assert await used.store.tidy()
            assert used.find() == [], f"seed {seed}, after the turn"
        await runtime.sync_notes(used.owner)
        assert set(await used.current_notes()) == {"nothing", "remember that [forgotten]"}
        await used.lifecycle.cross(KEY, New(), owner=used.owner)
    assert used.find() == [], f"seed {seed}, after closing"


async def test_no_byte_of_a_forgotten_person_is_left_but_their_skills(tmp_path: Path) -> None:
    async with _runtime(tmp_path, told=False) as runtime:
        used = UsedHome(runtime, FACTS[1], random.Random(2))
        for feature in used.features:
            await feature()
        await used.running_turn()
        await used.lifecycle.forget(ForgetOwner(), owner=used.owner)
        await runtime.sync_notes(used.owner)
        assert await used.store.tidy()
        left = [Path(path).relative_to(tmp_path) for path in used.find()]
        # A skill may help others, and the command lists those that came from the person.
        assert {path.parts[0] for path in left} == {"skills"}
