"""MCP servers: hidden keys, the lazy import of the SDK, and the missing extra."""

import subprocess
import sys

from everthread.adapters.mcp.servers import McpServer


def test_the_repr_of_a_server_hides_its_keys() -> None:
    server = McpServer("cmd", ("--key=k3y",), {"TOKEN": "k3y"}, url="https://h/?k3y", headers={"Authorization": "k3y"})
    assert "cmd" in repr(server)
    assert "k3y" not in repr(server)


def test_the_sdk_is_not_imported_with_our_module() -> None:
    script = "import sys, everthread.adapters.mcp.servers; sys.exit('mcp' in sys.modules or 'anyio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=15, check=False).returncode == 0


def test_without_the_extra_each_server_reports_the_package_to_install() -> None:
    script = """if True:
        import asyncio, sys
        from everthread.config.schema import McpServer
        from everthread.adapters.mcp.servers import McpServers
        sys.modules["mcp"] = None
        servers = McpServers({"a": McpServer("x"), "b": McpServer("x", disabled=True)}, clock=None, environ={})
        asyncio.run(servers.start())
        assert servers.tools() == () and not servers.changed
        print(servers.problems())
        asyncio.run(servers.aclose())
    """
    ran = subprocess.run([sys.executable, "-c", script], timeout=15, capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.stderr) == (
        """{'a': "MCP servers need the extra: pip install 'everthread[mcp]'"}""",
        "",
    )
