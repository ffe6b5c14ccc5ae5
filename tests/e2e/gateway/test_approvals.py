"""Approval questions for dangerous tool calls in a chat."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fake_platform import FakePlatform
from tests.gateway import GatewayFixture, gateway_fixture
from tests.http_gateway import http_gateway
from tests.runtime import until

from everthread.config.schema import GatewaySettings, PlatformAccount, ToolSettings
from everthread.domain.errors import PlatformUnavailable
from everthread.domain.model import ChatType, ReplyState, ToolCall, TurnStatus
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

ADMIN = PlatformAccount("fake", allow_all=True, admins=("42",))


class Wipe:
    """Dangerous tool that records its calls."""

    def __init__(self) -> None:
        self.wiped: list[str] = []
        schema = ToolSchema("wipe", "Wipe something.", {"type": "object", "properties": {"what": {"type": "string"}}})
        self.tool = Tool(schema, self._run, dangerous=True)

    async def _run(self, arguments: Mapping[str, Any], use: ToolUse) -> str:
        self.wiped.append(str(arguments.get("what", "")))
        return "wiped"


def wiping(request: Any) -> Say:
    """Model script: call `wipe` with the last message, then report the tool result."""
    last = request.messages[-1]
    if last.role == "tool":
        return Say(f"It came to: {last.content}")
    if "wipe" not in last.content:
        return Say("Fine.")
    count = sum(1 for message in request.messages if message.role == "user")
    return Say("", (ToolCall(f"c{count}", "wipe", f'{{"what": "{last.content}"}}'),))


def question(fixture: GatewayFixture, chat: str = "42") -> str:
    asked = [text for text in fixture.platform.texts(chat) if text.startswith("May I")]
    return asked[-1] if asked else ""


async def asked(fixture: GatewayFixture, chat: str = "42") -> str:
    """Wait for an approval question and return its code."""
    await until(lambda: question(fixture, chat), "a question")
    found = re.search(r"/approve (\w+)", question(fixture, chat))
    assert found
    return found[1]


async def test_a_call_allowed_by_a_button_runs(tmp_path: Path) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True, edits=True)
    async with (
        ModelServer(wiping) as model,
        gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,)) as fixture,
    ):
        platform.say("wipe the disk")
        code = await asked(fixture)
        assert 'wipe {"what": "wipe the disk"}' in question(fixture), "the question must show the tool call"
        assert [button.label for button in platform.sent[-1].buttons] == ["Allow", "Deny"]
        assert not wipe.wiped
        platform.press("Allow")
        await until(lambda: "It came to: wiped" in platform.texts())
        await fixture.rest()
        assert wipe.wiped == ["wipe the disk"]
        await until(lambda: question(fixture).endswith("\nAllowed."), "the question says what became of it")
        assert sum("Allowed" in text for text in platform.texts()) == 1, "only the question may show the decision"
        (turn,) = await fixture.turns()
        assert turn.user_text == "wipe the disk", "the approval must not become a user message"
        assert b"/approve" not in model.requests[-1]
        platform.press("Allow")
        await until(lambda: any("no longer open" in text for text in platform.texts()))
        assert code
        assert wipe.wiped == ["wipe the disk"]


async def test_without_edits_a_reply_says_that_the_call_is_allowed(tmp_path: Path) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True)
    async with (
        ModelServer(wiping) as model,
        gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,)) as fixture,
    ):
        platform.say("wipe the disk")
        await asked(fixture)
        platform.press("Allow")
        await until(lambda: "It came to: wiped" in platform.texts())
        await fixture.rest()
        assert [text for text in platform.texts() if "Allowed" in text] == ['Allowed: wipe {"what": "wipe the disk"}']


async def test_a_denied_call_does_not_run(tmp_path: Path) -> None:
    wipe, platform = Wipe(), FakePlatform()
    async with (
        ModelServer(wiping) as model,
        gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,)) as fixture,
    ):
        platform.say("wipe the disk")
        code = await asked(fixture)
        assert f"/deny {code}" in question(fixture), "without buttons the question must name the command"
        platform.say("/deny")
        await until(lambda: any("not approved by the user" in text for text in platform.texts()))
        assert not wipe.wiped


async def test_only_the_question_with_the_code_is_approved(tmp_path: Path) -> None:
    """A delayed answer to an earlier question must not approve the current one."""
    wipe, platform = Wipe(), FakePlatform()
    async with (
        ModelServer(wiping) as model,
        gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,)) as fixture,
    ):
        platform.say("wipe the disk")
        old = await asked(fixture)
        platform.say(f"/deny {old}")
        await until(lambda: any("not approved" in text for text in platform.texts()))
        await fixture.rest()
        platform.say("wipe the tape")
        await until(lambda: "tape" in question(fixture))
        new = await asked(fixture)
        assert new != old
        platform.say("/approve")
        platform.say(f"/approve {old}")
        await until(lambda: any("no longer open" in text for text in platform.texts()))
        assert any(text.startswith(f"Add the code: /approve {new}") for text in platform.texts())
        assert not wipe.wiped
        platform.say(f"/approve {new.upper()}")
        await until(lambda: wipe.wiped == ["wipe the tape"])


async def test_only_the_user_of_the_turn_may_answer(tmp_path: Path) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True)
    account = PlatformAccount("fake", allow_all=True, admins=("anna", "bert"), groups="shared")
    async with (
        ModelServer(wiping) as model,
        gateway_fixture(tmp_path, model, platform, account=account, extra_tools=(wipe.tool,)) as fixture,
    ):
        platform.say("wipe the disk", chat="g", user="anna", chat_type=ChatType.GROUP)
        code = await asked(fixture, "g")
        platform.press("Allow", chat="g", user="bert", chat_type=ChatType.GROUP)
        await until(lambda: any("Only the user" in text for text in platform.texts("g")))
        platform.say(f"/approve {code}", chat="7", user="anna")
        await until(lambda: any("no longer open" in text for text in platform.texts("7")), "in its own chat only")
        assert not wipe.wiped
        platform.press("Allow", chat="g", user="anna", chat_type=ChatType.GROUP)
        await until(lambda: len(wipe.wiped) == 1)


@pytest.mark.parametrize(
    ("approvals", "user", "asks"),
    [
        ("admins", "42", True),
        ("admins", "mine", True),
        ("admins", "7", False),
        ("everybody", "7", True),
        ("nobody", "42", False),
    ],
)
async def test_the_settings_decide_who_may_approve(tmp_path: Path, approvals: Any, user: str, asks: bool) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True)
    gateway = GatewaySettings(approvals=approvals, links={"me": ("fake:mine",)})
    async with (
        ModelServer(wiping) as model,
        gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,), gateway=gateway) as fixture,
    ):
        platform.say("wipe the disk", chat=user, user=user)
        await until(lambda: platform.texts(user))
        assert bool(question(fixture, user)) == asks
        if asks:
            platform.press("Allow", chat=user, user=user)
            await until(lambda: len(wipe.wiped) == 1)
        else:
            assert "this user may not approve it" in platform.texts(user)[0]
            platform.say("/approve abcd", chat=user, user=user)
            await until(lambda: len(platform.texts(user)) == 2)
            assert not wipe.wiped


async def test_a_question_without_an_answer_counts_as_denied(tmp_path: Path) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True, edits=True)
    gateway = GatewaySettings(approval_s=0.3)
    async with (
        ModelServer(wiping) as model,
        gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,), gateway=gateway) as fixture,
    ):
        platform.say("wipe the disk")
        await until(lambda: any("nobody answered within" in text for text in platform.texts()))
        await until(lambda: question(fixture).endswith("Nobody answered, so it was not done."))
        platform.press("Allow")
        await until(lambda: any("no longer open" in text for text in platform.texts()))
        assert not wipe.wiped


async def test_a_question_that_was_not_sent_in_time_is_withheld(tmp_path: Path) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True)
    platform.faults.append(PlatformUnavailable("down", 1.0))
    gateway = GatewaySettings(approval_s=0.3)
    async with (
        ModelServer(wiping) as model,
        gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,), gateway=gateway) as fixture,
    ):
        platform.say("wipe the disk")
        await until(lambda: platform.texts())
        await fixture.rest()
        assert not question(fixture)
        assert "nobody answered within" in platform.texts()[0]


async def test_other_chats_are_served_while_a_question_is_open(tmp_path: Path) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True)
    async with (
        ModelServer(wiping) as model,
        gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,)) as fixture,
    ):
        platform.say("wipe the disk")
        await asked(fixture)
        for number in range(5):
            platform.say("hello", chat=f"c{number}")
        await until(lambda: all(platform.texts(f"c{number}") == ["Fine."] for number in range(5)))
        platform.say("/status")
        await until(lambda: any(text.startswith("Session:") for text in platform.texts()))
        platform.press("Deny")
        await until(lambda: any("not approved" in text for text in platform.texts()))
        assert not wipe.wiped


@pytest.mark.parametrize("order", ["/stop", "/new"])
async def test_a_question_ends_with_its_turn(tmp_path: Path, order: str) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True, edits=True)
    async with (
        ModelServer(wiping) as model,
        gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,)) as fixture,
    ):
        platform.say("wipe the disk")
        await asked(fixture)
        old = await fixture.session()
        platform.say(order)
        await until(lambda: question(fixture).endswith("This question is closed."))
        platform.press("Allow")
        await until(lambda: any("This question is no longer open" in text for text in platform.texts()))
        platform.say("hello")
        await until(lambda: "Fine." in platform.texts())
        assert not wipe.wiped
        (turn, *_) = await fixture.turns(old.id)
        assert turn.status is (TurnStatus.INTERRUPTED if order == "/stop" else TurnStatus.LATE)


async def test_after_a_restart_the_old_code_is_void_and_the_question_is_asked_again(tmp_path: Path) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True)
    async with ModelServer(wiping) as model:
        async with gateway_fixture(
            tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,), drain_s=0.0
        ) as fixture:
            platform.say("wipe the disk")
            old = await asked(fixture)
        platform.say(f"/approve {old}")
        async with gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,)) as fixture:
            await until(lambda: question(fixture) and f"/approve {old}" not in question(fixture), "a new question")
            await until(lambda: any("no longer open" in text for text in platform.texts()))
            assert not wipe.wiped
            platform.press("Allow")
            await until(lambda: "It came to: wiped" in platform.texts())
            await fixture.rest()
            assert wipe.wiped == ["wipe the disk"]
            (turn,) = await fixture.turns()
            assert turn.status is TurnStatus.DONE


async def test_an_unsent_question_is_withheld_after_a_restart(tmp_path: Path) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True)
    async with ModelServer(wiping) as model:
        platform.faults.append(PlatformUnavailable("down", 60.0))
        async with gateway_fixture(
            tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,), drain_s=0.0
        ) as fixture:
            platform.say("wipe the disk")
            await until(lambda: not platform.faults)
        async with gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,)) as fixture:
            await asked(fixture)
            platform.press("Deny")
            await until(lambda: any("not approved" in text for text in platform.texts()))
            await fixture.rest()
            assert len([text for text in platform.texts() if text.startswith("May I")]) == 1
            left = await fixture.runtime.store.read(lambda uow: uow.outbox.replies(ReplyState.READY, 10))
            assert not left


async def test_two_calls_are_asked_about_one_after_the_other(tmp_path: Path) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True)
    tool = Tool(wipe.tool.schema, wipe.tool.run, parallel=True, dangerous=True)

    def both(request: Any) -> Say:
        if request.messages[-1].role == "tool":
            return Say("Done.")
        calls = tuple(ToolCall(f"c{what}", "wipe", f'{{"what": "{what}"}}') for what in ("one", "two"))
        return Say("", calls)

    async with (
        ModelServer(both) as model,
        gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(tool,)) as fixture,
    ):
        platform.say("wipe both")
        await until(lambda: '"one"' in question(fixture))
        assert '"two"' not in "".join(platform.texts())
        platform.press("Deny")
        await until(lambda: '"two"' in question(fixture))
        platform.press("Allow")
        await until(lambda: "Done." in platform.texts())
        assert wipe.wiped == ["two"]


async def test_allowed_tools_need_no_approval(tmp_path: Path) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True)
    async with (
        ModelServer(wiping) as model,
        gateway_fixture(
            tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,), tools=ToolSettings(("wipe",))
        ) as fixture,
    ):
        platform.say("wipe the disk")
        await until(lambda: "It came to: wiped" in platform.texts())
        assert not question(fixture)


async def test_code_in_a_call_is_fenced(tmp_path: Path) -> None:
    """The arguments of a call must not be able to forge the text of the question."""
    wipe, platform = Wipe(), FakePlatform(buttons=True)

    def sly(request: Any) -> Say:
        if request.messages[-1].role == "tool":
            return Say("Done.")
        return Say("", (ToolCall("c1", "wipe", '{"what":\n\n"```` \\u202e"}' + " " * 50 + "\n"),))

    async with (
        ModelServer(sly) as model,
        gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,)) as fixture,
    ):
        platform.say("wipe")
        await asked(fixture)
        lines = question(fixture).splitlines()
        assert len(lines) == 5
        assert lines[1] == lines[3] == "`````"


async def test_a_call_can_not_disguise_itself_with_bidi_overrides(tmp_path: Path) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True)

    def sly(request: Any) -> Say:
        if request.messages[-1].role == "tool":
            return Say("Done.")
        return Say("", (ToolCall("c1", "wipe", '{"what": "\u202efdp.exe\u200b", "to": "a\\nb\u2066"}'),))

    async with (
        ModelServer(sly) as model,
        gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,)) as fixture,
    ):
        platform.say("wipe")
        await asked(fixture)
        shown = question(fixture)
        assert r'"what": "\u202efdp.exe\u200b"' in shown
        assert "  | b\\u2066\n" in shown
        assert shown.replace("\n", "").isprintable()


async def test_a_call_too_large_to_be_read_is_refused_and_the_user_is_told(tmp_path: Path) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True)

    def huge(request: Any) -> Say:
        last = request.messages[-1]
        if last.role == "tool":
            return Say(f"It came to: {last.content}")
        return Say("", (ToolCall("c1", "wipe", '{"what": "' + "line\\n" * 40 + '"}'),))

    async with (
        ModelServer(huge) as model,
        gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,)),
    ):
        platform.say("wipe")
        await until(lambda: len(platform.texts()) == 2)
        told, answer = platform.texts()
        assert told.startswith("wipe was refused: the call has 43 lines and ")
        assert "at most 40 lines and 3,000 characters (tools.approval_lines, tools.approval_chars)." in told
        assert answer.startswith("It came to: Error: the call has 43 lines")
        assert not wipe.wiped


async def test_a_retried_turn_belongs_to_the_user_who_retried_it(tmp_path: Path) -> None:
    wipe, platform = Wipe(), FakePlatform(buttons=True)
    async with (
        ModelServer(wiping) as model,
        gateway_fixture(tmp_path, model, platform, account=ADMIN, extra_tools=(wipe.tool,)) as fixture,
    ):
        for said in ("wipe the disk", "/retry", "/queue wipe the tape"):
            before = len([text for text in platform.texts() if text.startswith("May I")])
            platform.say(said)
            await until(lambda: len([t for t in platform.texts() if t.startswith("May I")]) > before, said)  # noqa: B023
            platform.press("Deny")
            await fixture.rest()
        assert not wipe.wiped


async def test_dangerous_calls_over_http_are_denied_without_a_question(tmp_path: Path) -> None:
    wipe = Wipe()
    async with (
        ModelServer(wiping) as model,
        http_gateway(tmp_path, model, account=ADMIN, extra_tools=(wipe.tool,)) as fixture,
    ):
        answer = await fixture.say("wipe the disk", X_Session_Key="mine")
        assert answer.status == 200
        assert "there is nobody to ask here" in answer.text
        assert "tools.allow" in answer.text
        assert "No tool call waits for approval here" in (await fixture.say("/approve", X_Session_Key="mine")).text
        assert not wipe.wiped
        assert not fixture.platform.sent
