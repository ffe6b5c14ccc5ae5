"""Environment of a child process that runs third-party code."""

import pytest

from everthread.adapters.memory.common.child_env import restricted_environment


def test_a_child_gets_system_variables_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    environment = restricted_environment(HERMES_HOME="/home/x")
    assert (environment["PATH"], environment["HERMES_HOME"]) == ("/bin", "/home/x")
    assert "OPENAI_API_KEY" not in environment
