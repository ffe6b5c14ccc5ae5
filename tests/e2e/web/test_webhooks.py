"""Webhooks: signed deliveries are stored once, others change nothing."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.http_gateway import Answer, HttpGateway, http_gateway

from everthread.config.schema import GatewaySettings, Variables, WebhookSettings
from everthread.domain.model import Inbound, SessionKey
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.web.errors import HttpError
from everthread.web.webhooks import render_text

SECRET = "not for strangers"
TEMPLATE = "Build {build.id} of {repo} is {build.state}: {commits.0.message}{nothing.there}"
WEBHOOKS = {
    "ci": WebhookSettings("CI_SECRET", "everthread", TEMPLATE),
    "hub": WebhookSettings("HUB_SECRET", "github", TEMPLATE),
    "raw": WebhookSettings("RAW_SECRET", "everthread", owner="ben"),
}
SECRETS = {"ci": SECRET, "hub": SECRET + " hub", "raw": SECRET + " raw"}
VARIABLES = Variables({f"{name.upper()}_SECRET": secret for name, secret in SECRETS.items()})
ENVIRONMENT: dict[str, Any] = {
    "gateway": GatewaySettings(webhooks=WEBHOOKS, messages_per_minute=100_000),
    "variables": VARIABLES,
}
SENT = {"build": {"id": 7, "state": "red"}, "repo": "porto", "commits": [{"message": "mend it"}]}


def signature(body: bytes, timestamp: str | None = None, secret: str = SECRET) -> str:
    content = body if timestamp is None else timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()


async def send(fixture: HttpGateway, body: bytes, name: str = "ci", age_s: float = 0.0, **headers: str) -> Answer:
    timestamp = str(int(time.time() - age_s))
    signed = {"X_Signature": signature(body, timestamp, SECRETS.get(name, SECRET)), "X_Timestamp": timestamp} | headers
    return await fixture.ask("POST", f"/hooks/{name}", body, **signed)


async def said(fixture: HttpGateway, name: str = "ci") -> list[str]:
    await fixture.rest()
    key = SessionKey.parse(f"agent:main:hooks:dm:{name}")
    return [turn.user_text for turn in await fixture.turns(key=key)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


NAMES = st.lists(st.sampled_from(["a", "0", "build", "-1", "__class__", "9999999"]), min_size=1, max_size=20)
SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
HEADERS = st.dictionaries(
    st.sampled_from(["X-Signature", "X-Timestamp", "X-Hub-Signature-256", "X-GitHub-Delivery", "Content-Type"]),
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=80)
    | st.integers(-(10**20), 10**20).map(str)
    | st.just(f"sha256={'0' * 64}"),
    max_size=5,
)


async def test_a_signed_delivery_becomes_a_message_by_its_template(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Oh.")) as model, http_gateway(tmp_path, model, **ENVIRONMENT) as fixture:
        answer = await send(fixture, msgspec.json.encode(SENT))
        assert (answer.status, answer.json["new"]) == (202, True)
        assert await said(fixture) == ["(From the webhook ci)\nBuild 7 of porto is red: mend it"]
        assert fixture.platform.sent == []
        raw = await send(fixture, b"/new just text", "raw")
        assert raw.status == 202
        assert await said(fixture, "raw") == ["(From the webhook raw)\n/new just text"]
        assert (await fixture.session(SessionKey.parse("agent:main:hooks:dm:raw"))).owner == "ben"


async def test_a_repeated_delivery_is_stored_once(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Oh.")) as model, http_gateway(tmp_path, model, **ENVIRONMENT) as fixture:
        body, timestamp = msgspec.json.encode(SENT), str(int(time.time()))
        signed = {"X_Signature": signature(body, timestamp), "X_Timestamp": timestamp}
        first = await fixture.ask("POST", "/hooks/ci", body, **signed)
        answers: list[Answer] = []
        upper = signed | {"X_Signature": "sha256=" + signed["X_Signature"][7:].upper(), "X_Delivery_Id": "9"}
        for again in (signed, upper):
            answer = await fixture.ask("POST", "/hooks/ci", body, **again)
            assert (answer.status, answer.json) == (202, {"id": first.json["id"], "new": False})
        for number in ("1", "1", "2"):
            headers = {"X_Hub_Signature_256": signature(body, secret=SECRETS["hub"]), "X_GitHub_Delivery": number}
            answer = await fixture.ask("POST", "/hooks/hub", body, **headers)
            assert (answer.status, answer.json["new"]) == (202, not answers)
            answers.append(answer)
        assert (len(await said(fixture)), len(await said(fixture, "hub"))) == (1, 1)


async def test_wrong_old_and_unknown_deliveries_change_nothing(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Oh.")) as model, http_gateway(tmp_path, model, **ENVIRONMENT) as fixture:
        body = msgspec.json.encode(SENT)
        now = str(int(time.time()))
        for headers in (
            {},
            {"X_Signature": signature(body, now)},
            {"X_Signature": signature(body, now, "guessed"), "X_Timestamp": now},
            {"X_Signature": signature(body), "X_Timestamp": now},
            {"X_Signature": signature(body, now)[7:], "X_Timestamp": now},
            {"X_Signature": signature(body, now), "X_Timestamp": str(int(now) + 1)},
            {"X_Hub_Signature_256": signature(body)},
            {"X_Hub_Signature_256": signature(body, secret="guessed")},
            {"X_Hub_Signature_256": signature(body), "X_Signature": "sha256=00", "X_Timestamp": now},
        ):
            answer = await fixture.ask("POST", "/hooks/ci", body, **headers)
            assert (answer.status, answer.code) == (401, "bad_signature"), headers
        assert (await send(fixture, body, "hub")).status == 401
        assert (await send(fixture, body, age_s=301)).status == 401
        assert (await send(fixture, body, age_s=-301)).status == 401
        assert (await send(fixture, body, "nobody")).status == 401
        assert (await send(fixture, b"{no json")).code == "bad_json"
        assert await fixture.runtime.store.read(lambda uow: uow.inbox.keys_waiting()) == ()
        assert (await send(fixture, body, age_s=290)).status == 202


async def test_an_unknown_hook_cannot_be_told_from_a_wrong_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown names and wrong signatures get the same response after the same work."""
    digested: list[int] = []
    digest = hmac.new

    class Counted:
        def __init__(self, key: bytes, digestmod: Any) -> None:
            self.inner = digest(key, digestmod=digestmod)
            digested.append(0)

        def update(self, content: bytes) -> None:
            digested[-1] += len(content)
            self.inner.update(content)

        def hexdigest(self) -> str:
            return self.inner.hexdigest()

    async with ModelServer(lambda _: Say("Oh.")) as model, http_gateway(tmp_path, model, **ENVIRONMENT) as fixture:
        monkeypatch.setattr("everthread.web.webhooks.hmac.new", Counted)
        now, body = str(int(time.time())), b"x" * 100_000
        wrong = {"X_Signature": "sha256=" + "0" * 64, "X_Timestamp": now}
        for headers in (wrong, {**wrong, "X_Timestamp": "1"}, {"X_Hub_Signature_256": "sha256=" + "0" * 64}, {}):
            names = ("ci", "hub", "nobody")
            answers = [await fixture.ask("POST", f"/hooks/{name}", body, **headers) for name in names]
            seen = {
                (a.status, a.body, tuple(sorted(set(a.headers.items()) - {("date", a.headers["date"])})))
                for a in answers
            }
            assert len(seen) == 1, seen
        # Both schemes are verified for each of the three names; nothing is without a well-formed and fresh header.
        assert [digested.count(len(body) + more) for more in (11, 0)] == [3, 3]
        assert len(digested) == 6
        impossible = await fixture.ask("POST", "/hooks/%00", body, **wrong)
        assert (impossible.status, impossible.json["error"]["message"]) == (401, "Wrong signature.")
        assert len(digested) == 6
        for empty in (b"", b"\0" * 32):
            forged = {"X_Signature": "sha256=" + digest(empty, f"{now}.".encode() + body, "sha256").hexdigest()}
            assert (await fixture.ask("POST", "/hooks/nobody", body, X_Timestamp=now, **forged)).status == 401


@given(JSON, NAMES, st.text(max_size=50))
def test_any_template_of_any_json_renders_or_is_refused(sent: Any, path: list[str], around: str) -> None:
    hook = WebhookSettings("X", "everthread", f"{around}{{{'.'.join(path)}}}")
    status, text = 200, "words"
    try:
        text = render_text(hook, msgspec.json.encode(sent))
    except HttpError as refused:
        status = refused.status
    assert status in (200, 400)
    assert text.encode()
    assert "<class" not in text.replace(around, "")


def test_any_delivery_is_stored_or_refused(tmp_path: Path) -> None:
    """Unsigned deliveries change nothing; signed ones are stored, or refused if they are not text."""

    async def fuzz() -> None:
        async with ModelServer(lambda _: Say("Oh.")) as model, http_gateway(tmp_path, model, **ENVIRONMENT) as fixture:
            loop = asyncio.get_running_loop()

            def ask(what: Any) -> Answer:
                return asyncio.run_coroutine_threadsafe(what, loop).result(10)

            @settings(max_examples=60, deadline=None, suppress_health_check=SLOW, database=None)
            @given(
                st.sampled_from(["ci", "raw", "no", "%00", "..", "é"]), HEADERS, st.binary(max_size=200), st.booleans()
            )
            def deliver(name: str, headers: dict[str, str], body: bytes, genuine: bool) -> None:
                answer = ask(
                    send(fixture, body, name) if genuine else fixture.ask("POST", f"/hooks/{name}", body, **headers)
                )
                known = genuine and name in ("ci", "raw")
                assert answer.status in ((202, 400) if known else (401, 404)), (name, genuine, answer.body)
                assert b"Traceback" not in answer.body

            @settings(max_examples=40, deadline=None, suppress_health_check=SLOW, database=None)
            @given(JSON)
            def deliver_json(sent: Any) -> None:
                assert ask(send(fixture, msgspec.json.encode(sent))).status == 202

            await asyncio.to_thread(deliver)
            await asyncio.to_thread(deliver_json)
            await fixture.rest()

    asyncio.run(fuzz())


async def test_the_deliveries_of_a_webhook_are_limited(tmp_path: Path) -> None:
    limited = GatewaySettings(webhooks=WEBHOOKS, messages_per_minute=2)
    environment: dict[str, Any] = ENVIRONMENT | {"gateway": limited}
    async with ModelServer(lambda _: Say("Oh.")) as model, http_gateway(tmp_path, model, **environment) as fixture:
        first = await send(fixture, b"one", "raw")
        timestamp = str(int(time.time()))
        signed = {"X_Signature": signature(b"two", timestamp, SECRETS["raw"]), "X_Timestamp": timestamp}
        answers = [await fixture.ask("POST", "/hooks/raw", b"two", **signed) for _ in range(3)]
        assert [first.status, *(answer.status for answer in answers)] == [202, 202, 429, 429]
        assert (answers[-1].code, answers[-1].headers["Retry-After"]) == ("too_many", "30")
        assert (await send(fixture, msgspec.json.encode(SENT))).status == 202, "another webhook"
        assert (await send(fixture, b"three", "raw", X_Signature="sha256=" + "0" * 64)).status == 401


async def test_a_wrong_signature_costs_the_owner_of_the_webhook_nothing(tmp_path: Path) -> None:
    limited = GatewaySettings(webhooks=WEBHOOKS, messages_per_minute=1)
    environment: dict[str, Any] = ENVIRONMENT | {"gateway": limited}
    async with ModelServer(lambda _: Say("Oh.")) as model, http_gateway(tmp_path, model, **environment) as fixture:
        for _ in range(3):
            assert (await send(fixture, b"one", "raw", X_Signature="sha256=" + "0" * 64)).status == 401
        assert (await send(fixture, b"one", "raw")).status == 202


async def test_a_webhook_cannot_use_up_the_messages_of_its_owner(tmp_path: Path) -> None:
    limited = GatewaySettings(webhooks=WEBHOOKS, messages_per_minute=2)
    environment: dict[str, Any] = ENVIRONMENT | {"gateway": limited}
    async with ModelServer(lambda _: Say("Oh.")) as model, http_gateway(tmp_path, model, **environment) as fixture:
        answers = [await send(fixture, msgspec.json.encode(SENT | {"n": number})) for number in range(3)]
        assert [answer.status for answer in answers] == [202, 202, 429]
        for text in ("one", "two"):
            assert (await fixture.say(text, X_Session_Key="desk")).status == 200
        assert (await fixture.say("three", X_Session_Key="desk")).status == 429


async def test_a_disabled_webhook_is_answered_like_an_unknown_one(tmp_path: Path) -> None:
    """An upgrade disables a webhook without a scheme, and those that share a secret; the others go on."""
    hooks = {
        "old": WebhookSettings("OLD_SECRET"),
        "one": WebhookSettings("SAME_SECRET", "everthread"),
        "two": WebhookSettings("SAME_SECRET", "github"),
        "three": WebhookSettings("COPY_SECRET", "everthread"),
    }
    shared = dict.fromkeys(("SAME_SECRET", "COPY_SECRET"), SECRET)
    variables = Variables(shared | {"CI_SECRET": "another", "OLD_SECRET": "yet another"})
    gateway = GatewaySettings(webhooks=hooks | {"ci": WEBHOOKS["ci"]})
    environment: dict[str, Any] = {"gateway": gateway, "variables": variables}
    async with ModelServer(lambda _: Say("Oh.")) as model, http_gateway(tmp_path, model, **environment) as fixture:
        body, now = msgspec.json.encode(SENT), str(int(time.time()))
        answers: list[Answer] = []
        for name in (*hooks, "nobody"):
            secret = "yet another" if name == "old" else SECRET
            for signed in (
                {"X_Signature": signature(body, now, secret), "X_Timestamp": now},
                {"X_Hub_Signature_256": signature(body, secret=secret)},
            ):
                answers.append(await fixture.ask("POST", f"/hooks/{name}", body, **signed))
        assert {(answer.status, answer.body) for answer in answers} == {(401, answers[-1].body)}
        signed = {"X_Signature": signature(body, now, "another"), "X_Timestamp": now}
        assert (await fixture.ask("POST", "/hooks/ci", body, **signed)).status == 202


async def test_a_delivery_from_before_the_upgrade_cannot_be_replayed(tmp_path: Path) -> None:
    """Ids were the bare signature once."""
    async with ModelServer(lambda _: Say("Oh.")) as model, http_gateway(tmp_path, model, **ENVIRONMENT) as fixture:
        body = msgspec.json.encode(SENT)
        signed = signature(body, secret=SECRETS["hub"])
        key = SessionKey.parse("agent:main:hooks:dm:hub")
        old = Inbound(key, fixture.runtime.settings.owner, "before", "hub", signed.removeprefix("sha256="))
        row, _ = await fixture.runtime.lifecycle.accept(old)
        answer = await fixture.ask("POST", "/hooks/hub", body, X_Hub_Signature_256=signed)
        assert (answer.status, answer.json) == (202, {"id": row.id, "new": False})
        assert await said(fixture, "hub") == ["before"]
