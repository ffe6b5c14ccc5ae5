"""Scenarios for any provider: subclass `ProviderScenarios` and define a fixture `back_end`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from everthread.domain.boundary import Branch, New, Resume
from everthread.domain.events import Delivery
from everthread.domain.model import ChatType, SessionKey, SessionKind, SessionRef
from everthread.memory.delivery_results import Limits
from everthread.ports.memory import MemoryProvider
from tests.hermes_home import HermesHome
from tests.provider_backend import ProviderBackend
from tests.runtime import CLI, TELEGRAM, CoreFixture, opened

LIMITS = Limits(attempt_s_max=2.0, backoff_s=0.02, backoff_s_max=0.1, breaker_s=0.1)
TURN_S_MAX = 2.0


class Older:
    """The same provider with the older interface, without keyword refs, notes and session switches."""

    def __init__(self, provider: MemoryProvider) -> None:
        self.name = provider.name
        self.capabilities = provider.capabilities
        self.scorecard = provider.scorecard
        self._provider = provider

    async def initialize(self, **settings: Any) -> None:
        await _awaited(self._provider.initialize(**settings))

    async def sync_turn(self, user: str, assistant: str, ref: SessionRef, delivery: Delivery) -> None:
        await _awaited(self._provider.sync_turn(user, assistant, ref=ref, delivery=delivery))

    async def shutdown(self) -> None:
        await _awaited(self._provider.shutdown())


class ProviderScenarios:
    @pytest.fixture
    def back_end(self) -> ProviderBackend:
        raise NotImplementedError("give the scenarios a fixture `back_end`")

    async def test_s02_an_older_class_without_the_other_hooks_loses_nothing(
        self, tmp_path: Path, back_end: ProviderBackend
    ) -> None:
        older = Older(back_end.made())
        async with CoreFixture(tmp_path, older, limits=LIMITS, settings={older.name: back_end.settings}) as core:
            old = (await core.turn(CLI, "apple")).ref.session_id
            await core.note("a note that it has no hook for")
            new = opened(await core.cross(CLI, New()))
            await core.turn(CLI, "birch")
            await core.settled()
            assert await core.incidents() == []
        assert [("apple" in text) for text in back_end.turns(old)] == [True]
        assert [("birch" in text) for text in back_end.turns(new)] == [True]

    async def test_s05_a_bare_switch_keeps_the_known_parent(self, tmp_path: Path, back_end: ProviderBackend) -> None:
        if back_end.parent_of is None:
            pytest.skip("it keeps no parents, so none can be overwritten")
        async with _house(tmp_path, back_end) as core:
            parent = (await core.turn(CLI, "apple")).ref.session_id
            child = opened(await core.cross(CLI, Branch()))
            await core.turn(CLI, "birch")
            await core.settled()
            assert back_end.parent_of(child) == parent
            # Resuming from another session must not change the parent.
            await core.cross(CLI, New())
            await core.turn(CLI, "cedar")
            await core.cross(CLI, Resume(child))
            await core.settled()
            assert back_end.parent_of(child) == parent
        # A restarted provider has no state of earlier deliveries.
        provider, ref = back_end.made(), await _ref_of(tmp_path, back_end, child)
        await _awaited(provider.initialize(**back_end.settings))
        for seq in (98, 99):
            delivery = Delivery(f"{child}:{seq}:{provider.name}:0", seq)
            await _awaited(provider.on_session_switch(child, ref=ref, delivery=delivery))
        await _awaited(provider.shutdown())
        assert back_end.parent_of(child) == parent

    async def test_s06_turns_in_flight_arrive_in_the_session_they_were_said_in(
        self, tmp_path: Path, back_end: ProviderBackend
    ) -> None:
        async with _house(tmp_path, back_end, _impatient(back_end)) as core:
            old = (await core.turn(CLI, "apple")).ref.session_id
            await core.settled()
            back_end.faults.hang()
            for word in ("birch", "cedar", "damson"):
                await core.turn(CLI, word)
            await asyncio.sleep(1.5 * back_end.attempt_s)
            new = opened(await core.cross(CLI, New()))
            for word in ("elder", "fir"):
                await core.turn(CLI, word)
            back_end.faults.heal()
            await core.settled()
            # A close cleans up duplicates of late requests.
            await core.cross(CLI, New())
            await core.settled()
        for session, words in ((old, ["apple", "birch", "cedar", "damson"]), (new, ["elder", "fir"])):
            turns = back_end.turns(session)
            assert len(turns) == len(words), turns
            assert all(word in text for word, text in zip(words, turns, strict=True))

    async def test_s09_the_close_comes_after_a_write_that_hangs_longer_than_any_timeout(
        self, tmp_path: Path, back_end: ProviderBackend
    ) -> None:
        async with _house(tmp_path, back_end, _impatient(back_end)) as core:
            old = (await core.turn(CLI, "apple")).ref.session_id
            await core.settled()
            back_end.faults.hang()
            begun = time.monotonic()
            await core.turn(CLI, "birch")
            crossing = await core.cross(CLI, New())
            await core.turn(CLI, "cedar")
            assert time.monotonic() - begun < TURN_S_MAX
            await asyncio.sleep(3 * back_end.attempt_s)
            # Undelivered entries must be reported as waiting.
            [status] = [one for one in await core.memory.journal.status() if one.name == back_end.made().name]
            assert status.lanes.waiting_entries >= 2
            assert back_end.closes(old) == []
            back_end.faults.heal()
            await core.settled()
        assert len(back_end.turns(old)) == 2
        assert len(back_end.turns(opened(crossing))) == 1
        assert len(back_end.closes(old)) == (1 if back_end.keeps_closes else 0)

    async def test_s12_a_failed_close_is_retried_and_stored_once(
        self, tmp_path: Path, back_end: ProviderBackend
    ) -> None:
        async with _house(tmp_path, back_end) as core:
            old = (await core.turn(CLI, "apple")).ref.session_id
            await core.settled()
            back_end.faults.fail_next(4)
            begun = time.monotonic()
            crossing = await core.cross(CLI, New())
            await core.turn(CLI, "birch")
            assert time.monotonic() - begun < TURN_S_MAX
            await core.reported(f"memory:{back_end.made().name}", "")
            await core.settled()
        assert len(back_end.turns(old)) == 1
        assert len(back_end.turns(opened(crossing))) == 1
        assert len(back_end.closes(old)) == (1 if back_end.keeps_closes else 0)

    @pytest.mark.parametrize("flag", ["expiry_finalized", "memory_flushed"])
    async def test_s20_imported_sessions_are_delivered_once_for_either_spelling_of_the_flag(
        self, tmp_path: Path, back_end: ProviderBackend, flag: str
    ) -> None:
        # The back end may be shared by many tests, so session ids must be unique.
        names = {chat: f"s{chat}{uuid.uuid4().hex[:8]}" for chat in ("42", "43")}
        with HermesHome(tmp_path / "hermes", schema=16) as hermes:
            for chat, name in names.items():
                hermes.session(name, source="telegram", user_id=chat)
                hermes.talk(name, [f"apple of {chat}", f"birch of {chat}"])
                hermes.route(f"agent:main:telegram:dm:{chat}", name, **{flag: chat == "43"})
            for _ in range(2):
                await _imported(tmp_path, hermes)
                async with _house(tmp_path, back_end) as core:
                    backfill, provider = core.memory.backfill, back_end.made().name
                    await backfill.copy(provider, await backfill.backfill_candidates(provider))
                    await core.settled()
                    if (current := await core.lifecycle.current(_dm("42"))) is not None:
                        assert current.session_id == names["42"]
                    # A session that had expired in Hermes is not bound to a key.
                    assert await core.lifecycle.current(_dm("43")) is None
        for chat, name in names.items():
            turns = back_end.turns(name)
            assert [f"{word} of {chat}" in text for word, text in zip(("apple", "birch"), turns, strict=True)] == [
                True,
                True,
            ]
            assert len(back_end.closes(name)) <= 1

    async def test_s21_each_tool_call_acts_on_the_owner_of_its_own_turn(
        self, tmp_path: Path, back_end: ProviderBackend
    ) -> None:
        if back_end.tool is None:
            pytest.skip("it brings no tool that searches")
        name, argument = back_end.tool
        keys = {"ann": CLI, "bob": TELEGRAM}
        secrets = {"ann": "larkspur", "bob": "foxglove"}
        async with _house(tmp_path, back_end) as core:
            for owner, key in keys.items():
                await core.turn(key, f"the password is {secrets[owner]}", owner=owner)
            # Scheduled turns are not delivered to providers.
            scheduled = replace(CLI, chat="cron")
            await core.cross(scheduled, New(kind=SessionKind.CRON), owner="ann")
            await core.turn(scheduled, "the password is nightshade", owner="ann")
            await core.settled()
            provider = back_end.made().name
            deadline = time.monotonic() + back_end.settles_s + 1

            async def asked(owner: str) -> str:
                ref = await core.at(keys[owner])
                return await core.memory.handle_tool_call(provider, name, {argument: "password"}, ref=ref)

            for owner, word in secrets.items():
                while word not in await asked(owner):
                    assert time.monotonic() < deadline, f"{word} is not found"
            answers = await asyncio.gather(*(asked(owner) for owner in ("ann", "bob") * 5))
            for place, answer in enumerate(answers):
                own, others = ("larkspur", "foxglove") if place % 2 == 0 else ("foxglove", "larkspur")
                assert own in answer
                assert others not in answer
                assert "nightshade" not in answer


def _impatient(back_end: ProviderBackend) -> Limits:
    return replace(LIMITS, attempt_s_max=back_end.attempt_s)


async def _imported(folder: Path, hermes: HermesHome) -> None:
    command = (sys.executable, "-m", "everthread", "--home", str(folder), "import", "hermes", str(hermes.path))
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def _dm(chat: str) -> SessionKey:
    return SessionKey("main", "telegram", ChatType.DM, chat)


def _house(folder: Path, back_end: ProviderBackend, limits: Limits = LIMITS) -> CoreFixture:
    provider = back_end.made()
    return CoreFixture(folder, provider, limits=limits, settings={provider.name: back_end.settings})


async def _ref_of(folder: Path, back_end: ProviderBackend, session: str) -> SessionRef:
    async with CoreFixture(folder) as core:
        ref = await core.at(CLI)
    assert ref.session_id == session
    return ref


async def _awaited(returned: Any) -> None:
    if returned is not None:
        await returned
