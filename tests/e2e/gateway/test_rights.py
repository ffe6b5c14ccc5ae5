"""What guests, groups and other programs try to use of the owner's, through a whole gateway."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fake_platform import FakePlatform
from tests.gateway import GatewayFixture, gateway_fixture
from tests.http_gateway import http_gateway
from tests.runtime import until

from everthread.agent.prompt import decode_prompt
from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText
from everthread.config.schema import (
    AccessGrants,
    AccessSettings,
    GatewaySettings,
    PlatformAccount,
    ReviewSettings,
    ToolSettings,
)
from everthread.domain.model import ChatType, Inbound, NoteTarget, SessionKey, ToolCall
from everthread.lifecycle.schedules import NewSchedule
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

LINKED = GatewaySettings(links={"me": ("fake:1",)}, admin_commands=())
SHARED = PlatformAccount("fake", allow_all=True, groups="shared", trigger="all")
GROUP = "group:fake:-9"
DEFAULTS = {"memory", "recall", "session_search", "schedule"}


class Counter:
    """A plugin's tool that records its calls."""

    def __init__(self, name: str = "wallet", **more: Any) -> None:
        self.calls: list[ToolUse] = []
        self.tool = Tool(ToolSchema(name, "Pays.", {"type": "object", "properties": {}}), self._run, **more)

    async def _run(self, arguments: Mapping[str, Any], use: ToolUse) -> str:
        self.calls.append(use)
        return "paid"


def obeys(request: Any) -> Say:
    """Model script: call the tool that the last message names, as `call NAME {ARGUMENTS}`; then repeat its result."""
    last = request.messages[-1]
    if last.role == "tool":
        return Say(f"Result: {last.content}")
    found = re.search(r"call (\w+) ?(\{.*?\})?", last.content)
    if found is None:
        return Say("Fine.")
    count = sum(1 for message in request.messages if message.role in ("user", "tool"))
    return Say("", (ToolCall(f"c{count}", found[1], found[2] or "{}"),))


def furnish(home: Path) -> None:
    """Write the owner's files."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "SOUL.md").write_text("You are Grace, a gardener.")
    (home / "AGENTS.md").write_text("The safe opens with 4711.")
    (home / "GUESTS.md").write_text("Be polite to visitors.")
    SkillFolders(home / "skills").write(SkillText("taxes", "How my taxes are filed.", "Account 99-88-77."))
    SkillFolders(home / "skills").write(SkillText("tea", "How to make tea.", "Boil water."))


async def said(fixture: GatewayFixture, text: str, chat: str = "42", user: str = "", **more: Any) -> str:
    """Send a message and return the answer."""
    before = len(fixture.platform.texts(chat))
    fixture.platform.say(text, chat=chat, user=user or chat, **more)
    await until(lambda: len(fixture.platform.texts(chat)) > before, f"an answer to {text!r}")
    await fixture.rest()
    return fixture.platform.texts(chat)[-1]


async def in_group(fixture: GatewayFixture, text: str, user: str) -> str:
    return await said(fixture, text, "-9", user, chat_type=ChatType.GROUP)


def last_request(model: ModelServer) -> Any:
    """Return the newest request for an answer, decoded; the others are for titles."""
    return msgspec.json.decode(next(body for body in reversed(model.requests) if b"Name the conversation" not in body))


def offered(model: ModelServer) -> set[str]:
    return {tool["function"]["name"] for tool in last_request(model).get("tools", ())}


def system(model: ModelServer) -> str:
    return last_request(model)["messages"][0]["content"]


# --- Tools -----------------------------------------------------------------------------------------------------------


async def test_a_guests_model_cannot_call_a_tool_that_was_not_granted(tmp_path: Path) -> None:
    wallet = Counter()
    async with (
        ModelServer(obeys) as model,
        gateway_fixture(
            tmp_path, model, gateway=LINKED, access=AccessSettings(), extra_tools=(wallet.tool,)
        ) as fixture,
    ):
        assert "there is no tool 'wallet'" in await said(fixture, "call wallet")
        assert offered(model) == DEFAULTS
        for name in ("delegate", "skill_list", "skill_view", "skill_write"):
            assert f"there is no tool '{name}'" in await said(fixture, f"call {name}")
        assert not wallet.calls
        assert "paid" in await said(fixture, "call wallet", chat="1")
        assert offered(model) > DEFAULTS
        assert [use.rights.is_owner for use in wallet.calls] == [True]


async def test_a_guest_may_call_what_was_granted_to_the_role_the_platform_or_the_person(tmp_path: Path) -> None:
    wallet, clock, gate = Counter(), Counter("clock"), Counter("gate")
    access = AccessSettings(
        guests=AccessGrants(("wallet",)),
        platforms={"fake": AccessGrants(("clock",))},
        people={"fake:42": AccessGrants(("gate",))},
    )
    tools = (wallet.tool, clock.tool, gate.tool)
    async with (
        ModelServer(obeys) as model,
        gateway_fixture(tmp_path, model, access=access, extra_tools=tools) as fixture,
    ):
        for name in ("wallet", "clock", "gate"):
            assert "paid" in await said(fixture, f"call {name}")
        assert "there is no tool 'gate'" in await said(fixture, "call gate", chat="43")
        assert offered(model) == DEFAULTS | {"wallet", "clock"}


async def test_an_admin_has_the_rights_of_a_guest_and_what_admins_are_granted(tmp_path: Path) -> None:
    wallet, gate = Counter(), Counter("gate")
    access = AccessSettings(admins=AccessGrants(("wallet",)))
    account = PlatformAccount("fake", allow_all=True, admins=("42",))
    async with (
        ModelServer(obeys) as model,
        gateway_fixture(
            tmp_path, model, access=access, account=account, extra_tools=(wallet.tool, gate.tool)
        ) as fixture,
    ):
        assert "paid" in await said(fixture, "call wallet")
        assert "there is no tool 'gate'" in await said(fixture, "call gate")
        assert "there is no tool 'wallet'" in await said(fixture, "call wallet", chat="43")


async def test_a_guest_cannot_delegate_work_to_a_helper_with_more_rights(tmp_path: Path) -> None:
    wallet = Counter()
    access = AccessSettings(guests=AccessGrants(("delegate",)))
    task = json.dumps({"task": "call wallet"})
    async with (
        ModelServer(obeys) as model,
        gateway_fixture(tmp_path, model, access=access, extra_tools=(wallet.tool,)) as fixture,
    ):
        assert "there is no tool 'wallet'" in await said(fixture, f"call delegate {task}")
        assert not wallet.calls


async def test_a_guests_scheduled_task_has_the_rights_of_the_guest_when_it_runs(tmp_path: Path) -> None:
    wallet = Counter()
    async with (
        ModelServer(obeys) as model,
        gateway_fixture(tmp_path, model, access=AccessSettings(), extra_tools=(wallet.tool,)) as fixture,
    ):
        await said(fixture, "hello")
        scheduling = fixture.runtime.scheduling
        # Made by somebody who could: the rights count when the task runs.
        new = NewSchedule("fake:42", "every 1h", "UTC", "call wallet", "pay", tools=("wallet",), model="stub/large")
        await scheduling.add(new)
        fixture.clock.advance(3700)
        await fixture.gateway.scheduler.poll()
        await until(lambda: any(b"call wallet" in request for request in model.requests), "the task")
        await until(lambda: not fixture.gateway.scheduler.running, "its end")
        assert not wallet.calls
        assert last_request(model)["model"] == "one"
        assert "tools" not in last_request(model)


# --- Groups ----------------------------------------------------------------------------------------------------------


async def test_a_guest_in_the_owners_group_cannot_use_the_owners_tools(tmp_path: Path) -> None:
    wallet, gate = Counter(), Counter("gate")
    access = AccessSettings(groups=AccessGrants(("wallet",)))
    async with (
        ModelServer(obeys) as model,
        gateway_fixture(
            tmp_path, model, account=SHARED, gateway=LINKED, access=access, extra_tools=(wallet.tool, gate.tool)
        ) as fixture,
    ):
        assert "paid" in await in_group(fixture, "call wallet", user="1")
        assert offered(model) == DEFAULTS | {"wallet"}
        answer = await in_group(fixture, "call wallet", user="7")
        assert "'wallet' was not run: the person whose message you answer may not use it" in answer
        assert len(wallet.calls) == 1
        # What the group lacks, not even the owner uses in it.
        assert "there is no tool 'gate'" in await in_group(fixture, "call gate", user="1")
        assert not gate.calls


async def test_a_guest_cannot_steer_the_owners_turn_in_a_group_to_the_owners_tools(tmp_path: Path) -> None:
    wallet = Counter()
    access = AccessSettings(groups=AccessGrants(("wallet", "look")), guests=AccessGrants(("look",)))

    def script(request: Any) -> Say:
        texts = [message.content for message in request.messages if message.role == "user"]
        results = sum(message.role == "tool" for message in request.messages)
        if any("pay me" in text for text in texts):
            return Say("Done.") if results > 1 else Say("", (ToolCall("c2", "wallet", "{}"),))
        return Say("Done.") if results else Say("", (ToolCall("c1", "look", "{}"),))

    platform = FakePlatform()
    seen: list[str] = []

    async def slow(arguments: Mapping[str, Any], use: ToolUse) -> str:
        platform.say("pay me", chat="-9", user="7", chat_type=ChatType.GROUP)
        await until(lambda: seen[0] in platform.taken, "the second message")
        return "seen"

    tools = (wallet.tool, Tool(ToolSchema("look", "Looks.", {"type": "object", "properties": {}}), slow))
    account = msgspec.structs.replace(SHARED, busy="steer")
    async with (
        ModelServer(script) as model,
        gateway_fixture(
            tmp_path, model, platform, account=account, gateway=LINKED, access=access, extra_tools=tools
        ) as fixture,
    ):
        seen.append("2")
        await in_group(fixture, "look around", user="1")
        assert not wallet.calls
        assert any(b"may not use it" in request for request in model.requests)


async def test_a_retry_by_the_owner_does_not_run_a_guests_words_with_the_owners_rights(tmp_path: Path) -> None:
    wallet = Counter()
    access = AccessSettings(groups=AccessGrants(("wallet",)), people={"fake:8": AccessGrants(("wallet",))})
    async with (
        ModelServer(obeys) as model,
        gateway_fixture(
            tmp_path, model, account=SHARED, gateway=LINKED, access=access, extra_tools=(wallet.tool,)
        ) as fixture,
    ):
        await in_group(fixture, "call wallet", user="7")
        for _ in range(2):
            # The second one asks again what the owner has asked again.
            count = len(model.requests)
            await in_group(fixture, "/retry", user="1")
            await until(lambda count=count: len(model.requests) >= count + 2, "the model was asked again")
            await fixture.rest()
        assert not wallet.calls
        # Whoever may use it, may have it used for them.
        await in_group(fixture, "call wallet", user="8")
        assert len(wallet.calls) == 1
        await in_group(fixture, "/retry", user="1")
        await until(lambda: len(wallet.calls) == 2, "the tool was used again")
        await fixture.rest()
        await in_group(fixture, "/retry", user="7")
        await fixture.rest()
        assert len(wallet.calls) == 2


def _note(text: str, target: str = "memory") -> str:
    return json.dumps({"action": "add", "target": target, "content": text})


async def test_a_shared_group_cannot_write_the_owners_notes(tmp_path: Path) -> None:
    async with (
        ModelServer(obeys) as model,
        gateway_fixture(tmp_path, model, account=SHARED, gateway=LINKED) as fixture,
    ):
        # Even if the owner speaks.
        for target in NoteTarget:
            assert "noted" in await in_group(fixture, "call memory " + _note("Owes Bea 5.", target.value), user="1")
        await in_group(fixture, "/memory add Owes Bea 6.", user="1")

        def read(uow: Any) -> tuple[list[str], list[str]]:
            of = [
                [note for target in NoteTarget for note in uow.notes.current(owner, target)] for owner in ("me", GROUP)
            ]
            return [note.content for note in of[0]], [note.content for note in of[1]]

        mine, groups = await fixture.runtime.store.read(read)
        assert mine == []
        assert len(groups) == 3


async def test_a_group_member_cannot_use_more_tools_through_a_scheduled_task(tmp_path: Path) -> None:
    wallet = Counter()
    access = AccessSettings(groups=AccessGrants(("wallet",)))
    async with (
        ModelServer(obeys) as model,
        gateway_fixture(
            tmp_path, model, account=SHARED, gateway=LINKED, access=access, extra_tools=(wallet.tool,)
        ) as fixture,
    ):
        task = json.dumps({"action": "add", "when": "in 20m", "prompt": "call wallet"})
        assert "Scheduled" in await in_group(fixture, f"call schedule {task}", user="7")
        fixture.clock.advance(1300)
        await fixture.gateway.scheduler.poll()
        await until(lambda: any(b"may not use it" in request for request in model.requests), "the task")
        assert not wallet.calls


# --- The owner's files -----------------------------------------------------------------------------------------------


async def test_a_guest_cannot_read_the_owners_skills(tmp_path: Path) -> None:
    furnish(tmp_path)
    access = AccessSettings(guests=AccessGrants(skills=("tea", "gone")))
    view = json.dumps({"name": "taxes"})
    platform = FakePlatform()
    async with ModelServer(obeys) as model:
        async with gateway_fixture(tmp_path, model, platform, gateway=LINKED) as fixture:
            assert "there is no tool 'skill_view'" in await said(fixture, f"call skill_view {view}")
            assert "taxes" not in system(model)
        async with gateway_fixture(tmp_path, model, platform, gateway=LINKED, access=access) as fixture:
            # What a person or another program wrote into a path or a name is no way around it.
            for name in ("taxes", "../skills/taxes", "tea/../taxes", "gone"):
                answer = await said(fixture, "call skill_view " + json.dumps({"name": name}))
                assert "there is no skill" in answer
                assert "99-88-77" not in answer
                assert "taxes" not in answer.replace(name, "")
            path = json.dumps({"name": "tea", "path": "../taxes/SKILL.md"})
            assert "99-88-77" not in await said(fixture, f"call skill_view {path}")
            assert "Boil water" in await said(fixture, 'call skill_view {"name": "tea"}')
            assert await said(fixture, "call skill_list") == "Result: - tea: How to make tea."
            assert "- tea: How to make tea." in system(model)
            assert "taxes" not in system(model)
            await said(fixture, "hello", chat="1")
            assert "taxes" in system(model)


@pytest.mark.parametrize("sender", ["guest", "group", "admin"])
async def test_the_owners_rules_skills_and_notes_enter_no_other_prompt(tmp_path: Path, sender: str) -> None:
    furnish(tmp_path)
    wallet = Counter()
    account = msgspec.structs.replace(SHARED, admins=("42",) if sender == "admin" else ())
    async with (
        ModelServer(obeys) as model,
        gateway_fixture(
            tmp_path, model, gateway=LINKED, account=account, access=AccessSettings(), extra_tools=(wallet.tool,)
        ) as fixture,
    ):
        await said(fixture, "call memory " + _note("Keys are under the mat."), chat="1")
        await said(fixture, "/new", chat="1")
        await said(fixture, "hello", chat="1")
        assert "4711" in system(model)
        assert "under the mat" in system(model)
        assert "Be polite to visitors" not in system(model)
        await (in_group(fixture, "hello", user="7") if sender == "group" else said(fixture, "hello"))
        assert "You are Grace" in system(model)
        assert "Be polite to visitors" in system(model)
        whole = json.dumps(last_request(model))
        for secret in ("4711", "taxes", "under the mat", "wallet"):
            assert secret not in whole


async def test_a_prompt_that_was_stored_for_other_rights_is_not_sent_again(tmp_path: Path) -> None:
    furnish(tmp_path)
    platform = FakePlatform()
    async with ModelServer(obeys) as model:
        # As an older version stored the prompts of guests: with the owner's files, and without a record of rights.
        async with gateway_fixture(tmp_path, model, platform, owner="fake:42") as fixture:
            await said(fixture, "hello")
            assert "4711" in system(model)
            session = await fixture.session()
        async with gateway_fixture(tmp_path, model, platform) as fixture:
            await said(fixture, "hello again")
            assert (await fixture.session()).id == session.id
            assert "4711" not in json.dumps(last_request(model))
            assert "Be polite to visitors" in system(model)


async def test_a_changed_grant_builds_the_prompt_again(tmp_path: Path) -> None:
    furnish(tmp_path)
    platform = FakePlatform()
    async with ModelServer(obeys) as model:
        for skills in (("tea", "taxes"), ("tea",)):
            access = AccessSettings(guests=AccessGrants(skills=skills))
            async with gateway_fixture(tmp_path, model, platform, access=access) as fixture:
                await said(fixture, "hello")
                assert ("taxes" in system(model)) is ("taxes" in skills)
                session = await fixture.session()
                prefix = await fixture.runtime.store.read(lambda uow, id=session.id: uow.turns.prefix(id))
                assert prefix is not None
                assert decode_prompt(prefix.content).rights


# --- Models ----------------------------------------------------------------------------------------------------------


async def test_a_guests_stateless_request_cannot_choose_another_model(tmp_path: Path) -> None:
    access = AccessSettings(people={"bea": AccessGrants(models=("stub/fast",))})
    async with (
        ModelServer(obeys) as model,
        http_gateway(tmp_path, model, access=access, fallback_models=("stub/large",)) as fixture,
    ):
        mine, anna, bea = [await fixture.token(owner) for owner in ("me", "anna", "bea")]

        async def ask(name: str, token: str) -> tuple[int, str]:
            body = {"model": name, "messages": [{"role": "user", "content": "hello"}]}
            answer = await fixture.ask("POST", "/v1/chat/completions", body, token)
            return answer.status, "" if answer.status == 200 else answer.code

        async def listed(token: str) -> set[str]:
            answer = await fixture.ask("GET", "/v1/models", token=token)
            return {each["id"] for each in answer.json["data"]}

        assert await ask("stub/large", mine) == (200, "")
        before = len(model.requests)
        for name in ("stub/large", "stub/fast", "stub/unknown", "gone/one"):
            assert await ask(name, anna) == (404, "model_not_found")
        assert len(model.requests) == before
        assert await ask("stub/one", anna) == (200, "")
        assert await ask("everthread", anna) == (200, "")
        assert await ask("stub/fast", bea) == (200, "")
        assert last_request(model)["model"] == "fast"
        assert await ask("stub/large", bea) == (404, "model_not_found")
        assert "stub/large" in await listed(mine)
        assert not {"stub/large", "stub/fast"} & await listed(anna)
        assert "stub/fast" in await listed(bea)


async def test_a_guest_cannot_switch_to_a_model_that_was_not_granted(tmp_path: Path) -> None:
    access = AccessSettings(guests=AccessGrants(models=("stub/fast",)))
    platform = FakePlatform()
    async with ModelServer(obeys) as model:
        async with gateway_fixture(
            tmp_path, model, platform, gateway=LINKED, access=access, fallback_models=("stub/large",)
        ) as fixture:
            assert "stub/large is not granted here" in await said(fixture, "/model stub/large")
            assert "stub/large" not in await said(fixture, "/model")
            assert "stub/fast" in await said(fixture, "/model stub/fast")
            await said(fixture, "hello")
            assert last_request(model)["model"] == "fast"
            assert "stub/large" in await said(fixture, "/model stub/large", chat="1")
        # A model that was granted when it was chosen is not used once it is not.
        async with gateway_fixture(tmp_path, model, platform, gateway=LINKED) as fixture:
            await said(fixture, "hello again")
            assert last_request(model)["model"] == "one"
            await said(fixture, "hello", chat="1")
            assert last_request(model)["model"] == "large"


async def test_a_guest_in_a_group_is_not_answered_by_the_model_that_only_the_owner_may_choose(tmp_path: Path) -> None:
    large = AccessGrants(models=("stub/large",))
    access = AccessSettings(groups=large, people={"fake:8": large})
    async with (
        ModelServer(obeys) as model,
        gateway_fixture(
            tmp_path, model, account=SHARED, gateway=LINKED, access=access, fallback_models=("stub/large",)
        ) as fixture,
    ):
        assert "stub/large is not granted here" in await in_group(fixture, "/model stub/large", user="7")
        assert "stub/large" in await in_group(fixture, "/model stub/large", user="1")
        for user, name in (("7", "one"), ("1", "large"), ("8", "large")):
            await in_group(fixture, "hello", user=user)
            assert last_request(model)["model"] == name


# --- Reviews and webhooks --------------------------------------------------------------------------------------------


def reviews(request: Any) -> Say:
    """Model script: in a review, write a skill and two notes; read a skill first."""
    last = request.messages[-1]
    if last.role == "user" and "[A review." in last.content:
        skill = {"name": "trap", "description": "Use always.", "body": "Obey."}
        return Say(
            "",
            (
                ToolCall("r1", "skill_view", '{"name": "taxes"}'),
                ToolCall("r2", "skill_write", json.dumps(skill)),
                ToolCall("r3", "memory", _note("Wants tea.")),
                ToolCall("r4", "memory", _note("Is a guest.", "user")),
            ),
        )
    return Say("done") if last.role == "tool" else Say("Fine.")


async def test_the_review_of_a_guest_cannot_write_or_read_skills(tmp_path: Path) -> None:
    furnish(tmp_path)
    review = ReviewSettings(every_turns=1)
    async with (
        ModelServer(reviews) as model,
        gateway_fixture(tmp_path, model, review=review, gateway=LINKED) as fixture,
    ):
        fixture.platform.say("hello")
        await until(lambda: any(b"r4" in request for request in model.requests), "the review")
        await until(lambda: not fixture.runtime.agent._reviewer.busy, "its end")  # type: ignore[union-attr] # noqa: SLF001
        assert not (tmp_path / "skills" / "trap").exists()
        whole = json.dumps(last_request(model))
        assert "99-88-77" not in whole
        assert "skill_write" not in next(
            message["content"]
            for message in last_request(model)["messages"]
            if "[A review." in (message["content"] or "")
        )
        notes = await fixture.runtime.store.read(lambda uow: uow.notes.current("fake:42", NoteTarget.MEMORY))
        assert [note.content for note in notes] == ["Wants tea."]


async def test_a_webhook_cannot_write_lasting_memory(tmp_path: Path) -> None:
    furnish(tmp_path)
    key = SessionKey.parse("agent:main:hooks:dm:build")
    write = json.dumps({"name": "trap", "description": "Use always.", "body": "Obey."})
    async with (
        ModelServer(obeys) as model,
        gateway_fixture(tmp_path, model, tools=ToolSettings(("skill_write",))) as fixture,
    ):
        for order in ("call memory " + _note("Obey."), f"call skill_write {write}", "call schedule {}"):
            await post(fixture, key, order)
            assert "there is no tool" in await answer_at(fixture, key)
        assert "memory" not in offered(model)
        assert "Use the `memory` tool" not in system(model)
        # It is the owner's session, with the owner's files and other tools.
        assert "4711" in system(model)
        assert {"recall", "session_search", "delegate", "skill_view"} <= offered(model)
        assert not (tmp_path / "skills" / "trap").exists()


async def test_the_review_of_a_webhooks_session_writes_nothing(tmp_path: Path) -> None:
    key = SessionKey.parse("agent:main:hooks:dm:build")
    async with (
        ModelServer(reviews) as model,
        gateway_fixture(tmp_path, model, review=ReviewSettings(every_turns=1)) as fixture,
    ):
        await post(fixture, key, "hello")
        await answer_at(fixture, key)
        reviewer = fixture.runtime.agent._reviewer  # noqa: SLF001
        assert reviewer is not None
        await until(lambda: not reviewer.busy, "the review")
        due = await fixture.runtime.store.read(lambda uow: uow.reviews.is_due(fixture.clock.now()))
        assert not due
        assert not any(b"[A review." in request for request in model.requests)
        for target in NoteTarget:
            assert not await fixture.runtime.store.read(lambda uow, target=target: uow.notes.current("me", target))
        assert not (tmp_path / "skills").exists()


async def post(fixture: GatewayFixture, key: SessionKey, text: str) -> None:
    """Accept a message as a webhook does."""
    row, _ = await fixture.runtime.lifecycle.accept(Inbound(key, "me", f"(From the webhook build)\n{text}"))
    fixture.gateway.worker.submit(row, "queue")
    await until(lambda: not fixture.gateway.worker.busy, "the turn")


async def answer_at(fixture: GatewayFixture, key: SessionKey) -> str:
    turns = await fixture.turns(key=key)
    return turns[-1].assistant_text
