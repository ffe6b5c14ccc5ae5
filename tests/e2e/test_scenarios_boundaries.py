"""Scenarios of session changes, as a user, a provider or a plugin observes them."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import CLI, ME, TELEGRAM, AsyncDiary, CoreFixture, Diary, Gate, ThreadDiary, opened, until

from everthread.domain.boundary import Boundary, Branch, Compress, New, Refusal, Reset, Resume, Rewind, Suspend
from everthread.domain.errors import BadBoundary, BadInput, Fenced, NotFound
from everthread.domain.model import (
    Inbound,
    Message,
    NoteAction,
    NoteTarget,
    Role,
    SessionKey,
)
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.lifecycle import NoteChange
from everthread.plugins import hookimpl

HOUR_S = 3600.0
IDLE = ResetPolicies(ResetPolicy(idle_s=HOUR_S))


class Watcher:
    """Plugin that records the finalized and reset sessions."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, str]] = []

    @hookimpl
    def on_session_finalize(self, session_id: str, platform: str) -> None:
        self.got.append(("finalize", session_id, platform))

    @hookimpl
    def on_session_reset(self, session_id: str, platform: str) -> None:
        self.got.append(("reset", session_id, platform))


# --- S01: the session id changes within a process ---


@pytest.mark.parametrize(
    ("name", "reason", "resets"),
    [
        ("new", "new_session", True),
        ("reset", "reset", True),
        ("resume", "resume", False),
        ("branch", "branch", False),
        ("compress", "compression", False),
    ],
)
async def test_s01_every_provider_receives_the_switch_once_before_any_turn_of_the_new_session(
    tmp_path: Path, name: str, reason: str, resets: bool
) -> None:
    diaries: list[Diary] = [AsyncDiary("a"), ThreadDiary("b"), AsyncDiary("c")]
    async with CoreFixture(tmp_path, *diaries) as core:
        earlier = (await core.turn(TELEGRAM, "earlier")).ref.session_id
        old = (await core.turn(CLI, "before")).ref.session_id
        boundary = {"new": New(), "reset": Reset(), "resume": Resume(earlier), "branch": Branch()}.get(
            name, await core.compression(CLI)
        )
        new = opened(await core.cross(CLI, boundary))
        await core.turn(CLI, "after")
        await core.settled()
    for diary in diaries:
        [switch] = [call for call in diary.book.of("on_session_switch", new) if call.more["reason"] == reason]
        assert switch.more["new_session_id"] == new
        assert switch.more["parent_session_id"] == ("" if resets else old)
        assert switch.more["reset"] is resets
        told = [call for call in diary.book.effects if call.session == new]
        [after] = [call for call in told if call.text == "after"]
        assert told.index(switch) < told.index(after)
        assert diary.book.told(old) == ["switch", "before", "end"]


@pytest.mark.parametrize("policy", [ResetPolicy(idle_s=HOUR_S), ResetPolicy(daily_hour=4)])
async def test_s01_after_an_expiry_the_switch_is_a_reset_with_its_reason(tmp_path: Path, policy: ResetPolicy) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary, policies=ResetPolicies(policy)) as core:
        old = (await core.turn(CLI, "before")).ref.session_id
        await core.later(25 * HOUR_S)
        await until(lambda: diary.book.of("on_session_end", old), "expired by its timer, with no message to come")
        new = (await core.turn(CLI, "after")).ref.session_id
        await core.settled()
    assert new != old
    [switch] = diary.book.of("on_session_switch", new)
    reason = "idle" if policy.idle_s else "daily"
    assert (switch.more["reset"], switch.more["parent_session_id"], switch.more["reason"]) == (True, "", reason)


async def test_s01_a_rewind_keeps_the_session_and_lists_the_removed_turns(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        ref = (await core.turn(CLI, "one")).ref
        await core.turn(CLI, "two")
        await core.cross(CLI, Rewind())
        await core.turn(CLI, "three")
        await core.settled()
        assert await core.shown(ref.session_id) == ["one", "three"]
    switch = diary.book.of("on_session_switch", ref.session_id)[-1]
    assert (switch.more["rewound"], switch.more["turns"]) == (True, (2,))
    assert diary.book.told(ref.session_id) == ["switch", "one", "two", "switch", "three"]


async def test_s01_a_compression_of_a_session_with_two_keys_is_delivered_once(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        old = (await core.turn(CLI, "one")).ref.session_id
        await core.cross(TELEGRAM, Resume(old))
        new = opened(await core.cross(CLI, await core.compression(CLI)))
        assert (await core.at(TELEGRAM)).session_id == new
        await core.turn(TELEGRAM, "two")
        await core.settled()
    assert diary.book.told(new) == ["switch", "two"]


# --- S02: a provider without the hook, or with an older signature ---


async def test_s02_providers_without_the_hook_or_with_an_older_signature_lose_nothing(tmp_path: Path) -> None:
    class NoSwitch:
        name = "no switch"

        def __init__(self) -> None:
            self.turns: list[str] = []

        def sync_turn(self, user: str, assistant: str, **more: Any) -> None:
            self.turns.append(user)

    class Older:
        name = "older"

        def __init__(self) -> None:
            self.got: list[tuple[str, ...]] = []

        def on_session_switch(self, new_session_id: str) -> None:
            self.got.append(("switch", new_session_id))

        async def sync_turn(self, user_content: str, assistant_content: str) -> None:
            self.got.append(("turn", user_content))

        def on_session_end(self, messages: list[Message]) -> None:
            self.got.append(("end", *(message.content for message in messages)))

    silent, older, today = NoSwitch(), Older(), AsyncDiary("today")
    async with CoreFixture(tmp_path, silent, older, object(), today) as core:
        old = (await core.turn(CLI, "one")).ref.session_id
        new = opened(await core.cross(CLI, New()))
        await core.turn(CLI, "two")
        await core.settled()
        assert await core.incidents() == []
    assert sorted(silent.turns) == ["one", "two"]
    of_old = [("switch", old), ("turn", "one"), ("end", "one", "re one")]
    assert [got for got in older.got if got in of_old] == of_old
    assert [got for got in older.got if got not in of_old] == [("switch", new), ("turn", "two")]
    assert today.book.told(old) == ["switch", "one", "end"]


# --- S04: an empty or missing new id ---


async def test_s04_an_empty_or_unknown_target_changes_nothing(tmp_path: Path) -> None:
    diary, watcher = AsyncDiary(), Watcher()
    async with CoreFixture(tmp_path, diary, plugins=(watcher,)) as core:
        await core.turn(CLI, "one")
        await core.settled()
        before = (await core.at(CLI), diary.book.effects, await core.session((await core.at(CLI)).session_id))
        crossing = await core.cross(CLI, Resume(""))
        assert (crossing.refusal, crossing.ref) == (Refusal.NOTHING_THERE, before[0])
        with pytest.raises(NotFound):
            await core.cross(CLI, Resume("no such session"))
        await core.settled()
        assert (await core.at(CLI), diary.book.effects, await core.session(before[2].id)) == before
        assert watcher.got == []
        assert len(await core.store.read(lambda uow: uow.sessions.boundaries(limit=9))) == 1
        await core.turn(CLI, "two")
        assert await core.shown(before[2].id) == ["one", "two"]


async def test_s04_stopping_a_process_without_open_sessions_changes_nothing(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, AsyncDiary()) as core:
        assert await core.lifecycle.suspend(close_memory=True) == ()
        assert (await core.cross(CLI, Suspend())).refusal is Refusal.NOTHING_THERE
        assert await core.lifecycle.current(CLI) is None


# --- S05: a switch without a given parent ---


async def test_s05_resuming_without_a_current_session_keeps_the_known_parent(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary, policies=IDLE) as core:
        parent = (await core.turn(CLI, "one")).ref.session_id
        child = opened(await core.cross(CLI, Branch()))
        await core.turn(CLI, "two")
        await core.later(2 * HOUR_S)
        await until(lambda: diary.book.of("on_session_end", child))
        # The key has no session now, so no previous session can be named.
        assert await core.lifecycle.current(CLI) is None
        assert opened(await core.cross(CLI, Resume(child))) == child
        await core.settled()
        assert (await core.session(child)).parent_id == parent
    assert [call.more["parent_session_id"] for call in diary.book.of("on_session_switch", child)] == [parent, parent]


async def test_s05_resuming_from_another_session_does_not_rewrite_the_lineage(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        parent = (await core.turn(CLI, "one")).ref.session_id
        child = opened(await core.cross(CLI, Branch()))
        await core.cross(CLI, New())
        await core.cross(CLI, Resume(child))
        assert (await core.session(child)).parent_id == parent
        assert await core.shown(child) == ["one"]


# --- S19: finalize and reset hooks ---


async def test_s19_new_finalizes_the_old_session_and_then_resets_the_new_one(tmp_path: Path) -> None:
    watcher = Watcher()
    async with CoreFixture(tmp_path, plugins=(watcher,)) as core:
        old = (await core.turn(TELEGRAM, "one")).ref.session_id
        new = opened(await core.cross(TELEGRAM, New()))
        await core.settled()
    assert watcher.got == [("finalize", old, "telegram"), ("reset", new, "telegram")]


async def test_s19_expiry_finalizes_at_once_and_resets_on_the_next_message(tmp_path: Path) -> None:
    watcher = Watcher()
    async with CoreFixture(tmp_path, plugins=(watcher,), policies=IDLE) as core:
        old = (await core.turn(TELEGRAM, "one")).ref.session_id
        await core.later(2 * HOUR_S)
        await until(lambda: watcher.got)
        assert watcher.got == [("finalize", old, "telegram")]
        new = (await core.turn(TELEGRAM, "two")).ref.session_id
        await core.settled()
    assert watcher.got == [("finalize", old, "telegram"), ("reset", new, "telegram")]


async def test_s19_shutdown_finalizes_every_session_of_this_process_and_ends_none(tmp_path: Path) -> None:
    watcher = Watcher()
    async with CoreFixture(tmp_path) as another:
        await another.turn(SessionKey.parse("agent:main:matrix:dm:9"), "elsewhere")
    async with CoreFixture(tmp_path, plugins=(watcher,)) as core:
        served = {(await core.turn(key, "one")).ref.session_id: key for key in (CLI, TELEGRAM)}
        await core.lifecycle.suspend()
        await core.settled()
        assert sorted(watcher.got) == sorted(("finalize", sid, key.platform) for sid, key in served.items())
        await core.lifecycle.suspend()
        await core.settled()
        assert len(watcher.got) == 2
        for session_id, key in served.items():
            assert (await core.at(key)).session_id == session_id
            assert (await core.session(session_id)).ended_at is None


async def test_s19_a_plugin_hook_that_raises_or_hangs_has_no_other_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Bad:
        @hookimpl
        def on_session_finalize(self) -> None:
            raise ValueError("bad plugin")

    class Stuck:
        @hookimpl
        def on_session_reset(self) -> None:
            gate.wait()

    watcher, diary = Watcher(), AsyncDiary()
    with Gate() as gate, caplog.at_level(logging.WARNING):
        async with CoreFixture(tmp_path, diary, plugins=(watcher, Bad(), Stuck())) as core:
            old = (await core.turn(CLI, "one")).ref.session_id
            async with asyncio.timeout(2):
                new = opened(await core.cross(CLI, New()))
                await core.turn(CLI, "two")
            await core.settled()
            assert await core.shown(new) == ["two"]
            incidents = " ".join(await core.incidents())
    assert watcher.got == [("finalize", old, "cli"), ("reset", new, "cli")]
    assert diary.book.told(old) == ["switch", "one", "end"]
    for text in (incidents, caplog.text):
        assert "bad plugin" in text
        assert "no return within" in text


# --- S26: a boundary called with wrong arguments ---


@pytest.mark.parametrize("mistake", [None, "new", New, {"kind": "new"}, SessionKey])
async def test_s26_an_argument_that_is_not_a_boundary_raises_an_error(tmp_path: Path, mistake: Any) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.turn(CLI, "one")
        before = await core.at(CLI)
        with pytest.raises(TypeError, match="is not a boundary"):
            await core.cross(CLI, mistake)
        assert await core.at(CLI) == before


@pytest.mark.parametrize("mistake", [Rewind(0), Rewind(-1), Compress("", 0, "", 0)])
async def test_s26_a_boundary_with_invalid_numbers_is_an_error_or_a_refusal(tmp_path: Path, mistake: Boundary) -> None:
    async with CoreFixture(tmp_path) as core:
        ref = (await core.turn(CLI, "one")).ref
        if isinstance(mistake, Compress):
            assert (await core.cross(CLI, mistake)).refusal is Refusal.STALE
            with pytest.raises(BadBoundary):
                await core.cross(CLI, Compress(ref.session_id, ref.generation, "so far", 99))
        else:
            with pytest.raises(BadBoundary):
                await core.cross(CLI, mistake)
        assert await core.at(CLI) == ref


async def test_s26_a_missing_or_invalid_argument_is_reported(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        with pytest.raises(TypeError, match="owner"):
            await core.lifecycle.cross(CLI, New())  # pyright: ignore[reportCallIssue]
        for owner in ("", "x" * 1000):
            with pytest.raises(BadInput, match="an owner has"):
                await core.cross(CLI, New(), owner=owner)
        with pytest.raises(TypeError, match="is not a session key"):
            await core.lifecycle.cross("agent:main:cli:dm:1", Rewind(), owner=ME)  # pyright: ignore
        assert await core.lifecycle.current(CLI) is None


async def test_s26_a_turn_claim_that_was_already_used_is_refused(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.lifecycle.accept(Inbound(CLI, ME, "one"))
        ticket = await core.lifecycle.begin_turn(CLI)
        assert ticket is not None
        messages = [Message(Role.USER, "one")]
        await core.lifecycle.commit_turn(ticket, messages, None)
        with pytest.raises(Fenced):
            await core.lifecycle.commit_turn(ticket, messages, None)
        assert await core.shown(ticket.ref.session_id) == ["one"]


async def test_s26_a_note_for_an_unknown_session_is_an_error(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        ref = (await core.turn(CLI, "one", owner="you")).ref
        with pytest.raises(NotFound):
            await core.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "x"), owner=ME, ref=ref)
