"""Checks of the model and MCP servers."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.cli.commands.doctor.doctor_home import failed, says


def test_an_unreachable_model_is_reported_unless_offline(home: Path) -> None:
    text = (home / "config.toml").read_text()
    (home / "config.toml").write_text(text.replace("mine/good", "mine/bad"))
    says, fix = failed(home)["model"]
    assert "check the model's name" in says
    assert "everthread setup" in fix
    assert failed(home, "--offline") == {}


def test_mcp_servers_that_do_not_start_are_reported(home: Path) -> None:
    with (home / "config.toml").open("a") as file:
        file.write('[mcpServers.broken]\ncommand = "/nowhere/at-all"\n')
    assert "broken: " in failed(home, "--offline")["mcp"][0]


def test_the_limit_of_recall_in_groups_is_reported(home: Path) -> None:
    with (home / "config.toml").open("a") as file:
        file.write('[platforms.telegram]\nenabled = false\ntoken_env = "TELEGRAM_TOKEN"\n')
    assert "in group chats, only what was said there is recalled" in says(home, "--offline")["memory"]
    with (home / "config.toml").open("a") as file:
        file.write('[memory]\nrecall_in_groups = "owner"\n')
    assert "group" not in says(home, "--offline")["memory"]
