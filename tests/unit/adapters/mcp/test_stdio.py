"""The environment of a server's process."""

from everthread.adapters.mcp.stdio import server_environment


def test_a_child_gets_system_variables_and_its_configured_ones() -> None:
    environ = {"PATH": "/bin", "LC_ALL": "C", "OPENAI_API_KEY": "sk-1", "EVERTHREAD_HOME": "/x", "AWS_SECRET": "s"}
    assert server_environment(environ, {"GITHUB_TOKEN": "t", "LC_ALL": "C.UTF-8"}) == {
        "PATH": "/bin",
        "LC_ALL": "C.UTF-8",
        "GITHUB_TOKEN": "t",
    }
