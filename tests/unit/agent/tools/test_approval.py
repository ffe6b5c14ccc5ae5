"""Rules of approval: which calls are asked about, and what the user is shown. tests/e2e has them with real servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agent_runtime import ANYTHING, AgentFixture, says_nothing
from tests.fake_model import FakeModel

from everthread.agent.events import ApprovalRequest, ToolBegan
from everthread.agent.tools.approval import ApprovalRules
from everthread.domain.errors import NobodyToAsk, NotApproved
from everthread.domain.model import ChatType, SessionKey, SessionRef, ToolCall
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool

REF = SessionRef("s", 0, SessionKey("main", "cli", ChatType.DM, "1"), 0, "me")
CALL = ToolCall("c", "axe", "{}")
AXE = Tool(ToolSchema("axe", "Fells.", ANYTHING), says_nothing, dangerous=True)
RULES = ApprovalRules()


class User:
    """Answers every question with `answer`, or raises it."""

    def __init__(self, answer: bool | Exception = True) -> None:
        self.answer = answer
        self.asked: list[ApprovalRequest] = []

    async def approve(self, request: ApprovalRequest, ref: SessionRef) -> bool:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def refusal(user: User, rules: ApprovalRules = RULES, *, asks: bool = True, **arguments: object) -> str:
    return await rules.refusal(AXE, CALL, arguments, REF, user.approve, asks=asks)


async def test_a_call_that_needs_no_approval_is_not_asked_about() -> None:
    user = User(False)
    assert await refusal(user, asks=False) == ""
    assert user.asked == []


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (True, ""),
        (False, "this call was not approved by the user; do not try it again unasked"),
        (NotApproved("the user may not"), "the user may not"),
        (NobodyToAsk(), "there is nobody to ask here; tell the user that the operator can allow the tool"),
    ],
)
async def test_the_model_is_told_why_a_call_is_refused(answer: bool | Exception, told: str) -> None:
    assert told in await refusal(User(answer))


async def test_a_call_can_not_hide_an_argument_from_the_user() -> None:
    user = User()
    text = "x" * 1_200 + "\nrm -rf ~\n" + " " * 500 + "y"
    assert await refusal(user, command=text, path="/tmp/\u202egpj.exe", last="z") == ""
    [request] = user.asked
    assert "x" * 1_200 in request.text
    assert "\n  | rm -rf ~\n" in request.text
    assert r"/tmp/\u202egpj.exe" in request.text
    assert '\n"last": "z"' in request.text


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("a\n" * 37 + "b", False),
        ("a\n" * 38 + "b", True),
        ("x" * 2_980, False),
        ("x" * 3_000, True),
        ("\u202e" * 600, True),
    ],
    ids=["lines", "too many lines", "characters", "too many characters", "invisible characters"],
)
async def test_a_call_too_large_to_be_read_is_refused_whatever_the_front_end_answers(text: str, refused: bool) -> None:
    user = User()
    told = await refusal(user, command=text)
    [request] = user.asked
    assert bool(told) is refused
    assert bool(request.refusal) is refused
    if refused:
        assert "an approval request shows at most 40 lines and 3,000 characters" in told
        assert request.refusal.startswith("axe was refused: the call has ")
        assert len(request.description) < 100, "the call itself must not be shown"


async def test_the_settings_can_change_the_size_of_a_call_that_is_shown() -> None:
    assert await refusal(User(), ApprovalRules(None, 100, 10_000), command="a\n" * 90) == ""
    assert await refusal(User(), ApprovalRules(None, 2, 10_000), command="a\n" * 3) != ""


async def test_a_refused_call_is_not_run(tmp_path: Path) -> None:
    """The runner obeys the rules."""
    user = User()
    call = ToolCall("c", "axe", '{"command": "' + "x" * 4_000 + '"}')
    async with AgentFixture(tmp_path, FakeModel([call, "done"]), tools=(AXE,)) as core:
        core.approve = user.approve
        await core.ask("go")
        assert not any(isinstance(event, ToolBegan) for event in core.heard)
        assert "Error: the call has" in core.model.sent()
