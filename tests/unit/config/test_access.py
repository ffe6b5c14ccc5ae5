"""`[access]` in `config.toml`, as a policy of rights."""

from __future__ import annotations

from pathlib import Path

from tests.config_files import config_error, load_home

from everthread.config.access import rights_policy, unknown_grants, unknown_names
from everthread.domain.rights import AccessRole, Rights, rights_of

WHOLE = """
model = "ollama/small"

[access.guests]
tools = ["weather"]

[access.admins]
models = ["ollama/large"]

[access.groups]
skills = ["trips"]

[access.platforms.telegram]
tools = ["mcp:files"]

[access.people."telegram:42"]
tools = ["delegate"]

[access.people."group:telegram:-100"]
tools = ["vote"]

[platforms.telegram]
admins = ["7"]

[gateway.links]
anna = ["telegram:42"]

[mcpServers.files]
command = "npx"
"""


def test_the_tables_add_up_to_rights(tmp_path: Path) -> None:
    settings = load_home(tmp_path, WHOLE)
    policy = rights_policy(settings)
    assert rights_of(policy, settings.owner).is_owner
    assert rights_of(policy, "anna") == Rights(tools=frozenset({"weather", "mcp:files", "delegate"}))
    assert rights_of(policy, "telegram:7") == Rights(
        AccessRole.ADMIN, frozenset({"weather", "mcp:files"}), models=frozenset({"ollama/large"})
    )
    assert rights_of(policy, "group:telegram:-100") == Rights(
        AccessRole.GROUP, frozenset({"mcp:files", "vote"}), frozenset({"trips"})
    )
    assert unknown_grants(settings) == []


def test_without_tables_nothing_is_granted(tmp_path: Path) -> None:
    assert rights_of(rights_policy(load_home(tmp_path, "")), "anna") == Rights()


def test_a_misspelled_table_or_key_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    assert "Did you mean access.guests?" in config_error(tmp_path, "[access.guest]\ntools = []")
    assert "Did you mean access.guests.tools?" in config_error(tmp_path, "[access.guests]\ntool = []")
    assert "expected an array of strings" in config_error(tmp_path, "[access.guests]\ntools = 'x'")
    assert "not the name of a tool" in config_error(tmp_path, "[access.guests]\ntools = ['*']")


def test_a_granted_model_needs_a_known_provider(tmp_path: Path) -> None:
    error = config_error(tmp_path, "[access.guests]\nmodels = ['olama/x']")
    assert "access.guests.models[0]: unknown provider 'olama'. Did you mean ollama?" in error


def test_names_that_do_not_exist_are_listed(tmp_path: Path) -> None:
    text = "[access.guests]\ntools = ['mcp:gone', 'weather']\nskills = ['trips']\n[access.platforms.telegram]\n"
    settings = load_home(tmp_path, text)
    assert unknown_grants(settings) == [
        "access.platforms.telegram: there is no platform of this name",
        "access.guests.tools: there is no MCP server 'gone'",
    ]
    assert unknown_names(settings, {"recall": 1}, {}) == [
        "access.guests.tools: there is no tool 'weather'",
        "access.guests.skills: there is no skill 'trips'",
    ]
