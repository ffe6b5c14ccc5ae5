"""The check of `[access]`."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from typing import Any

from tests.e2e.cli.commands.doctor.doctor_home import doctor, failed, says

from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText
from everthread.bootstrap.runtime import Runtime
from everthread.cli.commands.doctor.rights import _finding
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import SessionKey
from everthread.domain.rights import Grants


async def write_as_guests(home: Path) -> None:
    async with Runtime(Settings(home)) as runtime:
        for owner, chat in (("telegram:42", "dm:42"), ("telegram:43", "dm:43"), ("group:telegram:-9", "group:-9")):
            key = SessionKey.parse(f"agent:main:telegram:{chat}")
            await runtime.lifecycle.cross(key, New(), owner=owner)
            await runtime.lifecycle.choose_model(key, "mine/best", owner=owner)


def access_check(home: Path) -> Any:
    checks = json.loads(doctor(home, "--offline", "--json").stdout)["checks"]
    return next(check for check in checks if check["check"] == "access")


def test_what_people_who_wrote_before_may_not_use_is_listed_with_the_lines_that_grant_it_to_them_only(
    home: Path,
) -> None:
    assert says(home, "--offline")["access"] == "nobody else has written"
    asyncio.run(write_as_guests(home))
    SkillFolders(home / "skills").write(SkillText("tea", "How to make tea.", "Boil water."))
    config = (home / "config.toml").read_text()
    admin = '[platforms.telegram]\nenabled = false\ntoken_env = "TELEGRAM_TOKEN"\nadmins = ["43"]\n'
    given = '[access.people."telegram:42"]\ntools = ["delegate"]\n'
    (home / "config.toml").write_text(f"{config}{admin}{given}")
    found = access_check(home)
    assert found["says"].startswith("2 guests and 1 group who wrote before may not use everything.")
    lines = "\n".join(found["lines"])
    both = {"tools": ["delegate"], "skills": ["tea"], "models": ["mine/best"]}
    people = {"group:telegram:-9": both, "telegram:42": both, "telegram:43": both}
    assert tomllib.loads(lines) == {"access": {"people": people}}, "no table of a role"
    assert lines in doctor(home, "--offline").stdout
    (home / "config.toml").write_text(f"{config}{admin}{lines}\n")
    assert access_check(home)["says"] == "all granted names exist"
    assert access_check(home)["lines"] == []


def test_a_name_with_strange_characters_stays_inside_its_table(home: Path) -> None:
    name = 'eve"]\n[access.guests]\ntools = ["delegate"]\x7f\u202e\\'
    lines = _finding({name: Grants(("delegate",))}, {}).lines
    assert len(lines) == 2
    assert tomllib.loads("\n".join(lines)) == {"access": {"people": {name: {"tools": ["delegate"]}}}}
    assert all(line.isprintable() for line in lines)


def test_a_granted_name_that_does_not_exist_is_reported(home: Path) -> None:
    config = (home / "config.toml").read_text()
    for line, problem in (
        ('tools = ["wether"]', "access.guests.tools: there is no tool 'wether'"),
        ('tools = ["mcp:gone"]', "access.guests.tools: there is no MCP server 'gone'"),
        ('skills = ["gone"]', "access.guests.skills: there is no skill 'gone'"),
    ):
        (home / "config.toml").write_text(f"{config}[access.guests]\n{line}\n")
        assert failed(home, "--offline")["access"][0] == problem
