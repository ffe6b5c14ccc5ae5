"""HTTP errors: one format, without internal details."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.http_gateway import http_gateway

from everthread.testing.model_server.replies import Fail, Say
from everthread.testing.model_server.server import ModelServer

MODEL = lambda _: Say("Hello.")  # noqa: E731


async def test_bad_requests_get_an_error_body_with_the_right_status(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        big = b'{"messages":[{"role":"user","content":"' + b"x" * 2_200_000 + b'"}]}'
        chat = "/v1/chat/completions"
        for (method, path, body), status in {
            ("POST", chat, b"{no json"): 400,
            ("POST", chat, b"\xff\xfe"): 400,
            ("POST", chat, b"[" * 100_000): 400,
            ("POST", chat, b""): 400,
            ("POST", chat, big): 413,
            ("GET", "/nowhere", None): 404,
            ("GET", "/api/sessions/", None): 404,
            ("PUT", "/api/sessions", None): 405,
            ("GET", chat, None): 405,
            ("GET", "/api/sessions?limit=0", None): 400,
            ("GET", "/api/sessions?limit=x", None): 400,
            ("GET", "/api/sessions?cursor=%00", None): 400,
            ("GET", "/api/sessions?cursor=W10=", None): 400,
        }.items():
            answer = await fixture.ask(method, path, body)
            assert answer.status == status, (path, body and body[:20])
            assert set(answer.json["error"]) >= {"message", "type", "code"}
            assert b"Traceback" not in answer.body
        for name in ("", "é", "y" * 129):
            assert (await fixture.say("hello", X_Session_Key=name)).status == 400, repr(name)
        assert (await fixture.say("hello", X_Session_Key="x", Idempotency_Key="y" * 256)).status == 400


async def test_internal_errors_are_not_shown_to_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:

        async def broken(_: object) -> None:
            raise RuntimeError("secret words")

        with monkeypatch.context() as patched:
            patched.setattr(fixture.gateway.store, "read", broken)
            answer = await fixture.ask("GET", "/api/sessions")
        assert (answer.status, answer.code) == (500, "internal_error")
        assert b"secret words" not in answer.body


async def test_model_errors_map_to_http_statuses(tmp_path: Path) -> None:
    script = [Fail(401, "wrong key"), Fail(400, "no"), Fail(401, "wrong key sk-secret")]
    async with ModelServer(script) as model, http_gateway(tmp_path, model) as fixture:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        answer = await fixture.ask("POST", "/v1/chat/completions", body)
        assert (answer.status, answer.code) == (502, "model_unauthorized")
        refused = await fixture.ask("POST", "/v1/chat/completions", body | {"stream": True})
        assert (refused.status, refused.code) == (400, "refused_by_model")
        in_talk = await fixture.say("hi", X_Session_Key="desk")
        assert (in_talk.status, in_talk.code) == (502, "model_unauthorized")
        assert b"sk-secret" not in in_talk.body
        assert [turn.user_text for turn in await fixture.turns(in_talk.headers["X-Session-Id"])] == ["hi"]
        assert (
            await fixture.ask("POST", "/v1/chat/completions", body | {"model": "nobody/knows"})
        ).code == "model_not_found"


FAILURES = [
    (Fail(400, "no such thing at box-7"), "rejected this"),
    (Fail(401, "who are you, box-7?"), "as it is set up"),
    (Fail(404, "box-7 has no model one"), "as it is set up"),
    (Fail(413, "box-7: too much"), "more than the model can read"),
    (Fail(503, "box-7 is down", headers={"Retry-After": "3600"}), "can't be reached now"),
]


def reference(text: str) -> str:
    found = re.search(r"under (\w{8})\.", text)
    assert found, text
    return found[1]


@pytest.mark.parametrize(("fail", "plain"), FAILURES, ids=lambda value: str(getattr(value, "status", "")))
async def test_guests_get_plain_model_errors_over_http(
    tmp_path: Path, fail: Fail, plain: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with ModelServer(lambda _: fail) as model, http_gateway(tmp_path, model) as fixture:
        guest, mine = await fixture.token("bea"), await fixture.token("me")
        body = {"model": "everthread", "messages": [{"role": "user", "content": "hello"}]}
        answers = [
            await fixture.say("hello", guest, X_Session_Key="desk"),
            await fixture.say("hello", guest),
            await fixture.ask("POST", "/v1/chat/completions", {**body, "stream": True}, guest),
            await fixture.ask("POST", "/v1/chat/completions", {**body, "stream": True}, guest, X_Session_Key="desk"),
        ]
        for answer in answers:
            said = answer.body.decode()
            assert "127.0.0.1" not in said
            assert "box-7" not in said
            if fail.status != 401:
                assert plain in said
                named = [r for r in caplog.records if r.__dict__.get("reference") == reference(said)]
                assert any("127.0.0.1" in record.getMessage() for record in named)
        if fail.status == 503:
            assert answers[1].headers["Retry-After"] == "3601"
        if fail.status != 401:
            assert b"127.0.0.1" in (await fixture.say("hello", mine)).body
            assert b"127.0.0.1" in (await fixture.say("hello", mine, X_Session_Key="desk")).body
