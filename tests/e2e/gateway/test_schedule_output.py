"""Results of scheduled tasks in files and webhooks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.gateway import GatewayFixture, gateway_fixture
from tests.runtime import until

from everthread.config.schema import ScheduleSettings, Variables
from everthread.domain.model import NoteAction, NoteTarget
from everthread.domain.schedule import Occurrence, OccurrenceState, Target, TargetKind
from everthread.gateway import schedule_output
from everthread.gateway import scheduler as schedule
from everthread.gateway.schedule_output import signature
from everthread.lifecycle import ForgetFact, NoteChange
from everthread.lifecycle.schedules import NewSchedule
from everthread.testing.model_server.http import HttpRequest, HttpServer, read_request, respond
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

pytestmark = pytest.mark.timeout(60)

HOUR = 3600.0
CHAT = Target(TargetKind.CHAT, "agent:main:fake:dm:42")
WISH = NewSchedule("me", "every 1h", "UTC", "Say good morning", target=CHAT)


def echo(request: Any) -> Say:
    said = [message.content for message in request.messages if message.role == "user"]
    return Say(f"You said {said[-1].splitlines()[-1]} ({len(said)})")


async def times(fixture: GatewayFixture) -> tuple[Occurrence, ...]:
    (schedule,) = await fixture.runtime.store.read(lambda uow: uow.schedules.all())
    return await fixture.runtime.store.read(lambda uow: uow.schedules.occurrences(schedule.id, 100))


class Listener(HttpServer):
    """Webhook receiver that returns the given statuses, then 200."""

    def __init__(self, *statuses: int) -> None:
        super().__init__()
        self.statuses, self.heard = list(statuses), list[HttpRequest]()

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        _, request = await read_request(reader)
        self.heard.append(request)
        return await respond(writer, self.statuses.pop(0) if self.statuses else 200, b"")

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


async def over(fixture: GatewayFixture, count: int = 1) -> tuple[Occurrence, ...]:
    """Wait until `count` occurrences of the task have ended and return them."""
    ended: list[tuple[Occurrence, ...]] = [()]

    async def look() -> bool:
        found = [time for time in await times(fixture) if time.ended_at is not None and time.retry_at == 0]
        ended.append(tuple(time for time in found if time.state is not OccurrenceState.DELIVERING))
        return len(ended[-1]) >= count

    for _ in range(800):
        if await look():
            await fixture.rest()
            return ended[-1]
        await asyncio.sleep(0.01)
    raise AssertionError(f"not over: {await times(fixture)}")


async def test_results_are_written_to_files_readable_by_their_owner_only(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    async with (
        ModelServer(echo) as model,
        gateway_fixture(tmp_path / "home", model, schedule=ScheduleSettings(folders=(reports,))) as fixture,
    ):
        scheduling = fixture.runtime.scheduling
        await scheduling.add(replace(WISH, name="one", target=Target(TargetKind.FILE, "morning.txt")))
        await scheduling.add(
            replace(WISH, name="log", target=Target(TargetKind.APPEND, str(reports / "a" / "log.txt")))
        )
        await scheduling.add(replace(WISH, name="out", target=Target(TargetKind.FILE, str(tmp_path / "elsewhere"))))
        file, log = tmp_path / "home" / "files" / "morning.txt", reports / "a" / "log.txt"
        for count in (1, 2):
            await fixture.later(HOUR)
            await until(lambda count=count: log.exists() and len(log.read_text().splitlines()) == count)
            await until(lambda: fixture.gateway.scheduler.running == 0)
        assert file.read_text() == "You said Say good morning (1)\n"
        assert log.read_text() == "You said Say good morning (1)\n" * 2
        assert [path.stat().st_mode & 0o777 for path in (file, log)] == [0o600, 0o600]
        assert not (tmp_path / "elsewhere").exists()
        out = await scheduling.find("me", "out")
        (last, _) = await fixture.runtime.store.read(lambda uow: uow.schedules.occurrences(out.id, 2))
        assert last.state is OccurrenceState.FAILED
        assert "schedule.folders" in last.problem


async def test_a_webhook_is_signed_and_retried_while_unreachable(tmp_path: Path) -> None:
    variables = Variables({"HOOK_SECRET": "s3cret"})
    async with (
        ModelServer(echo) as model,
        Listener(500) as listener,
        gateway_fixture(tmp_path, model, variables=variables) as fixture,
    ):
        url = f"{listener.address}/told?key=1"
        await fixture.runtime.scheduling.add(replace(WISH, target=Target(TargetKind.WEBHOOK, url, "HOOK_SECRET")))
        await fixture.later(HOUR)
        await until(lambda: len(listener.heard) == 1)
        await until(lambda: fixture.gateway.scheduler.running == 0)
        (time,) = await times(fixture)
        assert time.state is OccurrenceState.DELIVERING
        await fixture.later(15)
        await until(lambda: len(listener.heard) == 2)
        await until(lambda: fixture.gateway.scheduler.running == 0)
        (time,) = await times(fixture)
        assert (time.state, time.attempts) == (OccurrenceState.DONE, 2)
        first, second = listener.heard
        assert first.headers["x-delivery"] == second.headers["x-delivery"]
        assert second.headers["x-signature"] == signature("s3cret", second.headers["x-timestamp"], second.body)
        said = json.loads(second.body)
        assert (said["ok"], said["text"], said["schedule"]) == (
            True,
            "You said Say good morning (1)",
            "say-good-morning",
        )


async def test_a_webhook_that_refuses_is_not_retried(tmp_path: Path) -> None:
    variables = Variables({"HOOK_SECRET": "s3cret"})
    async with (
        ModelServer(echo) as model,
        Listener(404) as listener,
        gateway_fixture(tmp_path, model, variables=variables) as fixture,
    ):
        target = Target(TargetKind.WEBHOOK, f"{listener.address}/x", "HOOK_SECRET")
        await fixture.runtime.scheduling.add(replace(WISH, target=target))
        await fixture.later(HOUR)
        await until(lambda: len(listener.heard) == 1)
        (time,) = await over(fixture)
        assert time.state is OccurrenceState.FAILED
        assert "404" in time.problem


async def test_an_unexpected_delivery_failure_is_given_up_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def fail(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(schedule, "deliver", fail)
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model) as fixture:
        await fixture.runtime.scheduling.add(replace(WISH, target=Target(TargetKind.FILE, "told.txt")))
        await fixture.later(HOUR)
        for number in range(1, schedule.DELIVERY_ATTEMPTS_MAX + 1):
            await until(lambda number=number: tries == number)
            await until(lambda: fixture.gateway.scheduler.running == 0)
            (time,) = await times(fixture)
            assert time.state is OccurrenceState.DELIVERING
            await fixture.later(schedule.CLAIM_S + 1)
        while (time := (await times(fixture))[0]).state is OccurrenceState.DELIVERING:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
        assert (time.state, tries) == (OccurrenceState.FAILED, schedule.DELIVERY_ATTEMPTS_MAX)
        assert "failed 12 times" in time.problem


FACT = "the gate code is 4711"


async def forget(fixture: GatewayFixture) -> None:
    lifecycle = fixture.runtime.lifecycle
    note = await lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.MEMORY, FACT), owner="me")
    await lifecycle.forget(ForgetFact(note.note_id), owner="me")


async def test_a_webhook_is_not_sent_words_that_were_forgotten_after_a_failed_attempt(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say(f"Remember: {FACT}")) as model,
        Listener(500) as listener,
        gateway_fixture(tmp_path, model, variables=Variables({"HOOK_SECRET": "s3cret"})) as fixture,
    ):
        target = Target(TargetKind.WEBHOOK, listener.address, "HOOK_SECRET")
        await fixture.runtime.scheduling.add(replace(WISH, name="the-gate-code-is-4711", target=target))
        await fixture.later(HOUR)
        await until(lambda: len(listener.heard) == 1)
        await until(lambda: fixture.gateway.scheduler.running == 0)
        assert "4711" in listener.heard[0].body.decode()
        await forget(fixture)
        await fixture.later(15)
        await until(lambda: len(listener.heard) == 2)
        assert json.loads(listener.heard[1].body)["text"] == "Remember: [forgotten]"
        assert "4711" not in listener.heard[1].body.decode()


@pytest.mark.parametrize("kind", [TargetKind.FILE, TargetKind.APPEND])
async def test_a_file_is_written_again_without_words_that_are_forgotten_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TargetKind
) -> None:
    async with ModelServer(lambda _: Say(f"Remember: {FACT}")) as model, gateway_fixture(tmp_path, model) as fixture:
        loop, waiting = asyncio.get_running_loop(), [forget]
        file = tmp_path / "files" / "told.txt"
        file.parent.mkdir()
        file.write_text("before\n")
        name = "_append" if kind is TargetKind.APPEND else "_replace"
        write = getattr(schedule_output, name)

        def write_late(*arguments: Any) -> None:
            """Forget the fact after the result was read."""
            if waiting:
                asyncio.run_coroutine_threadsafe(waiting.pop()(fixture), loop).result(20)
            write(*arguments)

        monkeypatch.setattr(schedule_output, name, write_late)
        await fixture.runtime.scheduling.add(replace(WISH, target=Target(kind, "told.txt")))
        await fixture.later(HOUR)
        (time,) = await over(fixture)
        assert time.state is OccurrenceState.DONE
        before = "before\n" if kind is TargetKind.APPEND else ""
        assert file.read_text() == f"{before}Remember: [forgotten]\n"


async def test_a_file_that_grew_meanwhile_is_reported_and_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(lambda _: Say(f"Remember: {FACT}")) as model, gateway_fixture(tmp_path, model) as fixture:
        loop, waiting = asyncio.get_running_loop(), [forget]
        file = tmp_path / "files" / "told.txt"
        write = schedule_output._append  # noqa: SLF001 - wrapped below # pyright: ignore[reportPrivateUsage]

        def write_late(*arguments: Any) -> None:
            write(*arguments)
            if waiting:
                asyncio.run_coroutine_threadsafe(waiting.pop()(fixture), loop).result(20)
                file.write_text(f"{file.read_text()}by hand\n")

        monkeypatch.setattr(schedule_output, "_append", write_late)
        await fixture.runtime.scheduling.add(replace(WISH, target=Target(TargetKind.APPEND, "told.txt")))
        await fixture.later(HOUR)
        (time,) = await over(fixture)
        assert time.state is OccurrenceState.FAILED
        assert time.problem.endswith("told.txt may contain forgotten words; edit or remove it")
        assert file.read_text() == f"Remember: {FACT}\nby hand\n"


def test_a_text_is_replaced_although_the_new_one_is_its_end(tmp_path: Path) -> None:
    append = schedule_output._append  # noqa: SLF001 - an answer that ends like this can't be planned # pyright: ignore[reportPrivateUsage]
    file = tmp_path / "told.txt"
    for written, erased in ((b"secret words\n", b"\n"), (b"4711 [forgotten]\n", b"[forgotten]\n")):
        file.write_bytes(b"before\n")
        append(file, written, True)
        append(file, erased, True, written)
        assert file.read_bytes() == b"before\n" + erased
