"""Over HTTP: where a message must not go, what one person may cost, and clients that are slow or gone."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from tests.http_gateway import HttpGateway, http_gateway
from tests.runtime import until

from everthread.config.settings import GatewaySettings, Price
from everthread.domain.boundary import New
from everthread.domain.model import SessionKey
from everthread.lifecycle import ForgetOwner
from everthread.ports.model import Usage
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.web import connections
from everthread.web import conversation as conversing

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def echo(request: Any) -> Say:
    said = [message.content for message in request.messages if message.role == "user"]
    return Say(f"You said {said[-1]}")


def key(name: str, *, user: str | None = None) -> SessionKey:
    return SessionKey.parse(f"agent:main:http:dm:{name}" + (f"::{user}" if user else ""))


async def begun(there: HttpGateway, *texts: str, name: str = "desk") -> str:
    """The session in which this was said."""
    answers = [await there.say(text, X_Session_Key=name) for text in texts]
    return answers[-1].headers["X-Session-Id"]


# --- Forks -----------------------------------------------------------------------------------------------------------


async def test_a_fork_leaves_a_session_that_has_ended_as_it_is(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        old = await begun(there, "one", "two")
        await there.say("/new", X_Session_Key="desk")
        before = (await there.ask("GET", f"/api/sessions/{old}")).json
        assert before["state"] == "ended"
        fork = await there.ask("POST", f"/api/sessions/{old}/fork", {"title": "Another way"})
        assert fork.status == 201
        assert (await there.ask("GET", f"/api/sessions/{old}")).json == before
        child = fork.json["session"]
        assert (child["parent"], child["title"], child["state"]) == (old, "Another way", "open")
        said = (await there.ask("GET", f"/api/sessions/{child['id']}/messages")).json["data"]
        assert [one["content"] for one in said if one["role"] == "user"] == ["one", "two"]
        more = await there.say("three", X_Session_Key=fork.json["key"])
        assert more.headers["X-Session-Id"] == child["id"]
        assert [turn.user_text for turn in await there.turns(old)] == ["one", "two"]


async def test_a_fork_that_can_not_be_changes_nothing(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        elsewhere = await begun(there, "/new Taken", "hello", name="elsewhere")
        old = await begun(there, "one")
        end = await there.runtime.store.read(lambda uow: uow.activity.end())
        for name in ("fresh", "elsewhere"):
            fork = await there.ask("POST", f"/api/sessions/{old}/fork", {"title": "taken", "key": name})
            assert (fork.status, fork.code) == (409, "title_taken")
        assert await there.runtime.store.read(lambda uow: uow.activity.end()) == end
        assert await there.runtime.lifecycle.current(key("fresh")) is None
        assert (await there.session(key("elsewhere"))).id == elsewhere


async def test_a_fork_goes_on_while_its_original_is_answered(tmp_path: Path) -> None:
    script = lambda request: Say("slow", chunks=20, delay_s=0.05) if "slow" in str(request.messages[-1]) else Say("x")  # noqa: E731
    async with ModelServer(script) as model, http_gateway(tmp_path, model) as there:
        old = await begun(there, "one")
        running = asyncio.ensure_future(there.say("slow one", X_Session_Key="desk"))
        await until(lambda: there.gateway.worker.running == 1)
        fork = await there.ask("POST", f"/api/sessions/{old}/fork", {})
        child = fork.json["session"]["id"]
        assert (await there.say("two", X_Session_Key=fork.json["key"])).headers["X-Session-Id"] == child
        assert (await running).text == "slow"
        said = (await there.ask("GET", f"/api/sessions/{child}/messages")).json["data"]
        assert [one["content"] for one in said if one["role"] == "user"] == ["one", "two"]


# --- What one person may cost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [{}, {"X_Session_Key": "desk"}], ids=["stateless", "conversation"])
async def test_what_a_guest_may_spend_holds_for_each_of_them_alone(tmp_path: Path, headers: dict[str, str]) -> None:
    gateway = GatewaySettings(spend_per_day=0.05)
    script = lambda _: Say("Hello.", usage=Usage(10_000, 15_000))  # noqa: E731
    more: dict[str, Any] = {"prices": {"stub/one": Price(1.0, 2.0)}}
    async with ModelServer(script) as model, http_gateway(tmp_path, model, gateway=gateway, **more) as there:
        anna, ben, me = await there.token("anna"), await there.token("ben"), await there.token("me")
        assert (await there.ask("POST", CHAT, BODY, anna, **headers)).status == 200
        spent = await there.ask("POST", CHAT, BODY, anna, **headers)
        assert (spent.status, spent.code) == (429, "insufficient_quota")
        assert (await there.ask("POST", CHAT, BODY, ben, **headers)).status == 200
        for _ in range(3):
            assert (await there.ask("POST", CHAT, BODY, me, **headers)).status == 200


async def test_messages_without_a_conversation_count_with_the_others(tmp_path: Path) -> None:
    async with (
        ModelServer(echo) as model,
        http_gateway(tmp_path, model, gateway=GatewaySettings(messages_per_minute=2)) as there,
    ):
        assert (await there.ask("POST", CHAT, BODY)).status == 200
        assert (await there.say("hello", X_Session_Key="desk")).status == 200
        for body in (BODY, BODY | {"stream": True}):
            much = await there.ask("POST", CHAT, body)
            assert (much.status, much.code) == (429, "too_many")
            assert much.headers["Retry-After"]
        # Nor does whoever writes too much move a conversation.
        old = (await there.session(key("desk"))).id
        assert (await there.say("more", X_Session_Id=old, X_Session_Key="elsewhere")).status == 429
        assert await there.runtime.lifecycle.current(key("elsewhere")) is None


# --- A session that is named -----------------------------------------------------------------------------------------


async def test_a_message_for_a_named_session_does_not_go_along_into_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A /new comes between the moment its way is found and the moment it is taken in."""
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        old = await begun(there, "one")
        lifecycle, place = there.runtime.lifecycle, key(f"id-{old}")
        accept, moved = lifecycle.accept, False

        async def late(*given: Any, **more: Any) -> Any:
            nonlocal moved
            if not moved:
                moved = True
                await lifecycle.cross(place, New(), owner="me")
            return await accept(*given, **more)

        with monkeypatch.context() as patched:
            patched.setattr(lifecycle, "accept", late)
            answer = await there.say("two", X_Session_Id=old)
        assert moved
        assert (answer.status, answer.code) == (409, "left")
        again = await there.say("three", X_Session_Id=old)
        assert again.headers["X-Session-Id"] == old
        assert [turn.user_text for turn in await there.turns(old)] == ["one", "three"]


async def test_a_message_for_a_named_session_is_not_taken_in_behind_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits there may lead elsewhere, and would take the message along."""
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        old = await begun(there, "one")
        await there.say("two", X_Session_Id=old)
        with monkeypatch.context() as patched:
            patched.setattr(there.gateway.worker, "submit", lambda *_: None)
            new = asyncio.ensure_future(there.say("/new", X_Session_Id=old))
            await until(lambda: there.gateway.worker.subscribed == 1)
            for text in ("three", "/title Three"):
                answer = await there.say(text, X_Session_Id=old)
                assert (answer.status, answer.code) == (409, "left"), text
            # Whoever wants it to stop need not wait for anything.
            stop = asyncio.ensure_future(there.say("/stop", X_Session_Id=old))
            await until(lambda: there.gateway.worker.subscribed == 2)
            # A command says itself what it could not do.
            assert "send it again" in (await there.say("/queue three", X_Session_Id=old)).text
        there.gateway.worker.wake(key(f"id-{old}"))
        assert (await new).status == (await stop).status == 200
        await there.rest()
        assert not await there.turns(key=key(f"id-{old}"))
        assert [turn.user_text for turn in await there.turns(old)] == ["one", "two"]


# --- Tokens ----------------------------------------------------------------------------------------------------------


async def test_a_person_who_is_forgotten_has_no_token_any_more(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        anna, ben = await there.token("anna"), await there.token("ben")
        await there.say("hello", anna, X_Session_Key="desk")
        await there.runtime.lifecycle.forget(ForgetOwner(), owner="anna")
        assert (await there.ask("GET", "/api/sessions", token=anna)).status == 401
        assert (await there.ask("GET", "/api/sessions", token=ben)).status == 200


async def test_whoever_listens_is_let_go_when_the_token_is_revoked(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        # Without tokens anybody at this machine may listen, and no more once there is one.
        async with there.http.get(there.url + "/api/events") as anybody:
            await anybody.content.readuntil(b"\n\n")
            anna, ben = await there.token("anna"), await there.token("ben")
            async with asyncio.timeout(3):
                assert await anybody.content.read() == b""
        listen = [
            there.http.get(there.url + "/api/events", headers={"Authorization": f"Bearer {token}"})
            for token in (anna, ben)
        ]
        async with listen[0] as hers, listen[1] as his:
            for stream in (hers, his):
                await stream.content.readuntil(b"\n\n")
            await there.runtime.store.write(lambda uow: uow.api_keys.remove("anna", "test"))
            async with asyncio.timeout(3):
                assert await hers.content.read() == b""
            await there.say("hello", ben, X_Session_Key="desk")
            async with asyncio.timeout(3):
                assert b"event: boundary" in await his.content.readuntil(b"\n\n")


async def test_whoever_asks_for_the_head_alone_gets_it_and_goes_on(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        old = await begun(there, "one")
        reader, writer = await asyncio.open_connection("127.0.0.1", there.web.port)
        paths = ("/api/events", f"/api/sessions/{old}/export", "/api/sessions", "/health")
        async with asyncio.timeout(3):
            for path in paths * 5:
                writer.write(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert "everthread_event_listeners 0\n" in (await there.ask("GET", "/metrics")).body.decode()
        assert (await there.ask("OPTIONS", "/api/sessions")).status == 405


# --- What is sent again ----------------------------------------------------------------------------------------------


async def test_a_number_that_was_used_for_other_words_is_refused(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("slow", chunks=5, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as there,
    ):
        first = asyncio.ensure_future(there.say("one", X_Session_Key="desk", Idempotency_Key="a"))
        await until(lambda: there.gateway.worker.running == 1)
        for _ in range(2):
            other = await there.say("two", X_Session_Key="desk", Idempotency_Key="a")
            assert (other.status, other.code) == (409, "idempotency_key_used")
            assert (await first).text == "slow"
        assert (await there.say("one", X_Session_Key="desk", Idempotency_Key="a")).text == "slow"


async def test_what_comes_again_does_not_move_the_conversation_back(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        old = await begun(there, "one")
        answer = await there.say("two", X_Session_Id=old, Idempotency_Key="a")
        new = await there.say("/new", X_Session_Key=f"id-{old}")
        again = await there.say("two", X_Session_Id=old, Idempotency_Key="a")
        assert (again.status, again.text, again.headers["X-Session-Id"]) == (200, answer.text, old)
        assert (await there.session(key(f"id-{old}"))).id == new.headers["X-Session-Id"]


async def test_a_client_that_tries_again_by_itself_does_not_say_it_twice(tmp_path: Path) -> None:
    """The official client sends again what was answered with 409 or 5xx, unless it is told not to."""
    async with (
        ModelServer(lambda _: Say("slow", chunks=50, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as there,
    ):
        client = openai.AsyncOpenAI(base_url=there.url + "/v1", api_key="none", max_retries=3)
        for name, command in (("left", "/new"), ("stopped", "/stop")):
            asking = asyncio.ensure_future(
                client.chat.completions.create(
                    model="everthread",
                    messages=[{"role": "user", "content": "hello"}],
                    extra_headers={"X-Session-Key": name},
                )
            )
            await until(lambda: there.gateway.worker.running == 1)
            await there.say(command, X_Session_Key=name)
            with contextlib.suppress(openai.APIStatusError):
                await asking
            await there.rest()
        taken = [await there.runtime.store.read(lambda uow, n=n: uow.inbox.get(n)) for n in range(1, 9)]
        assert [row.inbound.key.chat for row in taken if row is not None and not row.inbound.command] == [
            "left",
            "stopped",
        ]
        await client.close()


async def test_nothing_new_is_asked_of_a_model_while_it_stops(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        there.gateway.draining = True
        refused = await there.ask("POST", CHAT, BODY)
        assert (refused.status, refused.code) == (503, "stopping")
        assert refused.headers["Retry-After"]


async def test_a_message_that_is_stopped_before_its_first_word_is_no_fault_of_the_model(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("slow", delay_s=5)) as model, http_gateway(tmp_path, model) as there:
        asking = asyncio.ensure_future(there.say("hello", X_Session_Key="desk"))
        await until(lambda: there.gateway.worker.running == 1)
        await there.say("/stop", X_Session_Key="desk")
        answer = await asking
        assert (answer.status, answer.code) == (409, "stopped")
        assert answer.headers["X-Session-Id"]
        assert [turn.user_text for turn in await there.turns(key=key("desk"))] == ["hello"]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"no http at all\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_refused_in_the_same_shape(
    tmp_path: Path, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.web.port)
        writer.write(sent)
        head, _, body = (await gone(reader)).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert msgspec.json.decode(body)["error"]["code"] == "bad_request"
        assert "uvicorn.error" not in {record.name for record in caplog.records}


# --- Clients that take their time ------------------------------------------------------------------------------------


async def gone(reader: asyncio.StreamReader) -> bytes:
    """What came until the other side closed."""
    async with asyncio.timeout(5):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /hea",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx",
    ],
    ids=["nothing", "half a head", "half a second head", "the body of what is answered"],
)
async def test_a_request_that_never_comes_is_not_waited_for(
    tmp_path: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_S_MAX", 0.5)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.web.port)
        writer.write(sent)

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    await asyncio.sleep(0.1)
                    writer.write(b"x" if sent else b"")

        dripping = asyncio.ensure_future(drip())
        await gone(reader)
        dripping.cancel()
        writer.close()
        assert (await there.ask("GET", "/health")).status == 200


async def test_a_turn_takes_longer_than_a_head_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S_MAX", 0.2)
    async with (
        ModelServer(lambda _: Say("slow", chunks=6, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as there,
    ):
        for _ in range(2):
            assert (await there.say("hello", X_Session_Key="desk")).text == "slow"


async def test_a_body_that_never_comes_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everthread.web.request.BODY_S_MAX", 0.3)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.web.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{{".encode())
        assert (await gone(reader)).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_no_more_than_so_many_are_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 3)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        open_ones = [await asyncio.open_connection("127.0.0.1", there.web.port) for _ in range(3)]
        reader, writer = await asyncio.open_connection("127.0.0.1", there.web.port)
        answer = await gone(reader)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b'"too_many_connections"' in answer
        for _, other in (*open_ones, (reader, writer)):
            other.close()
        await asyncio.sleep(0.1)
        assert (await there.ask("GET", "/health")).status == 200


async def test_whoever_does_not_read_is_dropped_and_the_turn_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STUCK_S_MAX", 0.5)
    text = "x" * 8_000_000
    script = lambda _: Say(text, chunks=40, delay_s=0.05)  # noqa: E731
    async with ModelServer(script) as model, http_gateway(tmp_path, model) as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.web.port, limit=1024)
        body = b'{"messages":[{"role":"user","content":"hi"}],"stream":true}'
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nX-Session-Key: desk\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await until(lambda: there.gateway.worker.subscribed == 1)
        await until(lambda: not there.gateway.worker.subscribed, "the client is dropped")
        assert there.gateway.worker.running == 1
        await there.rest()
        (turn,) = await there.turns(key=key("desk"))
        assert turn.assistant_text == text
        writer.transport.abort()
        del reader


async def test_what_nobody_reads_is_not_kept_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversing, "QUEUED_MAX", 5)
    # More than the connection itself can hold.
    async with (
        ModelServer(lambda _: Say("y" * 16_000_000, chunks=800)) as model,
        http_gateway(tmp_path, model) as there,
    ):
        async with there.http.post(
            there.url + CHAT, json=BODY | {"stream": True}, headers={"X-Session-Key": "desk"}
        ) as response:
            await there.rest()
            read = await response.read()
        assert b'"too_slow"' in read
        assert b"[DONE]" not in read
        (turn,) = await there.turns(key=key("desk"))
        assert len(turn.assistant_text) == 16_000_000
