"""Skills in a conversation: listed in the frozen prompt, read on demand, written with approval; and their command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime import AgentFixture
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME

from everthread.agent.events import ApprovalRequest, ToolEnded
from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText, parse
from everthread.agent.tools.skills import skill_tools
from everthread.agent.turn_options import TurnOptions
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import ProviderSettings, Settings
from everthread.domain.boundary import New
from everthread.domain.model import Inbound, SessionRef, ToolCall
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.trust.decisions import TrustFile
from everthread.trust.project_skills import ProjectSkills


def call(tool: str, /, **arguments: str) -> ToolCall:
    return ToolCall(f"c-{tool}", tool, json.dumps(arguments))


class SkillsFixture(AgentFixture):
    """Agent with the user's skills in `skills` and a project in `work`."""

    def __init__(self, folder: Path, model: FakeModel, *, approves: bool = True) -> None:
        trust = TrustFile(folder / "trust.json")
        if approves:
            ProjectSkills(folder / "work", trust).decide(True)
        self.skills = SkillFolders(folder / "skills", folder / "work", trust)
        super().__init__(folder, model, tools=skill_tools(self.skills), skills=self.skills.index)

    @property
    def told(self) -> list[str]:
        return [event.result for event in self.heard if isinstance(event, ToolEnded)]


async def yes(request: ApprovalRequest, ref: SessionRef) -> bool:
    return True


async def test_the_prompt_lists_the_skills_and_their_text_is_read_on_demand(tmp_path: Path) -> None:
    folders = SkillFolders(tmp_path / "skills")
    folders.write(SkillText("tea", "How to make tea.", "Boil water."))
    (tmp_path / "skills/tea/references").mkdir()
    (tmp_path / "skills/tea/references/kinds.md").write_text("Oolong.")
    lines: list[object] = [
        call("skill_view", name="tea"),
        call("skill_view", name="tea", path="references/kinds.md"),
        call("skill_view", name="tea", path="../../secret"),
        call("skill_view", name="coffee"),
        "done",
    ]
    async with SkillsFixture(tmp_path, FakeModel(lines)) as core:
        await core.ask("make tea")
        first = core.model.sent(0)
        assert "- tea: How to make tea." in first
        assert "Boil water" not in first
        whole, kinds, outside, unknown = core.told
        assert "Boil water." in whole
        assert whole.endswith("Its other files: references/kinds.md")
        assert kinds.startswith('<skill name="tea" file="references/kinds.md">\nOolong.')
        assert "is not inside the skill tea" in outside
        assert "there is no skill 'coffee'; available: tea" in unknown


async def test_a_new_skill_appears_in_the_prompt_of_the_next_conversation_only(
    tmp_path: Path,
) -> None:
    async with SkillsFixture(tmp_path, FakeModel(["fine", "fine", call("skill_list"), "fine"])) as core:
        await core.ask("hello")
        core.skills.write(SkillText("tea", "How to make tea.", "Boil water."))
        await core.ask("again")
        assert core.model.requests[0].head == core.model.requests[1].head
        await core.ask("what can you do?")
        assert core.told == ["- tea: How to make tea."]
        assert core.model.requests[3].head == core.model.requests[0].head
        await core.cross(CLI, New())
        await core.ask("hello")
        assert "- tea: How to make tea." in core.model.sent()


async def test_a_skill_of_a_project_is_marked_as_such(tmp_path: Path) -> None:
    SkillFolders(tmp_path / "work/.everthread/skills").write(SkillText("build", "How to build.", "Run make."))
    async with SkillsFixture(tmp_path, FakeModel([call("skill_view", name="build"), "done"])) as core:
        await core.ask("build it")
        assert "- build (project): How to build." in core.model.sent(0)
        assert core.told[0].startswith('<skill name="build" file="SKILL.md", from the project>')


async def test_a_cloned_project_cannot_put_its_skills_into_the_prompt(tmp_path: Path) -> None:
    SkillFolders(tmp_path / "work/.everthread/skills").write(SkillText("build", "How to build.", "Run make."))
    lines: list[object] = [call("skill_view", name="build"), "done"]
    async with SkillsFixture(tmp_path, FakeModel(lines), approves=False) as core:
        await core.ask("build it")
        assert "How to build." not in core.model.sent(0)
        assert "Run make." not in core.told[0]


async def test_a_skill_is_written_only_with_approval(tmp_path: Path) -> None:
    write = call("skill_write", name="tea", description="How to make tea.", body="Boil water.")
    async with SkillsFixture(tmp_path, FakeModel([write, "ok", write, "ok", write, "ok"])) as core:
        await core.ask("remember how tea is made")
        assert "needs approval, and there is nobody to ask here" in core.model.sent()
        assert not (tmp_path / "skills/tea").exists()
        core.approve = yes
        await core.ask("do it")
        assert "written" in core.told[0]
        assert parse((tmp_path / "skills/tea/SKILL.md").read_text(), "f").body == "Boil water."
        await core.ask("once more")
        assert "the previous version is kept" in core.told[1]


async def test_only_the_owner_of_the_home_can_have_skills_written(tmp_path: Path) -> None:
    write = call("skill_write", name="tea", description="How to make tea.", body="Boil water.")
    async with SkillsFixture(tmp_path, FakeModel([write, "ok"])) as core:
        core.approve = yes
        await core.ask("remember it", owner="somebody else")
        assert "may not be written here" in core.told[0]
        assert not (tmp_path / "skills/tea").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "../tea", "description": "x", "body": "x"}, "is not a valid skill name"),
        ({"name": "tea", "description": "", "body": "x"}, "the description is empty"),
        ({"name": "tea", "body": "x"}, "`description` (string)"),
    ],
)
async def test_an_invalid_skill_is_refused_with_a_reason(tmp_path: Path, arguments: Any, said: str) -> None:
    async with SkillsFixture(tmp_path, FakeModel([call("skill_write", **arguments), "ok"])) as core:
        core.approve = yes
        await core.ask("write it")
        assert said in core.told[0]
        assert core.skills.read_all().found == ()


# --- With the whole runtime ------------------------------------------------------------------------------------------


async def test_the_whole_agent_has_skills_and_delegation(tmp_path: Path) -> None:
    SkillFolders(tmp_path / "home/skills").write(SkillText("tea", "How to make tea.", "Boil water."))
    SkillFolders(tmp_path / "work/.everthread/skills").write(SkillText("build", "How to build.", "Run make."))
    (tmp_path / "home/skills/broken").mkdir()
    ProjectSkills(tmp_path / "work", TrustFile(tmp_path / "home/trust.json")).decide(True)

    def script(request: Any) -> Say:
        said = str(request)
        if "look at the tea" in said and "handed one task" in said:
            return Say("it is green")
        if "it is green" in said:
            return Say("the tea is green")
        return Say("", (ToolCall("c1", "delegate", '{"task": "look at the tea"}'),))

    async with ModelServer(script) as server:
        settings = Settings(
            tmp_path / "home", model="stub/one", providers={"stub": ProviderSettings("openai_compat", server.base_url)}
        )
        async with Runtime(settings, project=tmp_path / "work") as runtime:
            (problem,) = await runtime.ready()
            assert problem == f"skill not used: {tmp_path}/home/skills/broken/SKILL.md:1: no such file"
            await runtime.lifecycle.accept(Inbound(CLI, ME, "what about the tea?"))
            ended = await runtime.agent.answer(CLI, TurnOptions(runtime.choices()))
            assert ended is not None
            assert (ended.text, ended.problem) == ("the tea is green", "")
        (work,) = (json.loads(body) for body in server.requests if b"handed one task" in body)
    assert "- tea: How to make tea.\n- build (project): How to build." in work["messages"][0]["content"]
    offered = {tool["function"]["name"] for tool in work["tools"]}
    assert offered == {"session_search", "recall", "skill_list", "skill_view"}
