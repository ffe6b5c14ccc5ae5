"""The check of `[access]`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.e2e.cli.commands.doctor.doctor_home import failed, says

from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import SessionKey

ACCESS = """
[access.guests]
tools = ["delegate"]
skills = ["tea"]
models = ["mine/best"]
"""


async def write_as_guests(home: Path) -> None:
    async with Runtime(Settings(home)) as runtime:
        for owner, chat in (("telegram:42", "dm:42"), ("telegram:43", "dm:43"), ("group:telegram:-9", "group:-9")):
            key = SessionKey.parse(f"agent:main:telegram:{chat}")
            await runtime.lifecycle.cross(key, New(), owner=owner)
            await runtime.lifecycle.choose_model(key, "mine/best", owner=owner)


def test_what_people_who_wrote_before_may_not_use_is_listed_with_the_lines_that_grant_it(home: Path) -> None:
    assert says(home, "--offline")["access"] == "nobody else has written"
    asyncio.run(write_as_guests(home))
    SkillFolders(home / "skills").write(SkillText("tea", "How to make tea.", "Boil water."))
    may_not = "may not use: tools delegate, skills tea, models mine/best. To grant it, add to config.toml: "
    lines = 'tools = ["delegate"] skills = ["tea"] models = ["mine/best"]'
    assert says(home, "--offline")["access"] == (
        f"2 guests who wrote before {may_not}[access.guests] {lines}; "
        f"1 group who wrote before {may_not}[access.groups] {lines}"
    )
    with (home / "config.toml").open("a") as file:
        file.write(ACCESS + ACCESS.replace("guests", "groups"))
    assert says(home, "--offline")["access"] == "all granted names exist"


def test_a_granted_name_that_does_not_exist_is_reported(home: Path) -> None:
    config = (home / "config.toml").read_text()
    for line, problem in (
        ('tools = ["wether"]', "access.guests.tools: there is no tool 'wether'"),
        ('tools = ["mcp:gone"]', "access.guests.tools: there is no MCP server 'gone'"),
        ('skills = ["gone"]', "access.guests.skills: there is no skill 'gone'"),
    ):
        (home / "config.toml").write_text(f"{config}[access.guests]\n{line}\n")
        assert failed(home, "--offline")["access"][0] == problem
