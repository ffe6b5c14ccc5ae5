"""What `config.toml` and `mcp.json` say together."""

from __future__ import annotations

from pathlib import Path

from everthread.config import tables as reading
from everthread.config.parse import MCP_SERVERS, FromFile, mcp_servers, parsed
from everthread.config.schema import built_in_providers
from everthread.config.secrets import refuse_secrets
from everthread.config.tables import Table


def read(home: Path, config: Path, env: Path, mcp: Path, *, draft: str | None = None) -> FromFile:
    """Raises `BadConfig` for the first thing that is wrong. A draft is read as if it were the text of `config.toml`."""
    said: FromFile = {}
    text = reading.text_of(config) if draft is None else draft
    if text is not None:
        source, values = reading.toml(config, text)
        top = Table(source, (), values)
        # First of all, so that no other complaint can quote a secret.
        refuse_secrets(top, env, built_in_providers())
        said = parsed(top, home)
    text = reading.text_of(mcp)
    if text is not None:
        source, values = reading.json(mcp, text)
        top = Table(source, (), values)
        refuse_secrets(top, env, built_in_providers())
        top.allow(MCP_SERVERS)
        servers = mcp_servers(top.table(MCP_SERVERS), home)
        known = said.get("mcp_servers", {})
        for name in servers:
            if name in known:
                raise top.error((MCP_SERVERS, name), f"{MCP_SERVERS}.{name} is in {config} too; keep one of them")
        said["mcp_servers"] = {**known, **servers}
    return said
