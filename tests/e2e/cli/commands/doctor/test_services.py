"""Checks of the model and MCP servers."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.cli.commands.doctor.doctor_home import failed


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
