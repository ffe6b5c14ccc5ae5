"""Health checks and metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.damaged_files import damage_table
from tests.http_gateway import http_gateway
from tests.runtime import FailingClock, until

from everthread.domain.errors import StoreCorrupt
from everthread.domain.model import NoteAction, NoteTarget, NoteVersion
from everthread.store.derived_text import WRITTEN
from everthread.testing.model_server.replies import Fail, Say
from everthread.testing.model_server.server import ModelServer
from everthread.testing.recording_provider import RecordingProvider

MODEL = lambda _: Say("Hello.")  # noqa: E731


async def test_metrics_count_messages_requests_and_entries(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model, providers=(RecordingProvider(),)) as fixture:
        await fixture.say("hello", X_Session_Key="desk")
        await fixture.rest()
        lines = (await fixture.ask("GET", "/metrics")).body.decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert values["everthread_messages_taken_total"] == "1"
        assert values["everthread_messages_answered_total"] == "1"
        assert values['everthread_platform_up{platform="fake"}'] == "1"
        assert values['everthread_http_requests_total{status="200"}'] == "1"
        assert float(values["everthread_resident_memory_bytes"]) > 10_000_000
        assert 'everthread_journal_waiting{provider="recording"}' in values
        assert (await fixture.ask("GET", "/ready")).json == {"status": "ready"}


async def test_metrics_are_for_the_owner_only(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Fail(400)) as model, http_gateway(tmp_path, model) as fixture:
        assert (await fixture.ask("GET", "/metrics")).status == 200, "without tokens, local requests act as the owner"
        guest, mine = await fixture.token("bea"), await fixture.token("me")
        refused = await fixture.ask("GET", "/metrics", token=guest)
        assert (refused.status, refused.code) == (403, "not_yours")
        assert (await fixture.ask("GET", "/metrics", token=mine)).status == 200


async def test_a_damaged_store_is_not_ready(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        store = fixture.gateway.store
        assert await store.tidy()
        damage_table(fixture.gateway.settings.db_path, "note_versions")
        note = NoteVersion("n", 1, "me", NoteTarget.USER, NoteAction.ADD, "keeps bees", "s", None, 1.0)
        with pytest.raises(StoreCorrupt):
            await store.write(lambda uow: uow.derived.put_note(note, WRITTEN))
        refused = await fixture.ask("GET", "/ready")
        assert (refused.status, refused.code) == (503, "store_damaged")
        assert str(tmp_path) not in refused.body.decode(), "anyone may ask"


async def test_a_gateway_without_background_delivery_is_not_ready(tmp_path: Path) -> None:
    clock = FailingClock()
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model, clock=clock) as fixture:
        clock.is_failing = True
        await until(lambda: fixture.gateway.delivery_problem)
        refused = await fixture.ask("GET", "/ready")
        assert (refused.status, refused.code) == (503, "delivery_stopped")
        await until(lambda: not fixture.gateway.delivery_problem)
        assert (await fixture.ask("GET", "/ready")).status == 200
        assert b"everthread_lane_restarts_total 1\n" in (await fixture.ask("GET", "/metrics")).body
