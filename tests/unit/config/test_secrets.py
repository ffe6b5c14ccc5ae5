"""Refusing secrets in `config.toml` and `mcp.json`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.config_files import SECRET, config_error


@pytest.mark.parametrize(
    ("text", "line", "where"),
    [
        ("\n[providers.openai]\napi_key = 'KEY'", 3, "put OPENAI_API_KEY=... into {env} and remove it here"),
        ("\n[openai]\napiKey = 'KEY'", 3, "put OPENAI_API_KEY=... into {env}"),
        ("[providers.mine]\napi_key = 'KEY'", 2, 'MINE_API_KEY=... into {env} and write api_key_env = "MINE_API_KEY"'),
        ("api_key = 'KEY'", 1, "put API_KEY=... into {env}"),
        ("model = 'KEY'", 1, "put MODEL=... into {env}"),
        ("[providers.openai]\napi_key_env = 'KEY'", 2, "put OPENAI_API_KEY=... into {env}"),
        ("[providers.x.headers]\nAuthorization = 'Bearer KEY'", 2, 'write "${{X_API_KEY}}" here'),
        ("[mcpServers.x.env]\nGITHUB_TOKEN = 'KEY'", 2, 'GITHUB_TOKEN=... into {env} and write "${{GITHUB_TOKEN}}"'),
        ("[mcpServers.x]\nargs = [\n'--key',\n'KEY']", 4, "into {env}"),
        ("[tools]\nallow = ['KEY']", 2, "into {env}"),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_printed(text: str, line: int, where: str, tmp_path: Path) -> None:
    told = config_error(tmp_path, text.replace("KEY", SECRET))
    assert told.startswith(f"{tmp_path / 'config.toml'}:{line}: ")
    assert "looks like a secret" in told
    assert where.format(env=tmp_path / ".env") in told
    assert SECRET not in told


@pytest.mark.parametrize("name", ["password", "X-Api-Key", "GITHUB_TOKEN", "clientSecret", "authorization", "key"])
def test_a_value_under_the_name_of_a_secret_is_refused(name: str, tmp_path: Path) -> None:
    assert "looks like a secret" in config_error(tmp_path, f"[mcpServers.x.env]\n{name} = 'hunter2'")
    assert "hunter2" not in config_error(tmp_path, f"[mcpServers.x.env]\n{name} = 'hunter2'")


def test_a_secret_in_an_address_is_refused_and_not_printed(tmp_path: Path) -> None:
    for url in ("https://ada:hunter2@x/v1", "https://x/?api_key=hunter2", "https://x/?a=b&token=hunter2"):
        for text in (f"[mcpServers.x]\nurl = '{url}'", f"[providers.x]\nbase_url = '{url}'"):
            told = config_error(tmp_path, text)
            assert ":2: " in told
            assert "contains a secret" in told
            assert "hunter2" not in told
    told = config_error(tmp_path, "", environ={"OPENAI_BASE_URL": "https://ada:hunter2@x/v1"})
    assert told.startswith("OPENAI_BASE_URL: contains a secret")
    assert "hunter2" not in told
