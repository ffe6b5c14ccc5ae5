"""The routes about sessions: lists, messages, forks, names, deletion and export."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.gateway import echo
from tests.http_gateway import http_gateway, http_key
from tests.runtime import until

from everthread.agent.skills.format import SkillText
from everthread.agent.skills.history import Origin
from everthread.config.schema import GatewaySettings, QuotaSettings
from everthread.domain.boundary import Compress
from everthread.domain.model import SessionKey
from everthread.lifecycle.export import export_lines
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer


async def test_a_fork_leaves_an_ended_session_unchanged(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        old = await fixture.converse("one", "two")
        await fixture.say("/new", X_Session_Key="desk")
        before = (await fixture.ask("GET", f"/api/sessions/{old}")).json
        assert before["state"] == "ended"
        fork = await fixture.ask("POST", f"/api/sessions/{old}/fork", {"title": "Another way"})
        assert fork.status == 201
        assert (await fixture.ask("GET", f"/api/sessions/{old}")).json == before
        child = fork.json["session"]
        assert (child["parent"], child["title"], child["state"]) == (old, "Another way", "open")
        said = (await fixture.ask("GET", f"/api/sessions/{child['id']}/messages")).json["data"]
        assert [one["content"] for one in said if one["role"] == "user"] == ["one", "two"]
        more = await fixture.say("three", X_Session_Key=fork.json["key"])
        assert more.headers["X-Session-Id"] == child["id"]
        assert [turn.user_text for turn in await fixture.turns(old)] == ["one", "two"]


async def test_a_refused_fork_changes_nothing(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        elsewhere = await fixture.converse("/new Taken", "hello", name="elsewhere")
        old = await fixture.converse("one")
        end = await fixture.runtime.store.read(lambda uow: uow.activity.end())
        for name in ("fresh", "elsewhere"):
            fork = await fixture.ask("POST", f"/api/sessions/{old}/fork", {"title": "taken", "key": name})
            assert (fork.status, fork.code) == (409, "title_taken")
        assert await fixture.runtime.store.read(lambda uow: uow.activity.end()) == end
        assert await fixture.runtime.lifecycle.current(http_key("fresh")) is None
        assert (await fixture.session(http_key("elsewhere"))).id == elsewhere


async def test_a_fork_is_served_while_its_original_is_answered(tmp_path: Path) -> None:
    script = lambda request: Say("slow", chunks=20, delay_s=0.05) if "slow" in str(request.messages[-1]) else Say("x")  # noqa: E731
    async with ModelServer(script) as model, http_gateway(tmp_path, model) as fixture:
        old = await fixture.converse("one")
        running = asyncio.ensure_future(fixture.say("slow one", X_Session_Key="desk"))
        await until(lambda: fixture.gateway.worker.running == 1)
        fork = await fixture.ask("POST", f"/api/sessions/{old}/fork", {})
        child = fork.json["session"]["id"]
        assert (await fixture.say("two", X_Session_Key=fork.json["key"])).headers["X-Session-Id"] == child
        assert (await running).text == "slow"
        said = (await fixture.ask("GET", f"/api/sessions/{child}/messages")).json["data"]
        assert [one["content"] for one in said if one["role"] == "user"] == ["one", "two"]


async def test_sessions_are_listed_in_pages(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        made = [await fixture.converse("hello", name=f"desk{number}") for number in range(5)]
        found, cursor = list[str](), ""
        while True:
            page = (await fixture.ask("GET", f"/api/sessions?limit=2{cursor}")).json
            found += [one["id"] for one in page["data"]]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert found == made[::-1]


async def test_messages_are_listed_in_pages_with_those_set_aside(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        session_id = await fixture.converse("one", "two", "three", "/undo", "four")
        found, cursor = list[Any](), ""
        while True:
            page = (await fixture.ask("GET", f"/api/sessions/{session_id}/messages?limit=1{cursor}")).json
            found += page["data"]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert [one["content"] for one in found] == [
            *("one", "You said one", "two", "You said two", "four", "You said four"),
        ]
        whole = (await fixture.ask("GET", f"/api/sessions/{session_id}/messages")).json
        assert (whole["data"], whole["next_cursor"]) == (found, None)
        assert (found[0]["role"], found[1]["role"], found[0]["turn"]) == ("user", "assistant", 1)
        far = await fixture.ask("GET", f"/api/sessions/{session_id}/messages?cursor=999999999999999")
        assert far.json["data"] == []


async def test_a_fork_has_the_messages_of_its_parent_and_diverges(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        session_id = await fixture.converse("one")
        fork = await fixture.ask("POST", f"/api/sessions/{session_id}/fork", {"title": "Another way"})
        assert fork.status == 201
        child = fork.json["session"]
        assert (child["title"], child["parent"], child["turns"]) == ("Another way", session_id, 1)
        assert await fixture.converse("two", name=fork.json["key"]) == child["id"]
        assert [turn.user_text for turn in await fixture.turns(session_id)] == ["one"]
        assert (await fixture.session(SessionKey.parse("agent:main:http:dm:desk"))).id == session_id
        taken = await fixture.ask("POST", f"/api/sessions/{session_id}/fork", {"title": "Another way"})
        assert (taken.status, taken.code) == (409, "title_taken")


async def test_a_compressed_session_can_be_forked_as_it_was(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        whole = await fixture.converse("one", "two")
        key = SessionKey.parse("agent:main:http:dm:desk")
        session = await fixture.session(key)
        boundary = Compress(whole, session.generation, "what was said", 1)
        assert (await fixture.runtime.lifecycle.cross(key, boundary, owner=session.owner)).refusal is None
        for as_it_was, turns in ((True, ["one", "two"]), (False, ["two"])):
            fork = await fixture.ask("POST", f"/api/sessions/{whole}/fork", {"as_it_was": as_it_was})
            found = (await fixture.ask("GET", f"/api/sessions/{fork.json['session']['id']}/messages")).json["data"]
            assert [message["content"] for message in found if message["role"] == "user"] == turns


async def test_a_session_is_resumed_under_a_name_and_renamed(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        session_id = await fixture.converse("one")
        await fixture.converse("/new")
        fixture.platform.say("hello from elsewhere")
        resumed = await fixture.ask("POST", f"/api/sessions/{session_id}/resume", {"key": "desk"})
        assert (resumed.json["session"]["id"], resumed.json["key"]) == (session_id, "desk")
        assert await fixture.converse("two") == session_id
        named = await fixture.ask("PATCH", f"/api/sessions/{session_id}", {"title": "  Trip to  Porto "})
        assert named.json["title"] == "Trip to Porto"
        assert (await fixture.ask("GET", f"/api/sessions/{session_id}")).json["title"] == "Trip to Porto"
        assert (await fixture.ask("PATCH", f"/api/sessions/{session_id}", {"title": " "})).status == 400


async def test_a_deleted_session_is_missing_from_every_response(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        session_id = await fixture.converse("my secret")
        folders = fixture.runtime.skills
        folders.write(SkillText("rail", "My secret train.", "Ask Ann."), origin=Origin(session_id, "review-1-1"))
        deleted = await fixture.ask("DELETE", f"/api/sessions/{session_id}")
        assert deleted.json == {"id": session_id, "deleted": True, "skills": ["rail"], "skills_kept": []}
        files = [path for path in folders.own.rglob("*") if path.is_file()]
        assert [path for path in files if b"secret" in path.read_bytes()] == []
        assert (await fixture.ask("GET", "/api/sessions")).json["data"] == []
        found = await fixture.runtime.store.read(lambda uow: uow.search.search("me", "secret", limit=9))
        assert found == ()


async def test_a_guest_cannot_destroy_the_owners_text_of_a_skill_by_deleting_a_session(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        token, folders = await fixture.token("eve"), fixture.runtime.skills
        session_id = await fixture.converse("hello", token=token)
        folders.write(SkillText("tea", "How to make tea.", "Boil water."))
        folders.write(SkillText("tea", "How to make tea.", "Buy tea from Eve."), origin=Origin(session_id, "t1"))
        folders.write(SkillText("tea", "How to make tea.", "The owner's careful text."))
        deleted = await fixture.ask("DELETE", f"/api/sessions/{session_id}", token=token)
        assert deleted.json == {"id": session_id, "deleted": True, "skills": [], "skills_kept": ["tea"]}
        assert "careful" in folders.text(folders.get("tea"))
        files = [path for path in folders.own.rglob("*") if path.is_file()]
        assert [path for path in files if b"Eve" in path.read_bytes()] == []


async def test_an_export_is_the_file_that_the_command_writes(tmp_path: Path) -> None:
    from everthread.cli.commands.sessions.export import write_lines

    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        session_id = await fixture.converse("one", "two")
        answer = await fixture.ask("GET", f"/api/sessions/{session_id}/export")
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        lines = list[bytes]()
        await write_lines(fixture.runtime, [session_id], False, lines.append)  # type: ignore[arg-type]
        assert answer.body.splitlines()[1:] == b"".join(lines).splitlines()[1:]
        assert msgspec.json.decode(answer.body.splitlines()[-1])["turns"] == 2


async def test_a_guest_cannot_fork_without_end(tmp_path: Path) -> None:
    gateway = GatewaySettings(messages_per_minute=1000, quotas=QuotaSettings(forks_per_day=2, sessions=4))
    async with ModelServer(echo) as model, http_gateway(tmp_path, model, gateway=gateway) as fixture:
        anna = await fixture.token("anna")
        old = await fixture.converse("one", token=anna)
        forks = [await fixture.ask("POST", f"/api/sessions/{old}/fork", {}, anna) for _ in range(4)]
        assert [fork.status for fork in forks] == [201, 201, 429, 429]
        assert forks[-1].code == "quota_reached"
        assert "2 branches in 24 hours are allowed for each person here" in forks[-1].json["error"]["message"]
        assert (await fixture.say("hello", anna, X_Session_Key="fourth")).status == 200
        refused = await fixture.say("hello", anna, X_Session_Key="fifth")
        assert (refused.status, refused.code) == (429, "quota_reached")
        assert "you have 4 conversations, and 4 are allowed" in refused.json["error"]["message"]
        assert (await fixture.say("hello", anna, X_Session_Key="fourth")).status == 200
        text = (await fixture.say("/new", anna, X_Session_Key="fourth")).text
        assert text.startswith("You have 4 conversations, and 4 are allowed")
        assert (await fixture.ask("DELETE", f"/api/sessions/{old}", token=anna)).status == 200
        assert (await fixture.say("hello", anna, X_Session_Key="fifth")).status == 200
        mine = await fixture.converse("one")
        for _ in range(4):
            assert (await fixture.ask("POST", f"/api/sessions/{mine}/fork", {})).status == 201


async def test_a_guest_cannot_store_without_end(tmp_path: Path) -> None:
    gateway = GatewaySettings(quotas=QuotaSettings(stored_bytes=100))
    async with ModelServer(echo) as model, http_gateway(tmp_path, model, gateway=gateway) as fixture:
        anna = await fixture.token("anna")
        assert (await fixture.say("x" * 100, anna, X_Session_Key="desk")).status == 200
        refused = await fixture.say("hello", anna, X_Session_Key="desk")
        assert (refused.status, refused.code) == (413, "quota_reached")
        assert (await fixture.say("/status", anna, X_Session_Key="desk")).status == 200


async def test_a_message_that_may_not_open_its_session_is_answered(tmp_path: Path) -> None:
    """Both were accepted before the first of them had opened its session."""
    gateway = GatewaySettings(quotas=QuotaSettings(sessions=1))
    async with ModelServer(echo) as model, http_gateway(tmp_path, model, gateway=gateway) as fixture:
        anna = await fixture.token("anna")
        answers = await asyncio.gather(*(fixture.say("hello", anna, X_Session_Key=name) for name in ("a", "b", "c")))
        texts = [answer.text for answer in answers if answer.status == 200]
        assert sum("hello" in text for text in texts) == 1
        refusals = [answer.json["error"]["message"] for answer in answers if answer.status != 200]
        refusals += [text for text in texts if "hello" not in text]
        assert len(refusals) == 2
        assert all("ou have 1 conversation, and 1 are allowed" in text for text in refusals)
        counts = await fixture.runtime.store.read(lambda uow: uow.quota_counters.get("anna"))
        assert counts is not None
        assert counts.sessions == 1


async def test_every_route_that_costs_something_counts_as_a_message(tmp_path: Path) -> None:
    gateway = GatewaySettings(messages_per_minute=5)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model, gateway=gateway) as fixture:
        old = f"/api/sessions/{await fixture.converse('one')}"
        routes: list[tuple[str, str, Any]] = [
            ("POST", f"{old}/fork", {}),
            ("POST", f"{old}/resume", {"key": "desk"}),
            ("PATCH", old, {"title": "Tea"}),
            ("GET", f"{old}/export", None),
        ]
        for method, path, body in routes:
            assert (await fixture.ask(method, path, body)).status < 300
        for method, path, body in (*routes, ("DELETE", old, None)):
            refused = await fixture.ask(method, path, body)
            assert (refused.status, refused.code) == (429, "too_many"), path
        assert (await fixture.ask("GET", old)).status == 200


async def test_a_token_that_is_revoked_reads_no_more_of_a_running_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everthread.web.responses.CHECK_S", 0.0)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        token = await fixture.token("eve")
        session_id = await fixture.converse("one", "my secret", token=token)

        async def revoked_after_the_header(*arguments: Any) -> AsyncGenerator[Any, None]:
            async for line in export_lines(*arguments):
                yield line
                await fixture.runtime.store.write(lambda uow: uow.api_keys.remove("eve", "test"))

        monkeypatch.setattr("everthread.web.sessions.export_lines", revoked_after_the_header)
        answer = await fixture.ask("GET", f"/api/sessions/{session_id}/export", token=token)
        assert answer.status == 200
        assert len(answer.body.splitlines()) == 1
