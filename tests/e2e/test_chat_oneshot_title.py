"""`everthread -p` ends soon after its answer, and its conversation has a title all the same."""

from __future__ import annotations

import time
from pathlib import Path

from tests.e2e.commands import printed
from tests.e2e.model_endpoint import model_endpoint

from everthread.agent.titles import INSTRUCTION
from everthread.testing.model_server.replies import Reply, Say
from everthread.testing.model_server.validation import Chat, Messages

CONFIG = 'model = "stub/one"\n[providers.stub]\nbase_url = "{url}"\n'


def asked_once(home: Path, *, title_s: float) -> str | None:
    """The title after one question, if the model lets so much time pass before each piece of it."""

    def script(request: Chat | Messages) -> Reply:
        assert isinstance(request, Chat)
        if any(INSTRUCTION in (message.content or "") for message in request.messages):
            return Say("A walk", delay_s=title_s)
        return Say("Into the woods.")

    home.mkdir()
    with model_endpoint(script=script) as server:
        (home / "config.toml").write_text(CONFIG.format(url=server.base_url))
        printed(home, "-p", "Where do we go?")
    [session] = printed(home, "sessions", "list")
    return session["title"]


def test_one_question_gives_its_conversation_a_title(tmp_path: Path) -> None:
    assert asked_once(tmp_path / "home", title_s=0.1) == "A walk"


def test_a_title_that_takes_too_long_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    assert asked_once(tmp_path / "home", title_s=25.0) is None
    assert time.monotonic() - began < 15
