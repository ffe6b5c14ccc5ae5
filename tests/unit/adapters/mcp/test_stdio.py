"""The environment of a server's process."""

from everthread.adapters.mcp.stdio import server_environment


def test_a_child_sees_where_things_are_and_what_was_meant_for_it() -> None:
    environ = {"PATH": "/bin", "LC_ALL": "C", "OPENAI_API_KEY": "sk-1", "EVERTHREAD_HOME": "/x", "AWS_SECRET": "s"}
    assert server_environment(environ, {"GITHUB_TOKEN": "t", "LC_ALL": "C.UTF-8"}) == {
        "PATH": "/bin",
        "LC_ALL": "C.UTF-8",
        "GITHUB_TOKEN": "t",
    }
