"""Finding the origin of a setting."""

from __future__ import annotations

from pathlib import Path

from tests.config_files import load_home

from everthread.config.origins import origin


def test_a_setting_comes_from_a_variable_a_line_or_the_default(tmp_path: Path) -> None:
    settings = load_home(
        tmp_path,
        '[limits]\nturn_s = 5\n[providers.openai]\nbase_url = "http://x/v1"\n',
        env="EVERTHREAD_PROFILE=work",
        mcp='{"mcpServers": {\n"files": {"command": "x"}}}',
        environ={"EVERTHREAD_OWNER": "ada", "OPENAI_BASE_URL": "http://y/v1"},
    )
    assert origin(settings, ("owner",)) == "environment (EVERTHREAD_OWNER)"
    assert origin(settings, ("providers", "openai", "base_url")) == "environment (OPENAI_BASE_URL)"
    assert origin(settings, ("profile",)) == f"{tmp_path / '.env'} (EVERTHREAD_PROFILE)"
    assert origin(settings, ("limits", "turn_s")) == f"{tmp_path / 'config.toml'}:2"
    assert origin(settings, ("mcpServers", "files", "command")) == f"{tmp_path / 'mcp.json'}:2"
    assert origin(settings, ("limits", "iterations")) == "default"
