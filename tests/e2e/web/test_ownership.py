"""Sessions of other owners are not accessible over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.gateway import echo
from tests.http_gateway import http_gateway

from everthread.testing.model_server.server import ModelServer
from everthread.web import ownership
from everthread.web.app import OPERATIONS

BODIES: dict[tuple[str, str], Any] = {
    ("PATCH", "/api/sessions/{session_id}"): {"title": "Mine now"},
    ("POST", "/api/sessions/{session_id}/fork"): {},
    ("POST", "/api/sessions/{session_id}/resume"): {"key": "desk"},
}


ABOUT_SESSIONS = [one for one in OPERATIONS if "{session_id}" in one.path]


async def test_two_owners_may_use_the_same_conversation_names(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        anna, ben = await fixture.token("anna"), await fixture.token("ben")
        first = await fixture.say("I am Anna", anna, X_Session_Key="desk", Idempotency_Key="1")
        second = await fixture.say("I am Ben", ben, X_Session_Key="desk", Idempotency_Key="1")
        assert (first.text, second.text) == ("You said I am Anna", "You said I am Ben")
        assert first.headers["X-Session-Id"] != second.headers["X-Session-Id"]
        assert (await fixture.say("more", anna, X_Session_Key="desk")).headers["X-Session-Id"] == first.headers[
            "X-Session-Id"
        ]
        theirs = await fixture.say("let me in", ben, X_Session_Id=first.headers["X-Session-Id"])
        unknown = await fixture.say("let me in", ben, X_Session_Id="01NOTHINGLIKETHAT")
        assert (theirs.status, theirs.body) == (404, unknown.body)
        assert [turn.user_text for turn in await fixture.turns(first.headers["X-Session-Id"])] == ["I am Anna", "more"]
        model_command = await fixture.say("/model stub/two", ben, X_Session_Key="desk")
        assert "admins only" in model_command.text


@pytest.mark.parametrize("operation", ABOUT_SESSIONS, ids=lambda one: f"{one.method} {one.path}")
async def test_sessions_of_other_owners_look_unknown(tmp_path: Path, operation: Any) -> None:
    """Every session route responds as for an unknown session."""
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        anna, ben = await fixture.token("anna"), await fixture.token("ben")
        session_id = await fixture.converse("/new With a title", "my secret", token=anna)
        body = BODIES.get((operation.method, operation.path))

        async def ask(session: str, token: str) -> Any:
            return await fixture.ask(operation.method, operation.path.format(session_id=session), body, token)

        before = await fixture.runtime.store.read(lambda uow: (uow.sessions.get(session_id), uow.activity.end()))
        theirs, unknown = await ask(session_id, ben), await ask("01NOSUCHSESSION", ben)
        assert (theirs.status, theirs.code) == (404, "session_not_found")
        assert (theirs.status, theirs.body) == (unknown.status, unknown.body)
        assert (
            await fixture.runtime.store.read(lambda uow: (uow.sessions.get(session_id), uow.activity.end())) == before
        )
        # Own sessions that are not conversations, or are deleted, get the same response.
        assert (await ask("notes:ben", ben)).body == unknown.body
        mine = await ask(session_id, anna)
        assert mine.status in (200, 201)
        await fixture.ask("DELETE", f"/api/sessions/{session_id}", token=anna)
        assert (await ask(session_id, anna)).body == unknown.body


@pytest.mark.parametrize("operation", ABOUT_SESSIONS, ids=lambda one: f"{one.method} {one.path}")
async def test_ownership_is_checked_in_one_place_before_anything_else(
    tmp_path: Path, operation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every session route calls `owned_session` first and changes nothing if it returns None."""
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        anna = await fixture.token("anna")
        session_id = await fixture.converse("mine", token=anna)
        end = await fixture.runtime.store.read(lambda uow: uow.activity.end())
        asked: list[tuple[str, str]] = []

        def nobodys(uow: Any, session: str, owner: str) -> None:
            asked.append((session, owner))

        monkeypatch.setattr(ownership, "owned_session", nobodys)
        body = BODIES.get((operation.method, operation.path))
        answer = await fixture.ask(operation.method, operation.path.format(session_id=session_id), body, anna)
        assert (answer.status, answer.code) == (404, "session_not_found")
        assert asked == [(session_id, "anna")]
        assert await fixture.runtime.store.read(lambda uow: uow.activity.end()) == end


def test_every_session_route_is_covered() -> None:
    assert len(ABOUT_SESSIONS) == 7
    assert all(one.body is None or (one.method, one.path) in BODIES for one in ABOUT_SESSIONS)
    assert all(one.auth == "token" for one in OPERATIONS if one.path.startswith(("/api", "/v1")))
