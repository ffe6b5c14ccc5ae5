"""Numbered scenarios of problems reported for other agents: on a fake platform and on the emulated Bot API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.platform_scenarios import Where, ended, later, platform_fixture, running, seen, session_of, turns_of
from tests.runtime import AsyncDiary, until

from everthread.config.schema import CompressionSettings, GatewaySettings, ReviewSettings
from everthread.domain.model import NoteTarget, Role, Session, SessionRef, ToolCall, TurnStatus
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.domain.schedule import Target, TargetKind
from everthread.lifecycle import ForgetSession
from everthread.lifecycle.schedules import NewSchedule
from everthread.ports.memory import RecallItem
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

pytestmark = [pytest.mark.timeout(60), pytest.mark.parametrize("where", ["fake", "telegram"])]

HOUR_S = 3600.0
IDLE = ResetPolicies(ResetPolicy(idle_s=HOUR_S))
DAILY = ResetPolicies(ResetPolicy(daily_hour=4))
SLOW = Say("slowly " * 100, chunks=100, delay_s=0.05)


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the locks that all homes share in the directory of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def model(slow: str = "") -> ModelServer:
    """Model server that quotes the newest message, and is slow if it starts with `slow`."""

    def script(request: Any) -> Say:
        last = [str(message.content) for message in request.messages if message.role == "user"][-1]
        return SLOW if slow and last.startswith(slow) else Say(f"You said: {last.splitlines()[0]}")

    return ModelServer(script)


class Witness(AsyncDiary):
    """Provider that also records the hooks that run beside a turn, and offers a tool."""

    def __init__(self) -> None:
        super().__init__("witness")
        self.asked: list[tuple[str, SessionRef]] = []

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return [{"name": "pin", "description": "Pin a text.", "parameters": {"type": "object", "properties": {}}}]

    async def handle_tool_call(self, name: str, args: Any, *, ref: SessionRef) -> str:
        return self._seen("handle_tool_call", ref)

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> list[RecallItem]:
        self._seen("prefetch", ref)
        return []

    def system_prompt_block(self, *, ref: SessionRef) -> str:
        return self._seen("system_prompt_block", ref)

    async def on_turn_start(self, user: str, *, ref: SessionRef) -> None:
        self._seen("on_turn_start", ref)

    async def queue_prefetch(self, query: str, *, ref: SessionRef) -> None:
        self._seen("queue_prefetch", ref)

    def _seen(self, hook: str, ref: SessionRef) -> str:
        self.asked.append((hook, ref))
        return "seen"

    def hooks(self, session_id: str) -> set[str]:
        """Hooks that were called for a session."""
        told = {call.hook for call in self.book.begun if call.session == session_id}
        return told | {hook for hook, ref in self.asked if ref.session_id == session_id}


@pytest.mark.parametrize("continues", [False, True])
async def test_s15_scheduled_runs_and_their_expiry_reach_no_provider_and_no_review(
    tmp_path: Path, where: Where, continues: bool
) -> None:
    """Two runs of a task whose model tries to write memory. Each turn would be reviewed, if a person had written it."""
    witness, policies = Witness(), ResetPolicies(ResetPolicy(idle_s=HOUR_S), {"cron": ResetPolicy(idle_s=HOUR_S)})
    note = '{"action": "add", "target": "user", "content": "Sails"}'

    def script(request: Any) -> Say:
        if "[A review." in str(request):
            return Say("Nothing to note.")
        if "do your work" in str(request) and request.messages[-1].role != "tool":
            return Say(calls=(ToolCall("c1", "memory", note), ToolCall("c2", "pin", "{}")))
        return Say("Done.")

    async with (
        ModelServer(script) as server,
        platform_fixture(
            where,
            tmp_path,
            server,
            providers=(witness,),
            policies=policies,
            review=ReviewSettings(every_turns=1),
            gateway=GatewaySettings(links={"me": ("fake:42", "telegram:4001")}),
        ) as fixture,
    ):
        # A bot can only write to users who have written to it.
        await fixture.hear("/help")
        task = NewSchedule(
            "me",
            "every 1m",
            "UTC",
            "do your work",
            target=Target(TargetKind.CHAT, str(fixture.ann)),
            continues=continues,
        )
        schedule = await fixture.runtime.scheduling.add(task)
        for count in (1, 2):
            await later(fixture, 61.0)
            await seen(fixture, lambda texts, count=count: texts[1:] == ["Done."] * count, f"the answer of run {count}")
        await fixture.runtime.scheduling.pause(schedule)
        runs = await fixture.runtime.store.read(lambda uow: uow.schedules.occurrences(schedule.id, 10))
        sessions = {run.session_id or "" for run in runs}
        assert len(sessions) == (1 if continues else 2)
        await later(fixture, 2 * HOUR_S)
        for session_id in sessions:
            await ended(fixture, session_id)
            turns = await turns_of(fixture, session_id)
            assert len(turns) == (2 if continues else 1)
            assert all(sum(message.role is Role.TOOL for message in turn.messages) == 2 for turn in turns)
        assert await fixture.runtime.drain(8.0)
        assert not await fixture.runtime.store.read(lambda uow: uow.reviews.is_due(fixture.clock.now() + 10**6))
        assert [witness.hooks(session_id) for session_id in sessions] == [set()] * len(sessions)
        assert await fixture.runtime.store.read(lambda uow: uow.notes.current("me", NoteTarget.USER)) == ()

        # The same for a person: memory and reviews are on.
        await fixture.hear("hello")
        await until(lambda: any(b"[A review." in body for body in server.requests), "the review of the person's turn")
        await until(lambda: "queue_prefetch" in {hook for hook, _ in witness.asked})
        assert await fixture.runtime.drain(8.0)
        beside = {"prefetch", "system_prompt_block", "on_turn_start", "queue_prefetch"}
        assert witness.hooks((await session_of(fixture)).id) == {"on_session_switch", "sync_turn", *beside}
        assert not any(b"do your work" in body for body in server.requests if b"[A review." in body)


@pytest.mark.parametrize("how", ["idle", "daily", "new"])
async def test_s16_the_next_message_runs_in_the_new_session_and_not_in_the_old(
    tmp_path: Path, where: Where, how: str
) -> None:
    policies = DAILY if how == "daily" else IDLE
    async with model() as server, platform_fixture(where, tmp_path, server, policies=policies) as fixture:
        await fixture.hear("apple")
        old = (await session_of(fixture)).id
        if how == "new":
            await fixture.hear("/new")
        else:
            fixture.clock.advance(25 * HOUR_S)
        await fixture.hear("two")
        await fixture.hear("three")
        new = (await session_of(fixture)).id
        assert new != old
        assert [turn.user_text for turn in await turns_of(fixture, old)] == ["apple"]
        assert [turn.user_text for turn in await turns_of(fixture, new)] == ["two", "three"]
        asked = server.requests[-1]
        assert b"three" in asked
        assert b"two" in asked
        assert b"apple" not in asked


async def test_s17_after_resume_the_next_message_has_the_resumed_history(tmp_path: Path, where: Where) -> None:
    diary = AsyncDiary()
    async with model(slow="long") as server, platform_fixture(where, tmp_path, server, providers=(diary,)) as fixture:
        await fixture.hear("the lamp is green")
        first = (await session_of(fixture)).id
        await fixture.hear("/new")
        await running(fixture, "long story")
        await fixture.hear(f"/resume {first}")
        await fixture.hear("which colour?")
        assert (await session_of(fixture)).id == first
        assert b"the lamp is green" in server.requests[-1]
        assert await fixture.runtime.drain(8.0)
        assert diary.book.of("sync_turn", first)[-1].text == "which colour?"
        assert [turn.user_text for turn in await turns_of(fixture, first)] == ["the lamp is green", "which colour?"]


@pytest.mark.parametrize("stream", [False, True])
async def test_s18_a_late_turn_stays_in_the_old_session_and_its_reply_is_not_posted(
    tmp_path: Path, where: Where, stream: bool
) -> None:
    async with model(slow="long") as server, platform_fixture(where, tmp_path, server, stream=stream) as fixture:
        old = await running(fixture, "long story")
        if stream:
            await seen(fixture, lambda texts: texts, "a beginning")
        await fixture.hear("/new")
        assert (await fixture.hear("hello"))[-1] == "You said: hello"
        begun = [text for text in await fixture.texts() if "slowly" in text]
        assert all(text.endswith("(stopped)") for text in begun)
        assert len(begun) == stream
        (late,) = await turns_of(fixture, old)
        assert late.status is TurnStatus.LATE
        assert await fixture.runtime.store.read(lambda uow: uow.slots.of_session(old)) == ()


async def test_s22_resume_finds_the_newest_session_of_a_title_and_lists_without_one(
    tmp_path: Path, where: Where
) -> None:
    async with model() as server, platform_fixture(where, tmp_path, server) as fixture:
        await fixture.hear("hello")
        await fixture.hear("/title My Project")
        mine = (await session_of(fixture)).id
        await fixture.hear("/new")
        await fixture.hear("something else")
        (listed,) = await fixture.hear("/resume")
        assert "My Project" in listed
        assert f"/resume {mine}" in await fixture.offered()
        (back,) = await fixture.hear("/resume My Project")
        assert "Resumed" in back
        assert (await session_of(fixture)).id == mine
        assert "already" in (await fixture.hear("/resume My Project"))[0]
        assert "Did you mean" in (await fixture.hear("/resume My Projekt"))[0]
        assert "no session" in (await fixture.hear("/resume zzzz"))[0]


async def test_s22_a_title_shared_by_a_lineage_resumes_its_newest_session(tmp_path: Path, where: Where) -> None:
    """A compression and two branches continue one titled conversation."""

    def script(request: Any) -> Say:
        text = [str(message.content) for message in request.messages if message.role == "user"][-1]
        if "Bring the summary" in str(request):
            return Say("## Facts\n- the boat is called Bruno")
        return Say("of boats and masts " * 200 if text.startswith("tell") else f"You said: {text.splitlines()[0]}")

    async with (
        ModelServer(script) as server,
        platform_fixture(where, tmp_path, server, compression=CompressionSettings(tail_tokens=100)) as fixture,
    ):
        for _ in range(3):
            await fixture.hear("tell me more")
        await fixture.hear("/title My Project")
        compressed = await session_of(fixture)
        assert "still stored" in (await fixture.hear("/compress"))[0]
        second = await session_of(fixture)
        await fixture.hear("the second way")
        await fixture.hear("/branch")
        third = await session_of(fixture)
        await fixture.hear("the third way")
        assert (second.title, third.title) == ("My Project #2", "My Project #3")

        await fixture.hear("/new")
        await fixture.hear("something else")
        assert "such as 'my project #4'" in (await fixture.hear("/title my project"))[0]
        for command in ("/resume", "/sessions"):
            (listed,) = await fixture.hear(command)
            rows = [line for line in listed.splitlines() if "My Project" in line]
            assert [row.rpartition("  ")[2] for row in rows] == ["My Project #3", "My Project #2"], listed
        await fixture.hear("/resume")
        offered = await fixture.offered()
        assert [name for name in offered if name.split()[-1] in (compressed.id, second.id, third.id)] == [
            f"/resume {third.id}",
            f"/resume {second.id}",
        ]

        async def resumes(name: str, wanted: Session, before: str, absent: str) -> None:
            await fixture.hear("/new")
            (answer,) = await fixture.hear(f"/resume {name}")
            assert answer.startswith(f'Resumed "{wanted.title}"'), answer
            assert (await session_of(fixture)).id == wanted.id
            assert await fixture.hear("go on") == ["You said: go on"]
            # The last message may have something recalled from the other sessions.
            history = str(json.loads(server.requests[-1])["messages"][:-1])
            assert [text in history for text in ("called Bruno", before, absent)] == [True, True, False]
            # The number of messages in a minute is limited.
            fixture.clock.advance(60.0)

        await resumes("my project", third, "the third way", "the fourth way")
        await resumes("My Project #2", second, "the second way", "the third way")
        await resumes(compressed.id, second, "the second way", "the third way")
        # The older branch is continued in a newer session, which the title finds from now on.
        await fixture.hear("/branch")
        fourth = await session_of(fixture)
        await fixture.hear("the fourth way")
        assert fourth.title == "My Project #4"
        await resumes("My Project", fourth, "the fourth way", "the third way")
        await resumes("My Project #3", third, "the third way", "the fourth way")
        await fixture.runtime.lifecycle.forget(ForgetSession(fourth.id), owner=fourth.owner)
        await resumes("My Project", third, "the third way", "the fourth way")


async def test_s22_the_session_of_another_user_cannot_be_resumed(tmp_path: Path, where: Where) -> None:
    async with model() as server, platform_fixture(where, tmp_path, server) as fixture:
        await fixture.hear("secret plan")
        await fixture.hear("/title My Project")
        mine = (await session_of(fixture)).id
        await fixture.hear("hi", "bob")
        for name in ("My Project", mine, mine[:12], "1"):
            (answer,) = await fixture.hear(f"/resume {name}", "bob")
            assert "no session" in answer.lower() or "no other" in answer, answer
            assert "secret" not in answer


async def test_s30_messages_queued_before_new_are_set_aside_and_later_ones_open_the_new_session(
    tmp_path: Path, where: Where
) -> None:
    """m2 and m3 wait behind the answer to m1 when /new arrives; m4 comes after it."""
    diary = AsyncDiary()
    async with (
        model(slow="m1") as server,
        platform_fixture(where, tmp_path, server, providers=(diary,)) as fixture,
    ):
        old = await running(fixture, "m1")
        for text in ("m2", "m3", "/new", "m4"):
            await fixture.say(text)
        await seen(fixture, lambda texts: "You said: m4" in texts, "the answer to m4")
        await until(lambda: not fixture.gateway.worker.busy and not fixture.gateway.outbox.waiting, "rest")
        confirmation, answer = await fixture.texts()
        assert answer == "You said: m4"
        assert "new session" in confirmation
        assert 'The answer to "m1" was stopped' in confirmation
        assert 'Set aside without an answer: "m2", "m3".' in confirmation
        new = (await session_of(fixture)).id
        assert [(turn.user_text, turn.status) for turn in await turns_of(fixture, old)] == [
            ("m2", TurnStatus.SET_ASIDE),
            ("m3", TurnStatus.SET_ASIDE),
            ("m1", TurnStatus.LATE),
        ]
        assert [(turn.user_text, turn.status) for turn in await turns_of(fixture, new)] == [("m4", TurnStatus.DONE)]
        asked = [body for body in server.requests if b"Name the conversation" not in body]
        assert [[text in body for text in (b'"m1', b'"m2', b'"m3', b'"m4')] for body in asked] == [
            [True, False, False, False],
            [False, False, False, True],
        ]
        assert await fixture.runtime.drain(8.0)
        assert diary.book.told(new) == ["switch", "m4"]
        assert not {"m2", "m3", "m4"} & set(diary.book.told(old))


@pytest.mark.parametrize("command", ["/sessions", "/resume", "/resume My Project", "/memory", "/search plan"])
async def test_s22_private_data_is_not_shown_in_a_group(tmp_path: Path, where: Where, command: str) -> None:
    """In a group each user has a session of their own, and all members read the replies."""
    async with model() as server, platform_fixture(where, tmp_path, server) as fixture:
        await fixture.hear("secret plan")
        await fixture.hear("/title My Project")
        await fixture.say_in_a_group(command)
        await until(lambda: fixture.gateway.outbox.waiting == 0 and not fixture.gateway.worker.busy, "rest")
        for _ in range(1000):
            if await fixture.group_texts():
                break
            await fixture.clock.sleep(0.01)
        assert await fixture.group_texts() == ["Ask me that in a private chat: here others would read it."]
