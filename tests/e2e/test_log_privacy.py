"""No text of a conversation reaches the log, whatever fails, and its lines go when their session is forgotten."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fake_platform import FakePlatform
from tests.gateway import GatewayFixture, gateway_fixture
from tests.http_gateway import http_gateway
from tests.runtime import until

from everthread.config.schema import Settings
from everthread.domain.errors import PlatformRefused, PlatformUnavailable, Rejected, ToolFailed
from everthread.domain.media import Media
from everthread.domain.model import SessionRef, ToolCall
from everthread.log_file import LogFile, log_to_file
from everthread.plugins import hookimpl
from everthread.ports.memory import Capability, MemoryProvider
from everthread.ports.model import ToolSchema
from everthread.ports.platform import Unreadable
from everthread.ports.tools import Tool, ToolUse
from everthread.store.error_details import ErrorDetail
from everthread.testing.model_server.replies import Fail, Say
from everthread.testing.model_server.server import ModelServer
from everthread.web.errors import to_http_error

MARKER = "quokka"
SAYS = f"my {MARKER} is ill"


class Colour(Enum):
    RED = "red"


class Paint(msgspec.Struct):
    colour: Colour


def validation_error(text: str) -> Exception:
    """Return an error that quotes a value, as validating libraries raise it."""
    try:
        msgspec.convert({"colour": text}, Paint)
    except msgspec.ValidationError as error:
        return error
    raise AssertionError


class EchoingProvider(MemoryProvider):
    """Memory provider whose errors and log lines quote what it was given."""

    name = "echo"
    capabilities = Capability.RECALL

    def __init__(self) -> None:
        self.called: set[str] = set()

    def _fail(self, hook: str, text: str) -> None:
        self.called.add(hook)
        logging.getLogger("vendor.client").warning("400 Bad Request: %s", text)
        try:
            raise validation_error(text)
        except msgspec.ValidationError as error:
            raise ValueError(f"{hook} can't store {text!r}") from error

    async def prefetch(self, query: str, **more: Any) -> Any:
        self._fail("prefetch", query)

    def queue_prefetch(self, query: str, **more: Any) -> None:
        self._fail("queue_prefetch", query)

    def on_turn_start(self, user: str, **more: Any) -> None:
        self._fail("on_turn_start", user)

    async def sync_turn(self, user: str, assistant: str, **more: Any) -> None:
        self.called.add("sync_turn")
        raise Rejected("echo", f"invalid: {user}")

    def system_prompt_block(self, *, ref: SessionRef) -> str:
        self._fail("system_prompt_block", SAYS)
        return ""


class EchoingPlugin:
    """Plugin whose hooks fail and quote the conversation."""

    def __init__(self) -> None:
        self.called: set[str] = set()

    @hookimpl
    def on_turn_end(self, turn: Any) -> None:
        self.called.add("on_turn_end")
        raise RuntimeError(f"turn {turn!r}")

    @hookimpl
    def pre_model_call(self, ref: Any, model: str) -> None:
        self.called.add("pre_model_call")
        raise RuntimeError(SAYS)

    @hookimpl
    def post_tool_call(self, ref: Any, name: str, result: str) -> None:
        self.called.add("post_tool_call")
        raise RuntimeError(f"{name}: {result}")

    @hookimpl
    def on_session_finalize(self, session_id: str, platform: str) -> None:
        self.called.add("on_session_finalize")
        thread = threading.Thread(target=_raise, args=(SAYS,))
        thread.start()
        thread.join()


def _raise(text: str) -> None:
    raise LookupError(text)


async def _crash(arguments: Mapping[str, Any], use: ToolUse) -> str:
    raise KeyError(arguments.get("text", SAYS))


async def _refuse(arguments: Mapping[str, Any], use: ToolUse) -> str:
    raise ToolFailed(f"no: {arguments.get('text', SAYS)}")


def _tool(name: str, run: Any) -> Tool:
    return Tool(ToolSchema(name, "fails", {"type": "object", "properties": {"text": {"type": "string"}}}), run)


class EchoingPlatform(FakePlatform):
    """Platform whose errors quote the message that it was to send."""

    failures = 2

    async def send(self, message: Any) -> str:
        if self.failures:
            self.failures -= 1
            raise PlatformUnavailable(f"flood: {message.text} {SAYS}", 0.01)
        if "refuse" in message.text:
            raise PlatformRefused(f"400: can't parse {message.text} {SAYS}")
        if "crash" in message.text:
            raise TypeError(f"{message.text} {SAYS}")
        return await super().send(message)

    async def fetch(self, media: Media, bytes_max: int) -> bytes:
        raise RuntimeError(f"{media!r} {SAYS}")


def _model(request: Any) -> Any:
    text = next(m.content for m in reversed(request.messages) if m.role == "user")
    answered = request.messages[-1].role == "tool"
    if "bad" in text:
        return Fail(400, f"invalid input: {text}")
    if "busy" in text:
        return Fail(500, f"overloaded by: {text}")
    if "tool" in text and not answered:
        arguments = json.dumps({"text": text})
        return Say(calls=(ToolCall("c1", "crash", arguments), ToolCall("c2", "refuse", arguments)))
    return Say(f"{text} ({MARKER})")


def log_text(home: Path) -> str:
    return "".join(path.read_text() for path in sorted((home / "logs").iterdir()) if path.is_file())


@pytest.fixture
def log(tmp_path: Path) -> Any:
    handler = log_to_file(Settings(tmp_path))
    assert handler is not None
    yield handler
    handler.leave()


@pytest.mark.timeout(60)
async def test_the_log_cannot_be_used_to_read_messages(tmp_path: Path, log: LogFile) -> None:
    provider, plugin, platform = EchoingProvider(), EchoingPlugin(), EchoingPlatform()
    tools = (_tool("crash", _crash), _tool("refuse", _refuse))
    async with (
        ModelServer(_model) as model,
        gateway_fixture(
            tmp_path, model, platform, providers=(provider,), plugins=(plugin,), extra_tools=tools
        ) as fixture,
    ):
        for text in ("hello", "use a tool", "this is bad", "this is busy"):
            await fixture.hear(f"{text}, {SAYS}")
        for text in ("refuse this", "crash this"):
            fixture.platform.say(f"{text}, {SAYS}")
            await fixture.rest()
        for command in (f"/title {MARKER}", f"/model {MARKER}", f"/search {MARKER}", f"/{MARKER}", "/new", "/compress"):
            fixture.platform.say(command)
            await fixture.rest()
        await fixture.hear(f"another, {SAYS}")
        await _break_internals(fixture)
        await until(lambda: {"sync_turn", "on_turn_start", "queue_prefetch"} <= provider.called)
        await until(lambda: {"on_turn_end", "post_tool_call", "on_session_finalize"} <= plugin.called)
        await asyncio.sleep(0.2)
    log.flush()
    text = log_text(tmp_path)
    quoting = [line[:400] for line in text.splitlines() if MARKER in line]
    assert text.count("\n") > 40, "the failures must have been logged"
    assert quoting == []


async def test_a_guest_cannot_empty_the_log_by_deleting_a_session(tmp_path: Path, log: LogFile) -> None:
    async with ModelServer(lambda _: Say("fine")) as model, http_gateway(tmp_path, model) as fixture:
        guest = await fixture.token("bea")
        theirs = await fixture.converse("hello", token=guest)
        mine = await fixture.converse("hello")
        log.flush()
        (tmp_path / "logs" / "gateway.out").write_text(f"the disk is full\na plugin: {theirs} failed\n")
        (tmp_path / "logs" / "everthread.log.1").write_text("a line of an earlier version\n")
        store = fixture.runtime.store
        detail = ErrorDetail(time.time(), "r1", "everthread", "the disk is full")
        await store.write(lambda uow: uow.error_details.add(detail))
        assert theirs in log_text(tmp_path)
        size = sum(path.stat().st_size for path in (tmp_path / "logs").glob("everthread.log*"))
        assert (await fixture.ask("DELETE", f"/api/sessions/{theirs}", token=guest)).status == 200
        log.flush()
        text = log_text(tmp_path)
        assert theirs not in text
        assert text.count(mine) == len([line for line in text.splitlines() if mine in line]) > 0
        assert sum(path.stat().st_size for path in (tmp_path / "logs").glob("everthread.log*")) >= size
        assert [each in text for each in ("the disk is full", "a line of an earlier version")] == [True, True]
        assert await store.read(lambda uow: uow.error_details.get("r1"))
        assert (await fixture.ask("DELETE", f"/api/sessions/{mine}")).status == 200
        text = log_text(tmp_path)
        assert [each in text for each in ("the disk is full", "a line of an earlier version")] == [False, False]
        assert not await store.read(lambda uow: uow.error_details.get("r1"))


async def test_each_line_about_a_person_carries_session_or_owner(tmp_path: Path, log: LogFile) -> None:
    provider, plugin = EchoingProvider(), EchoingPlugin()
    async with (
        ModelServer(_model) as model,
        gateway_fixture(tmp_path, model, providers=(provider,), plugins=(plugin,)) as fixture,
    ):
        for text in ("hello", "use a tool", "this is bad"):
            await fixture.hear(f"{text}, {SAYS}")
        fixture.platform.say("/new")
        await fixture.hear(f"again, {SAYS}")
        await until(lambda: {"on_turn_end", "on_session_finalize"} <= plugin.called)
        await fixture.settled()
    log.flush()
    entries = [json.loads(line) for line in log_text(tmp_path).splitlines() if line.startswith('{"v"')]
    concerning = [e for e in entries if e["text"] != "a thread failed" and not e["text"].startswith("a thread failed")]
    assert len(concerning) > 20
    assert [e for e in concerning if not (e.get("session") or e.get("owner"))] == []


async def _break_internals(fixture: GatewayFixture) -> None:
    """Errors in places that no adapter reaches, with messages that quote a user."""
    platform, gateway = fixture.platform, fixture.gateway
    media = Media("image", f"{MARKER}.png", handle="h1")
    update = platform.say(SAYS)
    platform.deliver(msgspec.structs.replace(update, update_id="m1", media=(media,)))
    await fixture.rest()
    await gateway.inbound.handle(Unreadable("fake", "77", f"invalid value {SAYS!r}"))
    for error in (ValueError(SAYS), ExceptionGroup(SAYS, [ValueError(SAYS)]), validation_error(SAYS)):
        to_http_error(error)
    failing: Any = asyncio.ensure_future(asyncio.to_thread(_raise, SAYS))
    await asyncio.wait({failing})
    del failing
    gc.collect()
    logging.getLogger("vendor").error("failed: %s", SAYS, exc_info=ValueError(SAYS))
    logging.getLogger("everthread.agent").warning("%s", validation_error(SAYS), stack_info=True)
