"""Settings as `config show` and `config get` print them."""

from __future__ import annotations

import json
from pathlib import Path

from everthread.cli.settings_view import as_json
from everthread.config.schema import PlatformAccount, ScheduleSettings, Settings

OTHERWISE = {
    "config_path": "config",
    "env_path": "env",
    "mcp_path": "mcp",
    "mcp_servers": "mcpServers",
    "memory_providers": "memory",
}


def test_every_setting_is_shown(tmp_path: Path) -> None:
    shown = as_json(Settings(tmp_path))
    fields = [name for name in Settings.__struct_fields__ if name != "variables"]
    assert {OTHERWISE.get(name, name) for name in fields} == set(shown)


def test_paths_and_accounts_are_shown_as_they_are_written(tmp_path: Path) -> None:
    account = PlatformAccount("telegram", token_env="BOT_TOKEN", allow=("42",))
    schedule = ScheduleSettings(folders=(tmp_path / "reports",))
    shown = json.loads(json.dumps(as_json(Settings(tmp_path, platforms={"telegram": account}, schedule=schedule))))
    assert shown["platforms"]["telegram"]["token_env"] == "BOT_TOKEN"
    assert shown["platforms"]["telegram"]["allow"] == ["42"]
    assert shown["schedule"]["folders"] == [str(tmp_path / "reports")]
    assert shown["gateway"]["http"]["host"] == "127.0.0.1"
