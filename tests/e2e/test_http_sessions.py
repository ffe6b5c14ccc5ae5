"""Looking after conversations over HTTP: nobody reaches another's, and nothing that happens is missed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.http_gateway import HttpGateway, http_gateway

from everthread.domain.boundary import Compress
from everthread.domain.model import SessionKey
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.web import ownership as places
from everthread.web.app import OPERATIONS

BODIES: dict[tuple[str, str], Any] = {
    ("PATCH", "/api/sessions/{session_id}"): {"title": "Mine now"},
    ("POST", "/api/sessions/{session_id}/fork"): {},
    ("POST", "/api/sessions/{session_id}/resume"): {"key": "desk"},
}
ABOUT_SESSIONS = [one for one in OPERATIONS if "{session_id}" in one.path]


def echo(request: Any) -> Say:
    said = [message.content for message in request.messages if message.role == "user"]
    return Say(f"You said {said[-1]}")


async def talk(there: HttpGateway, *texts: str, token: str = "", name: str = "desk") -> str:
    """The session in which this was said."""
    answer = None
    for text in texts:
        answer = await there.say(text, token, X_Session_Key=name)
    assert answer is not None
    return answer.headers["X-Session-Id"]


@pytest.mark.parametrize("operation", ABOUT_SESSIONS, ids=lambda one: f"{one.method} {one.path}")
async def test_nobody_reaches_anothers_session(tmp_path: Path, operation: Any) -> None:
    """Every route about a session answers as if there were none."""
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        anna, ben = await there.token("anna"), await there.token("ben")
        session_id = await talk(there, "/new With a title", "my secret", token=anna)
        body = BODIES.get((operation.method, operation.path))

        async def ask(session: str, token: str) -> Any:
            return await there.ask(operation.method, operation.path.format(session_id=session), body, token)

        before = await there.runtime.store.read(lambda uow: (uow.sessions.get(session_id), uow.activity.end()))
        theirs, unknown = await ask(session_id, ben), await ask("01NOSUCHSESSION", ben)
        assert (theirs.status, theirs.code) == (404, "session_not_found")
        assert (theirs.status, theirs.body) == (unknown.status, unknown.body)
        assert await there.runtime.store.read(lambda uow: (uow.sessions.get(session_id), uow.activity.end())) == before
        # What is somebody's own and yet no conversation, or no more, is answered the same.
        assert (await ask("notes:ben", ben)).body == unknown.body
        mine = await ask(session_id, anna)
        assert mine.status in (200, 201)
        await there.ask("DELETE", f"/api/sessions/{session_id}", token=anna)
        assert (await ask(session_id, anna)).body == unknown.body


@pytest.mark.parametrize("operation", ABOUT_SESSIONS, ids=lambda one: f"{one.method} {one.path}")
async def test_whose_a_session_is_is_decided_in_one_place(
    tmp_path: Path, operation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever that says, no route asks anything else before it refuses, nor acts before it was asked."""
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        anna = await there.token("anna")
        session_id = await talk(there, "mine", token=anna)
        end = await there.runtime.store.read(lambda uow: uow.activity.end())
        asked: list[tuple[str, str]] = []

        def nobodys(uow: Any, session: str, owner: str) -> None:
            asked.append((session, owner))

        monkeypatch.setattr(places, "owned_session", nobodys)
        body = BODIES.get((operation.method, operation.path))
        answer = await there.ask(operation.method, operation.path.format(session_id=session_id), body, anna)
        assert (answer.status, answer.code) == (404, "session_not_found")
        assert asked == [(session_id, "anna")]
        assert await there.runtime.store.read(lambda uow: uow.activity.end()) == end


def test_every_route_about_a_session_is_tried() -> None:
    assert len(ABOUT_SESSIONS) == 7
    assert all(one.body is None or (one.method, one.path) in BODIES for one in ABOUT_SESSIONS)
    assert all(one.auth == "token" for one in OPERATIONS if one.path.startswith(("/api", "/v1")))


async def test_the_list_and_the_events_show_ones_own_only(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        anna, ben = await there.token("anna"), await there.token("ben")
        theirs = await talk(there, "my secret", token=anna)
        assert (await there.ask("GET", "/api/sessions", token=ben)).json == {"data": [], "next_cursor": None}
        assert [one["id"] for one in (await there.ask("GET", "/api/sessions", token=anna)).json["data"]] == [theirs]
        async with there.http.get(
            there.url + "/api/events", headers={"Authorization": f"Bearer {ben}", "Last-Event-ID": "b0-l0"}
        ) as stream:
            assert (await event(stream))["event"] == "listening"
            mine = await talk(there, "hello", token=ben)
            assert (await event(stream))["data"]["to"] == mine
            assert (await event(stream))["data"]["session"] == mine


async def test_the_list_comes_in_pages(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        made = [await talk(there, "hello", name=f"desk{number}") for number in range(5)]
        found, cursor = list[str](), ""
        while True:
            page = (await there.ask("GET", f"/api/sessions?limit=2{cursor}")).json
            found += [one["id"] for one in page["data"]]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert found == made[::-1]


async def test_messages_come_in_pages_with_what_was_set_aside(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        session_id = await talk(there, "one", "two", "three", "/undo", "four")
        found, cursor = list[Any](), ""
        while True:
            page = (await there.ask("GET", f"/api/sessions/{session_id}/messages?limit=1{cursor}")).json
            found += page["data"]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert [one["content"] for one in found] == [
            *("one", "You said one", "two", "You said two", "four", "You said four"),
        ]
        whole = (await there.ask("GET", f"/api/sessions/{session_id}/messages")).json
        assert (whole["data"], whole["next_cursor"]) == (found, None)
        assert (found[0]["role"], found[1]["role"], found[0]["turn"]) == ("user", "assistant", 1)
        far = await there.ask("GET", f"/api/sessions/{session_id}/messages?cursor=999999999999999")
        assert far.json["data"] == []


async def test_a_fork_shows_what_was_said_and_goes_its_own_way(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        session_id = await talk(there, "one")
        fork = await there.ask("POST", f"/api/sessions/{session_id}/fork", {"title": "Another way"})
        assert fork.status == 201
        child = fork.json["session"]
        assert (child["title"], child["parent"], child["turns"]) == ("Another way", session_id, 1)
        assert await talk(there, "two", name=fork.json["key"]) == child["id"]
        assert [turn.user_text for turn in await there.turns(session_id)] == ["one"]
        assert (await there.session(SessionKey.parse("agent:main:http:dm:desk"))).id == session_id
        taken = await there.ask("POST", f"/api/sessions/{session_id}/fork", {"title": "Another way"})
        assert (taken.status, taken.code) == (409, "title_taken")


async def test_what_was_compressed_can_be_forked_as_it_was(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        whole = await talk(there, "one", "two")
        key = SessionKey.parse("agent:main:http:dm:desk")
        session = await there.session(key)
        boundary = Compress(whole, session.generation, "what was said", 1)
        assert (await there.runtime.lifecycle.cross(key, boundary, owner=session.owner)).refusal is None
        for as_it_was, turns in ((True, ["one", "two"]), (False, ["two"])):
            fork = await there.ask("POST", f"/api/sessions/{whole}/fork", {"as_it_was": as_it_was})
            found = (await there.ask("GET", f"/api/sessions/{fork.json['session']['id']}/messages")).json["data"]
            assert [message["content"] for message in found if message["role"] == "user"] == turns


async def test_a_name_is_led_to_a_session_and_a_title_is_given(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        session_id = await talk(there, "one")
        await talk(there, "/new")
        there.platform.say("hello from elsewhere")
        resumed = await there.ask("POST", f"/api/sessions/{session_id}/resume", {"key": "desk"})
        assert (resumed.json["session"]["id"], resumed.json["key"]) == (session_id, "desk")
        assert await talk(there, "two") == session_id
        named = await there.ask("PATCH", f"/api/sessions/{session_id}", {"title": "  Trip to  Porto "})
        assert named.json["title"] == "Trip to Porto"
        assert (await there.ask("GET", f"/api/sessions/{session_id}")).json["title"] == "Trip to Porto"
        assert (await there.ask("PATCH", f"/api/sessions/{session_id}", {"title": " "})).status == 400


async def test_what_is_deleted_is_gone_from_every_answer(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        session_id = await talk(there, "my secret")
        assert (await there.ask("DELETE", f"/api/sessions/{session_id}")).json == {"id": session_id, "deleted": True}
        assert (await there.ask("GET", "/api/sessions")).json["data"] == []
        found = await there.runtime.store.read(lambda uow: uow.search.search("me", "secret", limit=9))
        assert found == ()


async def test_an_export_is_the_file_that_the_command_writes(tmp_path: Path) -> None:
    from everthread.cli.commands.sessions.export import write_lines

    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        session_id = await talk(there, "one", "two")
        answer = await there.ask("GET", f"/api/sessions/{session_id}/export")
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        lines = list[bytes]()
        await write_lines(there.runtime, [session_id], False, lines.append)  # type: ignore[arg-type]
        assert answer.body.splitlines()[1:] == b"".join(lines).splitlines()[1:]
        assert msgspec.json.decode(answer.body.splitlines()[-1])["turns"] == 2


# --- Events ----------------------------------------------------------------------------------------------------------


async def event(stream: Any) -> dict[str, Any]:
    """The next event that is more than a sign of life."""
    async with asyncio.timeout(5):
        while True:
            found: dict[str, Any] = {}
            while (line := (await stream.content.readline()).decode().rstrip("\n")) != "":
                name, _, value = line.partition(": ")
                found[name] = value
            if "data" in found:
                return found | {"data": msgspec.json.decode(found["data"])}
            assert found, "the stream has ended"


async def test_what_happens_is_told_and_nothing_twice_after_coming_back(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        await talk(there, "before anybody listens")
        url = there.url + "/api/events"
        async with there.http.get(url) as stream:
            assert (await event(stream))["event"] == "listening"
            session_id = await talk(there, "one")
            first = await event(stream)
            assert (first["event"], first["data"]["session"], first["data"]["turn"]) == ("turn", session_id, 2)
        await talk(there, "two", "/new", "three")
        async with there.http.get(url, headers={"Last-Event-ID": first["id"]}) as stream:
            assert (await event(stream))["event"] == "listening"
            seen = [await event(stream) for _ in range(3)]
            assert [one["event"] for one in seen] == ["turn", "boundary", "turn"]
            assert (seen[1]["data"]["kind"], seen[1]["data"]["from"]) == ("new", session_id)
            assert seen[2]["data"]["session"] == seen[1]["data"]["to"]
        for middle, rest in ((seen[0], seen[1:]), (seen[1], seen[2:])):
            async with there.http.get(url, headers={"Last-Event-ID": middle["id"]}) as stream:
                await event(stream)
                assert [await event(stream) for _ in rest] == rest
        assert (await there.ask("GET", "/api/events", Last_Event_ID="nonsense")).status == 400


async def test_whoever_comes_back_late_is_told_all_of_it_a_little_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everthread.web.events.WINDOW", 2)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        await talk(there, "one", "/new", "two", "/new", "three")
        async with there.http.get(there.url + "/api/events", headers={"Last-Event-ID": "b0-l0"}) as stream:
            await event(stream)
            seen = [await event(stream) for _ in range(6)]
        assert sorted(one["event"] for one in seen) == ["boundary"] * 3 + ["turn"] * 3
        assert len({one["id"] for one in seen}) == 6


async def test_listeners_are_counted_let_go_and_told_of_the_end(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        streams = [await there.http.get(there.url + "/api/events") for _ in range(16)]
        assert (await there.ask("GET", "/api/events")).status == 429
        streams[0].close()
        again = None
        async with asyncio.timeout(5):
            while again is None or again.status == 429:
                again = await there.http.get(there.url + "/api/events")
        stopping = asyncio.ensure_future(there.web.stop())
        async with asyncio.timeout(3):
            await stopping
            while await again.content.read(1000):
                pass
